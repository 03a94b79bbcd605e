//! Bodies of requests through the whole router, over simulated engines: JSON, with base64, and forms.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use izwi_server::router;
use serde_json::Value;
use tower::ServiceExt as _;

use super::service::Service;
use crate::Target;

pub(super) const JSON: Target = Target { name: "json", run: json, seeds: json_seeds, max_bytes: 4 << 10 };
pub(super) const FORMS: Target = Target { name: "forms", run: form, seeds: form_seeds, max_bytes: 4 << 10 };

const BOUNDARY: &str = "X";
const ROUTES: [&str; 4] =
    ["/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/voices", "/v1/audio/translations"];
/// The most bytes of an error's body.
const MAX_ERROR_BYTES: usize = 4_096;

fn json_seeds() -> Vec<Vec<u8>> {
    let wav = "UklGRiwAAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQgAAAAAAAAAAAAAAA==";
    [
        r#"0{"model":"voice","input":"Hi. You.","voice":{"id":"alloy"},"response_format":"wav","speed":1.5,"seed":7}"#.to_owned(),
        r#"0{"model":"voice","input":"Hi","stream_format":"sse","temperature":0.5,"top_p":1,"top_k":5,"max_tokens":9,"language":"en","instructions":"x","priority":"low","live":false,"first_chunk_ms":50}"#.to_owned(),
        format!(r#"0{{"model":"voice","input":"Hi","ref_audio":"data:audio/wav;base64,{wav}","ref_text":"a","x_vector_only_mode":true}}"#),
        format!(r#"1{{"model":"listener","audio":"{wav}","language":"en","response_format":"verbose_json","timestamp_granularities":["word"],"temperature":0.2}}"#),
        format!(r#"1{{"model":"listener","audio_base64":"{wav}","stream":true,"seed":1,"prompt":"a"}}"#),
        format!(r#"1{{"model":"listener","audio":"{wav}","include":["logprobs"],"languages":["en"],"keywords":["a"],"chunking_strategy":{{"type":"server_vad","threshold":0.5,"prefix_padding_ms":1,"silence_duration_ms":2}}}}"#),
        format!(r#"2{{"name":"a","model":"voice","audio_sample":"{wav}","ref_text":"a","overwrite":true}}"#),
        format!(r#"3{{"model":"listener","audio":"{wav}","response_format":"srt"}}"#),
    ]
    .map(String::into_bytes)
    .into()
}

fn form_seeds() -> Vec<Vec<u8>> {
    let part = |name: &str, more: &str, body: &str| {
        format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{body}\r\n")
    };
    let end = format!("--{BOUNDARY}--\r\n");
    let wav = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\x08\0\0\0\0\0\0\0\0\0\0\0";
    let wav = String::from_utf8_lossy(wav);
    let file = part("file", "; filename=\"a.wav\"\r\nContent-Type: audio/wav", &wav);
    [
        format!("1{}{}{file}{end}", part("model", "", "listener"), part("temperature", "", "0.5")),
        format!(
            "1{file}{}{}{}{end}",
            part("timestamp_granularities[]", "", "word"),
            part("model", "", "listener"),
            part("response_format", "", "verbose_json")
        ),
        format!("2{}{}{file}{end}", part("name", "", "a"), part("overwrite", "", "1")),
        format!("3preamble\r\n{}{file}{end}epilogue", part("stream", "", "TRUE")),
    ]
    .map(String::into_bytes)
    .into()
}

fn json(bytes: &[u8]) {
    send(bytes, "application/json".to_owned());
}

fn form(bytes: &[u8]) {
    send(bytes, format!("multipart/form-data; boundary={BOUNDARY}"));
}

/// The first byte chooses the route. The answer is no failure of the server, and an error is a short envelope.
fn send(bytes: &[u8], content_type: String) {
    let Some((route, body)) = bytes.split_first() else { return };
    let path = ROUTES[usize::from(*route) % ROUTES.len()];
    let request =
        Request::post(path).header(header::HOST, "localhost").header(header::CONTENT_TYPE, content_type);
    let request = request.body(Body::from(body.to_vec())).unwrap();
    let (status, answer) = Service::with(|service| {
        service.runtime.block_on(async {
            let router: Router = router(service.state.clone(), izwi_dialects::all());
            let response = router.oneshot(request).await.unwrap();
            let status = response.status();
            (status, response.into_body().collect().await.map(|body| body.to_bytes()))
        })
    });
    if status.is_success() {
        Service::with(Service::remove_voices);
        return;
    }
    let answer = answer.expect("the body of an error");
    let text = String::from_utf8_lossy(&answer);
    let overloaded = status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS;
    assert!(status.is_client_error() || overloaded, "{path}: {status} {text}");
    assert!(answer.len() <= MAX_ERROR_BYTES, "{path}: an error of {} bytes", answer.len());
    let envelope: Value = serde_json::from_slice(&answer).expect("an envelope");
    assert!(envelope["error"]["message"].is_string(), "{path}: {text}");
}
