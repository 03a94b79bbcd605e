//! A fake program in a script, and the real one where it is installed.

use super::*;

fn espeak(code: &str, search: &OsStr) -> Espeak {
    Espeak::all(search).unwrap().into_iter().find(|espeak| espeak.code == code).unwrap()
}

/// A folder with a program that runs `script`.
#[cfg(unix)]
fn fake(script: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(PROGRAM);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn lines(text: &str) -> Vec<String> {
    let clauses = clauses(text, 0);
    clauses.iter().map(|Clause { marks: [a, b], words, .. }| format!("{a}|{}|{b}", words.join(" "))).collect()
}

#[test]
fn sentences_are_cut_at_marks_outside_words() {
    assert_eq!(lines("Cuesta 3,50, ¿verdad? (sí)"), ["|Cuesta 3,50|,", "¿|verdad|?", "(|sí|)"]);
    assert_eq!(lines("a — b"), ["|a|", "—||", "|b|"]);
    assert_eq!(lines("[[x]] a[[b]]<c\u{7}>"), ["[[|x|]]", "|abc|"]);
    assert_eq!(lines("… - …"), ["…||", "…||"]);
    let long = lines(&"palabra ".repeat(100));
    assert!(long.len() == 3 && long.iter().all(|line| line.len() <= MAX_LINE_BYTES + 2), "{long:?}");
    assert_eq!(lines(&"ñ".repeat(1000)), [format!("|{}|", "ñ".repeat(MAX_LINE_BYTES / 2))]);
}

#[test]
fn symbols_become_those_of_misaki() {
    assert_eq!(misaki("lə- t^ʃˈa^ɪ (^e^n)sˈɒft(^f^r) d^ʒ\n ɛ "), "lə ʧˈI sˈɒft ʤ ɛ");
    assert_eq!((misaki(""), misaki("))((")), (String::new(), String::new()));
    assert_eq!(marks("«¿?»।"), "¿?.");
}

#[cfg(unix)]
#[test]
fn each_word_has_its_place_in_the_text() {
    // Says each line in capitals.
    let folder = fake("tr a-z A-Z");
    let made = espeak("es", folder.path().as_os_str()).sentences("hola a todos, (bien) y tu? ya.").unwrap();
    let phonemes: Vec<&str> = made.iter().map(|sentence| sentence.phonemes.as_str()).collect();
    assert_eq!(phonemes, ["HOLA A TODOS, (BIEN) Y TU? YA."]);
    assert_eq!(made[0].said, [4, 6, 13, 20, 22, 26, 30]);
    // One word of two, and three of one.
    let folder = fake("sed -e 's/o t/ot/' -e 's/bien/b i en/'");
    let made = espeak("es", folder.path().as_os_str()).sentences("digo todo bien. Bien, bien").unwrap();
    assert_eq!(made[0].phonemes, "digotodo b i en.");
    assert_eq!((&made[0].said[..], &made[1].said[..]), (&[4, 9, 15, 15][..], &[21, 26, 26, 26][..]));
}

#[cfg(unix)]
#[test]
fn arguments_and_input_are_the_same_for_any_text() {
    let folder = fake("echo \"$@\" > args; cat > input; echo x");
    let french = espeak("fr", folder.path().as_os_str());
    french.sentences("-v x $rm --path=/ \0").unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("args"), "-q --ipa --tie=^ -b 1 -v fr-fr\n");
    assert_eq!(read("input"), "-v x $rm --path=/\n");
}

#[cfg(unix)]
#[test]
fn a_program_that_fails_is_told() {
    let message = |script: &str| {
        let folder = fake(script);
        let result = espeak("it", folder.path().as_os_str()).sentences("ciao");
        result.unwrap_err().to_string()
    };
    assert!(message("echo no data; exit 3").contains("exit status: 3: no data"));
    assert!(message("head -c 200000 /dev/zero").contains("more than 65536 bytes"));
    assert!(message("printf '\\377'").contains("other bytes than UTF-8"));
    let folder = fake("cat");
    let text = "ciao ".repeat(5_000);
    assert_eq!(espeak("it", folder.path().as_os_str()).sentences(&text).unwrap()[0].said.len(), 5_000);
}

#[cfg(unix)]
#[test]
fn a_program_that_does_not_end_is_killed() {
    let folder = fake("exec sleep 60");
    let path = folder.path().join(PROGRAM);
    let soon = Instant::now() + Duration::from_millis(50);
    let error = espeak("hi", folder.path().as_os_str()).run(&path, "x", soon).unwrap_err();
    assert!(error.to_string().contains("did not end within"), "{error}");
}

#[test]
fn a_missing_program_is_told_with_its_remedy() {
    for search in ["", ".", "relative/folder"] {
        let error = espeak("pt", OsStr::new(search)).sentences("olá").unwrap_err().to_string();
        assert!(error.contains("Portuguese") && error.contains("apt install espeak-ng"), "{error}");
    }
    // Nothing to say needs no program.
    let made = espeak("pt", OsStr::new("")).sentences("... !").unwrap();
    assert!(made.iter().all(|sentence| !sentence.phonemes.contains(char::is_alphabetic)));
}

/// Phonemes of misaki 0.9.4 with eSpeak NG 1.51, which other versions may deviate from.
#[test]
fn the_installed_program_speaks_every_language() {
    let search = std::env::var_os("PATH").unwrap_or_default();
    if find(PROGRAM, &search).is_none() {
        eprintln!("skipped: {PROGRAM} is not installed");
        return;
    }
    for (code, text, expected) in [
        ("es", "Hola, ¿cómo estás hoy?", "ola, ¿komo estas oɪ?"),
        ("fr", "Bonjour ! Le chien.", "bɔ̃ʒuʁ !"),
        ("hi", "नमस्ते, आप कैसे हैं।", "nəmʌsteː, aːp kɛːseː hɛ̃."),
        ("it", "Ciao, come stai oggi?", "ʧao, kome staj ɔʤːɪ?"),
        ("pt", "Olá, como você está?", "ola, komʊ vose esta?"),
    ] {
        let made = espeak(code, &search).sentences(text).unwrap();
        let plain = made[0].phonemes.replace(['ˈ', 'ˌ'], "");
        assert_eq!(plain, expected, "{code}");
        assert_eq!(made[0].said.len(), made[0].phonemes.split(' ').count());
    }
}
