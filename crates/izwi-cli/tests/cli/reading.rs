//! Books: runs that are cut off and go on, chapters, loudness, and what is refused.

use std::fs;
use std::io::{Cursor, Write as _};
use std::process::Output;
use std::time::{Duration, Instant};

use ebur128::{EbuR128, Mode};
use id3::TagLike as _;
use izwi_audio::decode::{DecodeLimits, decode};

use crate::{Izwi, refused};

const PATIENCE: Duration = Duration::from_secs(240);

/// Two chapters of some paragraphs.
fn book(paragraphs: usize) -> String {
    let paragraph =
        |number| format!("This is paragraph {number}, and it is read for itself. The rain went on.\n\n");
    let (first, second) = (paragraphs / 2, paragraphs);
    let part = |from: usize, to: usize| (from..to).map(paragraph).collect::<String>();
    format!("# The first\n\n{}# The second\n\n{}", part(0, first), part(first, second))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn told(output: &Output, part: &str) {
    assert!(
        output.status.success() && stderr(output).contains(part),
        "'{part}' is not in: {}",
        stderr(output)
    );
}

fn samples(bytes: Vec<u8>) -> Vec<f32> {
    let limits = DecodeLimits { max_bytes: bytes.len(), max_duration: Duration::from_secs(3_600) };
    decode(bytes, 24_000, &limits).unwrap()
}

fn lufs(samples: &[f32]) -> (f64, f64) {
    let mut meter = EbuR128::new(1, 24_000, Mode::I | Mode::TRUE_PEAK).unwrap();
    meter.add_frames_f32(samples).unwrap();
    (meter.loudness_global().unwrap(), 20.0 * meter.true_peak(0).unwrap().log10())
}

/// The paragraphs that are stored.
fn stored(izwi: &Izwi, folder: &str) -> usize {
    let Ok(entries) = fs::read_dir(izwi.path(folder)) else { return 0 };
    entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "pcm")).count()
}

#[test]
fn a_run_that_is_killed_again_and_again_equals_one_that_is_not() {
    let izwi = Izwi::with_models();
    fs::write(izwi.path("book.md"), book(16)).unwrap();
    let arguments = |output| ["read", "book.md", "-o", output, "--no-pull"];
    told(&izwi.run(&arguments("whole.mp3")), "2 chapters, 18 of 18 paragraphs spoken");
    assert!(!izwi.path("whole.mp3.izwi-read").exists());

    let begun = Instant::now();
    let mut kills = 0;
    for target in [1, 4, 9, 14] {
        let mut child = izwi.command(&arguments("cut.mp3")).spawn().unwrap();
        while stored(&izwi, "cut.mp3.izwi-read") < target && child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE, "nothing is spoken");
            std::thread::sleep(Duration::from_millis(3));
        }
        // In the middle of what comes next, whatever it is.
        std::thread::sleep(Duration::from_millis(7 * target as u64));
        child.kill().unwrap();
        kills += usize::from(!child.wait().unwrap().success());
    }
    assert!(kills >= 2, "{kills} runs were killed");
    let last = izwi.run(&arguments("cut.mp3"));
    told(&last, "paragraphs were spoken before");
    assert!(!stderr(&last).contains("18 of 18 paragraphs spoken"), "{}", stderr(&last));
    assert!(fs::read(izwi.path("cut.mp3")).unwrap() == fs::read(izwi.path("whole.mp3")).unwrap());
    let left: Vec<_> = fs::read_dir(izwi.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("part")), "{left:?}");
}

#[test]
fn a_changed_paragraph_alone_is_spoken_again() {
    let izwi = Izwi::with_models();
    let arguments = ["read", "book.md", "-o", "out/", "--format", "flac", "--keep", "--no-pull"];
    fs::write(izwi.path("book.md"), book(6)).unwrap();
    told(&izwi.run(&arguments), "out/: 0:3");
    let before =
        ["out/01 The first.flac", "out/02 The second.flac"].map(|name| fs::read(izwi.path(name)).unwrap());
    told(&izwi.run(&arguments), "0 of 8 paragraphs spoken");
    fs::write(izwi.path("book.md"), book(6).replace("paragraph 1,", "paragraph one hundred,")).unwrap();
    told(&izwi.run(&arguments), "1 of 8 paragraphs spoken");
    let after =
        ["out/01 The first.flac", "out/02 The second.flac"].map(|name| fs::read(izwi.path(name)).unwrap());
    assert!(before[0] != after[0]);
    told(&izwi.run(&[&arguments[..], &["--speed", "1.2"]].concat()), "8 of 8 paragraphs spoken");
}

#[test]
fn an_epub_gives_chapter_marks_loudness_and_subtitles() {
    let izwi = Izwi::with_models();
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let page = |title: &str, text: &str| format!("<html><body><h1>{title}</h1><p>{text}</p></body></html>");
    for (name, text) in [
        ("META-INF/container.xml", "<container><rootfiles><rootfile full-path='book.opf'/></rootfiles></container>".to_owned()),
        (
            "book.opf",
            "<package xmlns:dc='http://purl.org/dc/elements/1.1/'><metadata><dc:title>Rain</dc:title><dc:creator>Ann Author</dc:creator>\
             </metadata><manifest><item id='a' href='a.xhtml' media-type='application/xhtml+xml'/><item id='b' href='b.xhtml' \
             media-type='application/xhtml+xml'/></manifest><spine><itemref idref='a'/><itemref idref='b'/></spine></package>"
                .to_owned(),
        ),
        ("a.xhtml", page("Morning", "It rained all morning. Nobody minded it at all.")),
        ("b.xhtml", page("Evening", "In the evening the sky was clear, and everybody went outside.")),
    ] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    fs::write(izwi.path("rain.epub"), zip.finish().unwrap().into_inner()).unwrap();
    told(
        &izwi.run(&["read", "rain.epub", "-o", "rain.mp3", "--subtitles", "rain.srt", "--keep"]),
        "2 chapters",
    );

    let tag = id3::Tag::read_from_path(izwi.path("rain.mp3")).unwrap();
    assert_eq!((tag.title(), tag.artist()), (Some("Rain"), Some("Ann Author")));
    let titles: Vec<_> = tag.chapters().map(|chapter| chapter.frames[0].content().text().unwrap()).collect();
    assert_eq!(titles, ["Morning", "Evening"]);
    let starts: Vec<_> = tag.chapters().map(|chapter| (chapter.start_time, chapter.end_time)).collect();
    assert_eq!(starts[0].1, starts[1].0);
    let audio = samples(fs::read(izwi.path("rain.mp3")).unwrap());
    assert!((audio.len() as f64 / 24.0 - f64::from(starts[1].1)).abs() < 2.0, "{starts:?} {}", audio.len());
    // Before the second chapter there is its pause and nothing else.
    let start = starts[1].0 as usize * 24;
    assert!(audio[start - 24_000..start].iter().all(|sample| sample.abs() < 0.01));
    assert!(audio[start..start + 12_000].iter().any(|sample| sample.abs() > 0.05));

    let (loudness, peak) = lufs(&audio);
    assert!((loudness + 18.0).abs() < 0.5 && peak < -1.0, "{loudness} LUFS, {peak} dBTP");
    for (target, format) in [("-24", "opus"), ("-14", "wav")] {
        let name = format!("rain.{format}");
        fs::rename(izwi.path("rain.mp3.izwi-read"), izwi.path(&format!("{name}.izwi-read"))).unwrap();
        told(
            &izwi.run(&["read", "rain.epub", "-o", &name, "--loudness", target, "--keep"]),
            "0 of 4 paragraphs spoken",
        );
        let bytes = fs::read(izwi.path(&name)).unwrap();
        assert_eq!(bytes.windows(22).any(|window| window == b"CHAPTER001NAME=Evening"), format == "opus");
        let (loudness, peak) = lufs(&samples(bytes));
        assert!(
            (loudness - target.parse::<f64>().unwrap()).abs() < 0.5 && peak < -1.0,
            "{loudness} LUFS, {peak} dBTP"
        );
        fs::rename(izwi.path(&format!("{name}.izwi-read")), izwi.path("rain.mp3.izwi-read")).unwrap();
    }
    let subtitles = fs::read_to_string(izwi.path("rain.srt")).unwrap();
    assert!(
        subtitles.starts_with("1\n00:00:00,") && subtitles.contains("\nNobody minded it at all.\n"),
        "{subtitles}"
    );
}

#[test]
fn a_cast_reads_with_several_voices() {
    let izwi = Izwi::with_models();
    fs::write(izwi.path("cast.toml"), "[speakers]\nAnna = 'heart'\n").unwrap();
    fs::write(izwi.path("play.txt"), "The curtain rises.\n\nAnna: Who is there?\n").unwrap();
    told(
        &izwi.run(&["read", "play.txt", "-o", "play.flac", "--cast", "cast.toml"]),
        "2 of 2 paragraphs spoken",
    );
    fs::write(izwi.path("cast.toml"), "narrator = 'nobody'").unwrap();
    refused(
        &izwi.run(&["read", "play.txt", "-o", "play.flac", "--cast", "cast.toml"]),
        1,
        &["has no voice 'nobody'"],
    );
    fs::write(izwi.path("cast.toml"), "narator = 'heart'").unwrap();
    refused(
        &izwi.run(&["read", "play.txt", "-o", "play.flac", "--cast", "cast.toml"]),
        2,
        &["is no cast", "narator"],
    );
}

#[test]
fn what_cannot_be_read_or_written_is_refused_before_anything_is_spoken() {
    let izwi = Izwi::with_models();
    fs::write(izwi.path("a.txt"), "Some text.").unwrap();
    fs::write(izwi.path("a.epub"), "PK\x03\x04 and not more").unwrap();
    let read = |more: &[&str]| izwi.run(&[&["read"], more].concat());
    refused(&read(&["a.txt", "-o", "a.m4b"]), 2, &["asks for m4b", ".mp3"]);
    refused(&read(&["a.txt", "-o", "no/a.mp3"]), 1, &["there is no folder no"]);
    refused(&read(&["a.txt", "-o", "-"]), 2, &["bound at its end"]);
    refused(&read(&["a.epub", "-o", "a.mp3"]), 1, &["cannot read a.epub", "damaged"]);
    refused(&read(&["a.pdf", "-o", "a.mp3"]), 1, &["a.pdf"]);
    refused(&read(&["a.txt", "-o", "a.mp3", "--loudness", "18"]), 2, &["--loudness", "-40"]);
    refused(&read(&["a.txt", "-o", "out/", "--subtitles", "a.srt"]), 2, &["one file"]);
    // What fails before anything is spoken leaves nothing behind.
    for wrong in [["--voice", "nobody"], ["--speed", "9"], ["--lexicon", "none"]] {
        let output = read(&[&["a.txt", "-o", "a.mp3"], &wrong[..]].concat());
        assert!(!output.status.success() && !izwi.path("a.mp3.izwi-read").exists(), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("goes on from there"), "{output:?}");
    }
    fs::create_dir(izwi.path("a.mp3.izwi-read")).unwrap();
    let lock = fs::File::create(izwi.path("a.mp3.izwi-read/lock")).unwrap();
    lock.lock().unwrap();
    refused(&read(&["a.txt", "-o", "a.mp3"]), 1, &["another run works in a.mp3.izwi-read"]);
    assert!(!izwi.path("a.mp3").exists());
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_tells_how_to_go_on_and_a_full_disk_loses_nothing() {
    let izwi = Izwi::with_models();
    fs::write(izwi.path("book.md"), book(40)).unwrap();
    let child = izwi.command(&["read", "book.md", "-o", "a.flac"]).spawn().unwrap();
    let begun = Instant::now();
    while stored(&izwi, "a.flac.izwi-read") < 2 {
        assert!(begun.elapsed() < PATIENCE, "nothing is spoken");
        std::thread::sleep(Duration::from_millis(5));
    }
    crate::signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("the same command goes on"), "{}", stderr(&output));

    let before = stored(&izwi, "a.flac.izwi-read");
    // A file has room for some paragraphs alone: what the system answers is what a full disk does.
    let limited =
        format!("trap '' XFSZ; ulimit -f 40; exec {} read book.md -o a.flac", env!("CARGO_BIN_EXE_izwi"));
    let mut command = izwi.command(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &limited]).current_dir(izwi.path("")).stdin(std::process::Stdio::null());
    for (name, value) in command.env("IZWI_LOG", "warn").get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let full = shell.output().unwrap();
    refused_at_the_end(&full, &["cannot write a.flac.izwi-read", "make room"]);
    assert!(stored(&izwi, "a.flac.izwi-read") >= before);
    assert!(!izwi.path("a.flac").exists());
    told(&izwi.run(&["read", "book.md", "-o", "a.flac"]), "paragraphs were spoken before");
}

#[track_caller]
fn refused_at_the_end(output: &Output, parts: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    for part in parts {
        assert!(stderr(output).contains(part), "'{part}' is not in: {}", stderr(output));
    }
}
