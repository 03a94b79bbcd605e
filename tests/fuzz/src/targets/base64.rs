//! Base64 of a recording in a JSON body.

use izwi_audio::decode::from_base64;

use crate::Target;

pub(super) const TARGET: Target = Target { name: "base64", run, seeds, max_bytes: 512 };

const LIMIT: usize = 100;

fn seeds() -> Vec<Vec<u8>> {
    [
        "+/+/AQ==",
        " -_-_A\r\nQ",
        "data:audio/wav;base64,+/+/AQ==",
        "DATA:a;b=c;BASE64,AAAA",
        "AA=A",
        "data:,A",
        "€",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match from_base64(&text, LIMIT) {
        Ok(decoded) => assert!(decoded.len() <= LIMIT && decoded.len() <= text.len()),
        Err(error) => assert!(error.to_string().len() < 500, "a long error: {error}"),
    }
}
