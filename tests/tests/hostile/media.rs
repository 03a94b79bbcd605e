//! Recordings: faults of base64, damaged files of every container, files that cost more than they seem, faults of forms.

use izwi_tests::{Dice, Form, base64, recording};
use serde_json::json;

use super::{Body, LISTENER, REAL, SPEAKER, SPEECH, TRANSCRIPTIONS, VOICES};

#[path = "../../../crates/izwi-audio/testdata/generated.rs"]
mod generated;

use generated::{Silence, chained_ogg, silent_flac};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(include_bytes!(concat!("../../../crates/izwi-audio/testdata/", $name)).as_slice()),*]
    };
}

const FILES: [&[u8]; 16] = files![
    "tone.mp3",
    "tone.ogg",
    "tone.m4a",
    "tone-alac.m4a",
    "tone.flac",
    "tone-vorbis.webm",
    "tone.opus",
    "tone.webm",
    "tone.aac",
    "tone-adpcm.wav",
    "tone.aiff",
    "tone.caf",
    "ac3.m4a",
    "silent-picture.mkv",
    "speech-silk.opus",
    "speech-silk.reference.flac",
];

fn transcribe(audio: &str) -> Body {
    Body::json(TRANSCRIPTIONS, json!({"model": LISTENER, "audio": audio}).to_string())
}

fn upload(file: &[u8]) -> Body {
    let form = Form::new().text("model", LISTENER).file("file", file);
    Body { path: TRANSCRIPTIONS, kind: Form::content_type(), bytes: form.finish() }
}

/// Base64 that is none, and data URLs.
pub(super) fn base64_faults() -> Vec<Body> {
    let mut dice = Dice::new(0xba5e);
    let whole = base64(&recording(0.05));
    let mut texts = vec![
        String::new(),
        "=".to_owned(),
        "====".to_owned(),
        "A".to_owned(),
        "AAAAA".to_owned(),
        "AA=A".to_owned(),
        "data:".to_owned(),
        "data:,".to_owned(),
        "data:audio/wav;base64".to_owned(),
        "data:audio/wav;base64,".to_owned(),
        "data:audio/wav,AAAA".to_owned(),
        format!("data:{};base64,{whole}", "x".repeat(100_000)),
        " \n".repeat(10_000),
        format!("{whole}{whole}"),
        whole.replace('A', "é"),
        "\u{0}".repeat(100),
    ];
    for _ in 0..60 {
        let mut damaged = whole.clone().into_bytes();
        dice.damage(&mut damaged, 30);
        texts.push(String::from_utf8_lossy(&damaged).into_owned());
    }
    let cloned = |text: &String| {
        Body::json(SPEECH, json!({"model": SPEAKER, "input": "Hi.", "ref_audio": text}).to_string())
    };
    let clones: Vec<Body> = texts.iter().take(16).map(cloned).collect();
    texts.iter().map(|text| transcribe(text)).chain(clones).collect()
}

/// Files of every container: cut, changed, with sizes that lie; and files that are small and cost much.
pub(super) fn damaged_recordings() -> Vec<Body> {
    let mut dice = Dice::new(0xf11e);
    let mut bodies = Vec::new();
    for file in FILES {
        bodies.push(upload(file));
        for _ in 0..12 {
            bodies.push(upload(&file[..dice.roll(file.len())]));
        }
        for _ in 0..40 {
            let mut damaged = file.to_vec();
            dice.damage(&mut damaged, 512);
            bodies.push(upload(&damaged));
        }
        // Another file after it, and nothing but its beginning.
        let other = FILES[dice.roll(FILES.len())];
        bodies.push(upload(&[file, other].concat()));
        bodies.push(upload(&file[..file.len().min(64)].repeat(200)));
    }
    let mut wav = recording(0.1);
    for at in 0..44 {
        let byte = std::mem::replace(&mut wav[at], 0xff);
        bodies.push(upload(&wav));
        wav[at] = byte;
    }
    for _ in 0..60 {
        bodies.push(upload(&dice.bytes(3_000)));
    }
    bodies.extend(costly().iter().map(|file| upload(file)));
    // A model with weights, a voice and a translation read recordings too.
    let voice = |file: &[u8]| {
        json!({"model": SPEAKER, "name": "hostile", "overwrite": true, "ref_audio": base64(file)}).to_string()
    };
    for file in FILES {
        let cut = base64(&file[..file.len() / 2]);
        let body = json!({"model": REAL, "audio": cut, "language": "en"});
        bodies.push(Body::json(TRANSCRIPTIONS, body.to_string()));
        bodies.push(Body::json(VOICES, voice(&file[..file.len() / 3])));
    }
    bodies
}

/// Small files that take long to decode, or much memory.
fn costly() -> Vec<Vec<u8>> {
    let silence = Silence { rate_hz: 48_000, channels: 1, block: 4_800, frames: 1 };
    let links = |count: usize, rates: &[u32]| {
        let of = |rate_hz: u32| Silence { rate_hz, block: 64, ..silence };
        chained_ogg(&(0..count).map(|index| of(rates[index % rates.len()])).collect::<Vec<_>>())
    };
    let mut transport = Vec::new();
    for index in 0..40u8 {
        transport.extend([0x47, 0x41, 0x00, 0x10 | (index % 16)]);
        transport.resize(188 * (usize::from(index) + 1), 0xff);
    }
    vec![
        links(2_000, &[44_100, 48_000]),
        links(2_000, &[48_000]),
        links(1_000, &[44_101, 47_999, 31_999, 22_051, 11_027, 96_001]),
        silent_flac(Silence { rate_hz: 655_350, channels: 8, block: u16::MAX, frames: 2_000 }),
        // Longer than the longest recording.
        silent_flac(Silence { rate_hz: 1_000, channels: 1, block: u16::MAX, frames: 200 }),
        transport,
    ]
}

/// Forms with faults in their structure.
pub(super) fn damaged_forms() -> Vec<Body> {
    let mut dice = Dice::new(0xf02);
    let form = Form::new().text("model", LISTENER).text("stream", "false");
    let whole = form.text("timestamp_granularities[]", "segment").file("file", &recording(0.05)).finish();
    let mut bodies: Vec<Body> = (0..250)
        .map(|_| {
            let mut bytes = whole.clone();
            dice.damage(&mut bytes, 700);
            Body { path: TRANSCRIPTIONS, kind: Form::content_type(), bytes }
        })
        .collect();
    for kind in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"",
        "multipart/form-data; boundary=other",
        "multipart/mixed; boundary=a",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
        "text/plain",
        "*/*",
    ] {
        bodies.push(Body { path: TRANSCRIPTIONS, kind: kind.to_owned(), bytes: whole.clone() });
        bodies.push(Body { path: VOICES, kind: kind.to_owned(), bytes: whole.clone() });
    }
    let long = "x".repeat(300_000);
    let many = (0..100).fold(Form::new(), |form, n| form.text(&format!("part{n}"), "x"));
    for form in [
        Form::new(),
        many,
        Form::new().text("model", &long).file("file", b"RIFF"),
        Form::new()
            .text("language", &"\u{7f}".repeat(200_000))
            .text("model", REAL)
            .file("file", &recording(0.1)),
        Form::new().text(&long, "x"),
        Form::new().text("model", LISTENER).text("temperature", &"\u{7f}".repeat(200_000)),
        Form::new().text("model", "a").text("model", "b"),
        Form::new().file("file", b"").text("model", LISTENER),
        Form::new().file("file", &recording(0.1)).file("file", &recording(0.1)),
    ] {
        bodies.push(Body { path: TRANSCRIPTIONS, kind: Form::content_type(), bytes: form.finish() });
    }
    bodies
}
