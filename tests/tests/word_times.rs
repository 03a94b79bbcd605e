//! Word times of speech on the WebSocket.

use anyhow::{Context, Result, bail, ensure};
use izwi_tests::{Incoming, Session, Setup};
use serde_json::{Value, json};

/// A word with its times in ms.
type Word = (String, u64, u64);

/// Reads one utterance whose rate is 24 kHz. Each word must come before the chunk in which it starts and after the one before.
async fn utterance(session: &mut Session) -> Result<(Vec<Word>, u64)> {
    let (mut words, mut samples, mut waiting) = (Vec::new(), 0u64, Vec::new());
    loop {
        match session.next().await? {
            Incoming::Frame(frame) if frame["type"] == "word" => {
                let text = frame["text"].as_str().context("text")?.to_owned();
                let time = |name: &str| frame[name].as_u64().with_context(|| format!("{name} in {frame}"));
                ensure!(frame["utterance"] == 0, "{frame}");
                let word = (text, time("start_ms")?, time("end_ms")?);
                waiting.push(word.1);
                words.push(word);
            }
            Incoming::Frame(frame) if frame["type"] == "audio.chunk" => {
                let before = samples;
                samples += frame["samples"].as_u64().context("samples")?;
                for start in waiting.drain(..) {
                    let sample = start * 24;
                    ensure!(sample + 24 > before && sample < samples, "{sample} in {before}..{samples}");
                }
            }
            Incoming::Frame(frame) if frame["type"] == "audio.done" => {
                ensure!(waiting.is_empty(), "{waiting:?}");
                return Ok((words, samples));
            }
            Incoming::Frame(frame) => ensure!(frame["type"] != "error", "{frame}"),
            Incoming::Audio(_) => {}
            Incoming::Closed(code) => bail!("closed with {code:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_comes_with_the_chunk_in_which_it_starts() -> Result<()> {
    let mut setup = Setup::units("word-times");
    setup.model.times_words = true;
    let server = setup.start().await?;
    let text = "One two, three. Then  comes a second unit of the text.";
    let speak = |extra: Value| {
        let mut frame = json!({"type": "speak", "text": text});
        if let (Some(frame), Some(extra)) = (frame.as_object_mut(), extra.as_object()) {
            frame.extend(extra.clone());
        }
        frame
    };
    for options in [json!({}), json!({"chunk_ms": 20}), json!({"chunk_ms": 60, "first_chunk_ms": 20})] {
        let mut session = server.session().await?;
        let mut frame = speak(options);
        frame["word_times"] = json!(true);
        session.send(frame).await?;
        let (words, samples) = utterance(&mut session).await?;
        let texts: Vec<&str> = words.iter().map(|(text, _, _)| text.as_str()).collect();
        assert_eq!(texts, text.split_whitespace().collect::<Vec<_>>());
        // 100 samples for each byte, at 24 kHz; the sentences are trimmed.
        assert_eq!(words[1], ("two,".to_owned(), 16, 33));
        assert_eq!(words[3], ("Then".to_owned(), 1_500 / 24, 1_900 / 24));
        assert!(words.iter().all(|(_, start, end)| start < end && end * 24 <= samples), "{words:?}");
    }
    // Without asking there are none.
    let mut session = server.session().await?;
    session.send(speak(json!({}))).await?;
    assert!(utterance(&mut session).await?.0.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_does_not_know_word_times_sends_none() -> Result<()> {
    let server = Setup::units("no-word-times").start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": "One two.", "word_times": true})).await?;
    let (words, samples) = utterance(&mut session).await?;
    assert!(words.is_empty() && samples > 0);
    Ok(())
}
