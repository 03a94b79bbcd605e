//! JSON bodies: wrong values for each member, broken JSON, huge values.

use izwi_tests::{Dice, base64, recording};
use serde_json::{Value, json};

use super::{Body, LISTENER, REAL, SPEAKER, SPEECH, TRANSCRIPTIONS, TRANSLATIONS, VOICES};

/// Members of the routes with a body.
const MEMBERS: [(&str, &[&str]); 4] = [
    (
        SPEECH,
        &[
            "model",
            "input",
            "voice",
            "response_format",
            "stream_format",
            "first_chunk_ms",
            "priority",
            "live",
            "ref_audio",
            "ref_text",
            "x_vector_only_mode",
            "language",
            "instructions",
            "speed",
            "seed",
            "max_tokens",
            "non_streaming_mode",
            "temperature",
            "top_p",
            "top_k",
            "repetition_penalty",
        ],
    ),
    (
        TRANSCRIPTIONS,
        &[
            "model",
            "audio",
            "audio_base64",
            "language",
            "prompt",
            "response_format",
            "temperature",
            "timestamp_granularities",
            "timestamp_granularities[]",
            "stream",
            "seed",
            "priority",
            "include",
            "chunking_strategy",
            "languages",
            "keywords",
            "known_speaker_names",
            "known_speaker_references",
        ],
    ),
    (TRANSLATIONS, &["model", "audio", "language", "stream"]),
    (
        VOICES,
        &[
            "name",
            "model",
            "ref_audio",
            "audio_sample",
            "ref_text",
            "text",
            "x_vector_only_mode",
            "type",
            "prompt",
            "script_hint",
        ],
    ),
];

/// A body that the route accepts.
pub(super) fn valid(path: &str) -> Value {
    match path {
        SPEECH => json!({"model": SPEAKER, "input": "Hello there.", "max_tokens": 4}),
        VOICES => json!({"model": SPEAKER, "name": "hostile", "ref_audio": base64(&recording(0.3)),
                         "x_vector_only_mode": true, "overwrite": true}),
        _ => json!({"model": LISTENER, "audio": base64(&recording(0.1))}),
    }
}

/// Values of every type, and texts that break what reads them.
fn values(dice: &mut Dice) -> Vec<Value> {
    let mut values = vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!(u64::MAX),
        json!(i64::MIN),
        json!([]),
        json!({}),
        json!(["heart"]),
        json!([[[[0]]]]),
        json!({"id": "heart"}),
        json!({"id": ["heart"]}),
        json!(""),
        json!(" \u{0}\n"),
        json!("\u{202e}\u{feff}\u{fffd}\u{10ffff}"),
        json!("../../../../etc/passwd"),
        json!("%00%ff${jndi:ldap://a}<script>'\"--"),
        json!("en-US".repeat(400)),
        json!("\u{7f}".repeat(20_000)),
        json!("word. ".repeat(3_000)),
        json!("data:audio/wav;base64,AAAA"),
    ];
    values.push(json!(dice.text(300)));
    values.push(dice.wrong());
    values
}

/// Each member of each route with every kind of value.
pub(super) fn wrong_values() -> Vec<Body> {
    let mut dice = Dice::new(0x57a1);
    let mut bodies = Vec::new();
    for (path, members) in MEMBERS {
        for member in members {
            for value in values(&mut dice) {
                let mut body = valid(path);
                body[*member] = value;
                bodies.push(Body::json(path, body.to_string()));
            }
        }
    }
    // A model that reads its fields itself.
    for member in ["voice", "language", "instructions", "input"] {
        for value in values(&mut dice) {
            let mut body = json!({"model": REAL, "input": "Hi.", "max_tokens": 2, "seed": 1});
            body[member] = value;
            bodies.push(Body::json(SPEECH, body.to_string()));
        }
    }
    bodies
}

/// Bodies that are not the JSON that they ought to be.
pub(super) fn broken_json() -> Vec<Body> {
    let mut dice = Dice::new(0xb0d1);
    let mut bodies = Vec::new();
    for (path, _) in MEMBERS {
        let whole = valid(path).to_string();
        for _ in 0..40 {
            bodies.push(Body::json(path, dice.cut(&whole)));
            let mut damaged = whole.clone().into_bytes();
            dice.damage(&mut damaged, 60);
            bodies.push(Body::json(path, damaged));
        }
        for tail in ["}", "1", "null", "\u{0}", ",{}", "//"] {
            bodies.push(Body::json(path, format!("{whole}{tail}")));
        }
        for text in
            ["", " ", "null", "7", "\"{}\"", "[]", "[[]]", "{", "{\"a\"", "{\"a\":", "\u{feff}{}", "NaN"]
        {
            bodies.push(Body::json(path, text));
        }
        // The members of a struct in their order.
        bodies.push(Body::json(path, json!([SPEAKER, "Hello.", "one", "wav"]).to_string()));
        bodies.push(Body::json(path, format!("{{\"model\":1,\"model\":2,{}", &whole[1..])));
        for (open, depth) in [("[", 127), ("[", 129), ("[", 100_000), ("{\"a\":", 50_000)] {
            bodies.push(Body::json(path, open.repeat(depth)));
            bodies.push(Body::json(path, format!("{{\"a\":{}", open.repeat(depth))));
            bodies.push(Body::json(path, format!("{{\"model\":{}", open.repeat(depth))));
        }
        for bytes in [
            &b"{\"model\":\"\xff\xfe\"}"[..],
            b"{\"\xc3\":1}",
            b"{\"model\":\"\xed\xa0\x80\"}",
            b"\xff\xfe{\x00",
        ] {
            bodies.push(Body::json(path, bytes));
        }
        for escape in ["\\ud800", "\\u12", "\\x41", "\\"] {
            bodies.push(Body::json(path, format!("{{\"model\":\"{escape}\"}}")));
        }
    }
    bodies
}

/// Bodies of many megabytes. Each is made when it is asked for.
pub(super) fn huge() -> impl Iterator<Item = Body> {
    const MIB: usize = 1 << 20;
    let member = |path: &'static str, name: &'static str, unit: &'static str| {
        move || {
            let mut text = format!("{{\"model\":\"{LISTENER}\",\"{name}\":\"");
            text.push_str(&unit.repeat(30 * MIB / unit.len()));
            text.push_str("\"}");
            Body::json(path, text)
        }
    };
    let makers: Vec<Box<dyn Fn() -> Body>> = vec![
        Box::new(member(TRANSCRIPTIONS, "language", "a")),
        Box::new(member(TRANSCRIPTIONS, "temperature", "\u{7f}")),
        Box::new(member(TRANSCRIPTIONS, "temperature", "\\u0000")),
        Box::new(member(TRANSCRIPTIONS, "seed", "9")),
        Box::new(member(TRANSCRIPTIONS, "audio", "\u{7f}")),
        Box::new(member(VOICES, "overwrite", "\u{7f}")),
        Box::new(member(SPEECH, "speed", "\u{7f}")),
        Box::new(member(SPEECH, "unknown", "é")),
        Box::new(|| Body::json(SPEECH, format!("\"{}\"", "\u{7f}".repeat(30 * MIB)))),
        Box::new(|| Body::json(TRANSCRIPTIONS, "[".repeat(30 * MIB))),
        Box::new(|| Body::json(TRANSCRIPTIONS, format!("{{\"{}\":1}}", "k".repeat(30 * MIB)))),
        Box::new(|| Body::json(TRANSCRIPTIONS, " ".repeat(30 * MIB))),
        Box::new(|| Body::json(TRANSCRIPTIONS, "{\"a\":0,".repeat(4 * MIB))),
    ];
    makers.into_iter().map(|make| make())
}
