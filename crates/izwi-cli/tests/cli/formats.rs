//! Audio files in every format, decoded by FFmpeg (PyAV) and compared with the WAV of the same seed.

use super::*;

#[test]
fn ffmpeg_decodes_every_format_of_say() {
    let izwi = Izwi::with_models();
    for format in izwi_audio::encode::FORMATS {
        for extension in format.extensions {
            let file = format!("speech.{extension}");
            let said = izwi.run(&["say", "Hello there, how are you?", "--seed", "1", "-o", &file]);
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        }
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let python = if cfg!(windows) { "target/venv/Scripts/python.exe" } else { "target/venv/bin/python" };
    let mut client = Command::new(workspace.join(python));
    client.arg(workspace.join("tests/clients/formats_client.py")).arg("files").arg(izwi.path(""));
    let output = client.stdin(Stdio::null()).output().expect("run `cargo xtask test` once");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    for format in izwi_audio::encode::FORMATS {
        for extension in format.extensions {
            assert!(stdout.contains(&format!("passed: speech.{extension}:")), "{stdout}");
        }
    }
}
