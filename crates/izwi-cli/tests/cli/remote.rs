//! Remote models in the commands: what is shown of them, what is sent, and what fails.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, mpsc};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::Izwi;

/// Answers one speech request with `samples` samples of value 256. The head of the request is sent on.
fn answer(
    mut stream: impl Read + Write,
    samples: usize,
    heads: &mpsc::Sender<String>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"}") {
        let mut more = [0; 4_096];
        let count = stream.read(&mut more)?;
        assert!(count > 0, "the request ended early");
        request.extend_from_slice(&more[..count]);
    }
    heads.send(String::from_utf8(request).unwrap()).unwrap();
    let length = samples * 2;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&[0, 1].repeat(samples))?;
    stream.flush()
}

/// A server that answers one speech request.
fn server(samples: usize) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heads, seen) = mpsc::channel();
    std::thread::spawn(move || answer(listener.accept().unwrap().0, samples, &heads).unwrap());
    (port, seen)
}

/// A server that speaks TLS and answers speech requests. Returns its port, and its certificate in PEM.
fn tls_server(samples: usize) -> (u16, String, mpsc::Receiver<String>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = versions.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heads, seen) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            // A client that does not trust the certificate leaves.
            let _ = answer(StreamOwned::new(connection, stream.unwrap()), samples, &heads);
        }
    });
    (port, made.cert.pem(), seen)
}

fn with_config(text: &str) -> Izwi {
    let izwi = Izwi::alone();
    std::fs::write(izwi.path("izwi.toml"), text).unwrap();
    izwi
}

fn table(name: &str, port: u16) -> String {
    format!(
        "[[remote_models]]\nname = \"{name}\"\nbackend = \"openai\"\ntask = \"tts\"\n\
         base_url = \"http://127.0.0.1:{port}/v1\"\nmodel = \"m\"\nvoices = [\"vivian\"]\n"
    )
}

#[test]
fn a_text_is_spoken_by_another_server() {
    let (port, seen) = server(24_000);
    let izwi = with_config(&format!("{}api_key_env = \"FAR_KEY\"\n", table("far", port)));
    let arguments = ["say", "Hello.", "--config", "izwi.toml", "--model", "far", "-o", "a.wav", "--json"];
    let missing = izwi.run(&arguments);
    let message = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && message.contains("FAR_KEY is not set"), "{message}");
    let said = izwi.command(&arguments).env("FAR_KEY", "hunter2").output().unwrap();
    let messages = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{messages}");
    assert!(messages.contains(&format!("http://127.0.0.1:{port}/v1")), "where the text goes: {messages}");
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((&report["samples"], &report["device"]), (&24_000.into(), &"remote".into()), "{report}");
    let wav = std::fs::read(izwi.path("a.wav")).unwrap();
    assert!(wav.len() == 44 + 48_000 && wav[44..].chunks(2).all(|sample| sample == [0, 1]));
    let request = seen.recv().unwrap();
    assert!(request.to_lowercase().contains("authorization: bearer hunter2"), "{request}");
    assert!(
        request.contains("\"input\":\"Hello.\"") && request.contains("\"voice\":\"vivian\""),
        "{request}"
    );
}

#[test]
fn remote_models_are_listed_with_their_servers_and_without_their_key() {
    let izwi = with_config(&format!("{}api_key = \"hunter2\"\n", table("far", 9)));
    for arguments in [
        &["list", "--config", "izwi.toml"][..],
        &["list", "--config", "izwi.toml", "--json"],
        &["config", "show", "--config", "izwi.toml"],
        &["config", "show", "--config", "izwi.toml", "--json"],
    ] {
        let shown = izwi.run(arguments);
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success() && text.contains("http://127.0.0.1:9/v1"), "{arguments:?}: {text}");
        assert!(!text.contains("hunter2"), "{arguments:?}");
    }
}

#[test]
fn a_remote_model_cannot_have_the_name_of_another() {
    let listed = Izwi::alone().run(&["list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let taken = listed[0]["name"].as_str().unwrap();
    let izwi = with_config(&table(taken, 9));
    let refused = izwi.run(&["list", "--config", "izwi.toml"]);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(message.contains(&format!("izwi.toml:1: remote_models: name: '{taken}'")), "{message}");
}

#[test]
fn a_server_that_does_not_answer_is_told() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let izwi = with_config(&table("far", port));
    let failed = izwi.run(&["say", "Hello.", "--config", "izwi.toml", "--model", "far", "-o", "a.wav"]);
    let message = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{message}");
    assert!(message.contains("model 'far' cannot be reached"), "{message}");
    assert!(!izwi.path("a.wav").exists());
}

#[test]
fn https_needs_a_certificate_that_the_system_trusts() {
    let (port, certificate, seen) = tls_server(24_000);
    let izwi = with_config(&table("far", port).replace("http:", "https:"));
    std::fs::write(izwi.path("trusted.pem"), certificate).unwrap();
    let (_, other, _) = tls_server(1);
    std::fs::write(izwi.path("other.pem"), other).unwrap();
    let arguments = ["say", "Hello.", "--config", "izwi.toml", "--model", "far", "-o", "a.wav"];
    let with = |file: &str| izwi.command(&arguments).env("SSL_CERT_FILE", izwi.path(file)).output().unwrap();

    let refused = with("other.pem");
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("cannot be reached safely") && message.contains("certificate"), "{message}");
    assert!(seen.try_recv().is_err() && !izwi.path("a.wav").exists(), "nothing is sent to a stranger");

    let said = with("trusted.pem");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(seen.recv().unwrap().contains("\"input\":\"Hello.\""));
    assert_eq!(std::fs::read(izwi.path("a.wav")).unwrap().len(), 44 + 48_000);
}

/// A language model that answers the message "Two." with "too many requests". Returns its port.
pub(super) fn busy_language_model() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.windows(4).any(|end| end == b"\r\n\r\n")
                || request.starts_with(b"POST") && !request.ends_with(b"}")
            {
                let mut more = [0; 4_096];
                match stream.read(&mut more) {
                    Ok(count) if count > 0 => request.extend_from_slice(&more[..count]),
                    _ => break,
                }
            }
            let (status, kind, body) = if request.starts_with(b"GET") {
                ("200 OK", "application/json", r#"{"object":"list","data":[{"id":"scripted"}]}"#)
            } else {
                let last =
                    String::from_utf8_lossy(&request).rsplit("\"content\":\"").next().map(str::to_owned);
                match last.is_some_and(|last| last.starts_with("Two.\"")) {
                    false => (
                        "200 OK",
                        "text/event-stream",
                        "data: {\"choices\":[{\"delta\":{\"content\":\"Yes, of course.\"}}]}\n\ndata: [DONE]\n\n",
                    ),
                    true => (
                        "429 Too Many Requests",
                        "application/json",
                        r#"{"error":{"message":"out of quota"}}"#,
                    ),
                }
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            // A client that leaves is no matter here.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        }
    });
    port
}

#[test]
fn a_message_that_is_not_answered_ends_no_conversation() {
    let izwi = Izwi::with_models();
    let url = format!("http://127.0.0.1:{}/v1", busy_language_model());
    let chat = ["chat", "--llm", &url, "--llm-model", "scripted", "--no-pull", "-o", "a.wav"];
    let output = izwi.run_with_input(&chat, b"One.\nTwo.\nThree.\n");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.matches("Yes, of course.").count(), 2, "{stdout}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: the servers of model 'llm' are busy"), "{stderr}");
    assert!(stderr.ends_with("error: one message was not answered\n"), "{stderr}");
    let spoken = std::fs::metadata(izwi.path("a.wav")).unwrap().len();
    assert!(spoken > 50_000, "both answers are kept: {spoken} bytes");
}
