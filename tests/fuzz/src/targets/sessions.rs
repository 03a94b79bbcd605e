//! WebSocket sessions of every kind: the messages of a client, and what happens between them.

use std::sync::OnceLock;

use izwi_server::fuzzing::{self, Step};
use serde_json::Value;

use super::service::Service;
use crate::Target;
use crate::corpus::file;

pub(super) const SPEECH: Target = Target {
    name: "session_speech",
    run: |bytes| run(bytes, Kind::Speech),
    seeds: speech,
    max_bytes: 2 << 10,
};
pub(super) const CHAT: Target =
    Target { name: "session_chat", run: |bytes| run(bytes, Kind::Chat), seeds: chat, max_bytes: 2 << 10 };
pub(super) const REALTIME: Target = Target {
    name: "session_realtime",
    run: |bytes| run(bytes, Kind::Realtime),
    seeds: realtime,
    max_bytes: 2 << 10,
};

pub(super) const LIVE: Target =
    Target { name: "session_live", run: |bytes| run(bytes, Kind::Live), seeds: live, max_bytes: 2 << 10 };

pub(super) const ELEVENLABS: Target = Target {
    name: "session_elevenlabs",
    run: |bytes| run(bytes, Kind::ElevenLabs),
    seeds: elevenlabs,
    max_bytes: 2 << 10,
};

/// Ends a step. No text has it.
const SEPARATOR: u8 = 0xff;
/// The most bytes of a frame that repeats no text of the client, and of an error.
const MAX_FRAME_BYTES: usize = 1_024;

#[derive(Clone, Copy)]
enum Kind {
    Speech,
    Chat,
    ElevenLabs,
    Live,
    Realtime,
}

fn joined(steps: &[&[u8]]) -> Vec<u8> {
    steps.join(&SEPARATOR)
}

fn speech() -> Vec<Vec<u8>> {
    vec![
        joined(&[
            br#"{"type":"session.config","model":"voice","voice":"one","response_format":"pcm_s16le","chunk_ms":50,"seed":1}"#,
            br#"{"type":"input.text","text":"One. Two three. "}"#,
            b"\x02\x40One",
            br#"{"type":"playback.ack","utterance":0,"played_ms":1}"#,
            b"\x06",
            b"\x03",
            br#"{"type":"input.flush"}"#,
            b"\x02\x80x",
            br#"{"type":"interrupt","utterance":1,"played_ms":2}"#,
            b"\x03",
            br#"{"type":"input.done"}"#,
        ]),
        joined(&[
            br#"{"type":"speak","text":"Hello there.","voice":{"id":"two"},"speed":1.5}"#,
            br#"{"type":"ping"}"#,
            b"\x02\x20\x06\x06\x06",
            b"\x07\x10",
            b"\x04",
            br#"{"type":"interrupt"}"#,
        ]),
        joined(&[br#"{"type":"session.resume","session_id":"a","resume_token":"b","next_sample":3}"#, b"\x01ab"]),
        joined(&[
            br#"{"type":"session.config","model":"reader","first_chunk_ms":20}"#,
            br#"{"type":"input.text","text":"One two thr"}"#,
            br#"{"type":"input.text","text":"ee. Four"}"#,
            b"\x02\x10One",
            br#"{"type":"input.done"}"#,
            b"\x03",
        ]),
    ]
}

fn chat() -> Vec<Vec<u8>> {
    vec![
        joined(&[
            br#"{"type":"session.config","model":"talker","system":"Be kind.","input_sample_rate":16000,"temperature":0.5}"#,
            br#"{"type":"input.text","text":"Hi."}"#,
            b"\x02\x40Hello",
            b"\x02\x40 you",
            br#"{"type":"interrupt","turn":0,"played_ms":2}"#,
            b"\x03",
            br#"{"type":"input.text","text":"And?"}"#,
            b"\x04",
            br#"{"type":"input.done"}"#,
        ]),
        joined(&[
            b"\x01\0\x10\0\x20\0\x30\0\x40",
            br#"{"type":"input.audio.commit"}"#,
            b"\x02\x40a",
            b"\x03",
            b"\x01\0\x10",
            br#"{"type":"input.audio.clear"}"#,
            br#"{"type":"playback.ack","turn":0,"played_ms":1}"#,
            b"\x06\x06",
            b"\x07\x20",
            br#"{"type":"ping"}"#,
        ]),
    ]
}

fn elevenlabs() -> Vec<Vec<u8>> {
    vec![
        joined(&[
            br#"{"text":" ","context_id":"a","voice_settings":{"speed":1.0},"generation_config":{"chunk_length_schedule":[5]}}"#,
            br#"{"text":"One two. Three ","context_id":"a","try_trigger_generation":true}"#,
            b"\x02\x40One",
            br#"{"text":"Other. ","context_id":"b","flush":true}"#,
            br#"{"context_id":"a","close_context":true}"#,
            b"\x03",
            b"\x02\x40Other",
            br#"{"close_socket":true}"#,
            b"\x03",
        ]),
        joined(&[br#"{"text":"Hi. ","flush":true,"xi_api_key":"x"}"#, b"\x04", br#"{"text":""}"#, br#"{"text":7}"#]),
    ]
}

fn realtime() -> Vec<Vec<u8>> {
    vec![
        joined(&[
            br#"{"type":"session.update","session":{"type":"realtime","audio":{"input":{"turn_detection":null,"format":{"type":"audio/pcmu"}}}}}"#,
            br#"{"type":"conversation.item.create","item":{"id":"a","type":"message","role":"user","content":[{"type":"input_text","text":"Hi."}]}}"#,
            br#"{"type":"response.create","response":{"max_output_tokens":9}}"#,
            b"\x02\x40Hello",
            b"\x02\x40 you",
            br#"{"type":"response.cancel"}"#,
            b"\x03",
            br#"{"type":"conversation.item.truncate","item_id":"a","content_index":0,"audio_end_ms":1}"#,
            br#"{"type":"conversation.item.retrieve","item_id":"a"}"#,
            br#"{"type":"conversation.item.delete","item_id":"a"}"#,
        ]),
        joined(&[
            br#"{"type":"input_audio_buffer.append","event_id":"e","audio":"AAAQABAAEAA="}"#,
            br#"{"type":"input_audio_buffer.commit"}"#,
            br#"{"type":"input_audio_buffer.clear"}"#,
            br#"{"type":"session.update","session":{"type":"transcription","audio":{"input":{"turn_detection":{"type":"server_vad","threshold":0.1}}}}}"#,
        ]),
    ]
}

fn live() -> Vec<Vec<u8>> {
    vec![
        joined(&[
            br#"{"type":"session.config","model":"listener","language":"en","prompt":"Names.","sample_rate":16000,"latency_ms":200,"word_times":true,"silence_duration_ms":200}"#,
            b"\x05\x0a\x02",
            b"\x02\x00 And so my",
            b"\x03",
            b"\x05\x0a\x0c",
            b"\x02\x00 And so my fellow",
            b"\x03",
            br#"{"type":"input.flush"}"#,
            b"\x02\x00 And so my fellow a a a a",
            b"\x03",
            b"\x05\x28\x00",
            b"\x04",
            br#"{"type":"input.done"}"#,
            b"\x03",
        ]),
        joined(&[
            br#"{"type":"session.config","encoding":"mulaw","sample_rate":8000,"threshold":0.1,"prefix_padding_ms":0}"#,
            b"\x01\x80\x90\xa0\x10",
            b"\x05\xf0\x00",
            b"\x02\x00 word",
            b"\x03\x03",
            br#"{"type":"ping"}"#,
            b"\x05\xf0\x10",
            b"\x02\x00 other",
            b"\x03",
        ]),
    ]
}

/// Bytes of a tenth of a second of 16-bit samples at 16 kHz.
const TENTH: usize = 3_200;
/// Recorded audio of one input: under coverage the detector takes 60 ms for a second of it.
const MAX_SPOKEN_BYTES: usize = 80 * TENTH;

/// Some tenths of a second of a recording, as 16-bit samples at 16 kHz, from one of its tenths on.
fn spoken(tenths: u8, from: u8) -> &'static [u8] {
    static RECORDING: OnceLock<Vec<u8>> = OnceLock::new();
    let samples = RECORDING.get_or_init(|| file("assets/speech/jfk.wav").split_off(44));
    let from = (usize::from(from) * TENTH).min(samples.len());
    let to = (from + usize::from(tenths) * TENTH).min(samples.len());
    &samples[from..to]
}

/// A step for each piece: a message, or a control character and its argument. `left` are the bytes of recorded audio that the
/// input may still have.
fn step<'a>(piece: &'a [u8], left: &mut usize) -> Option<Step<'a>> {
    let number = |at: usize| piece.get(at).copied().unwrap_or_default();
    Some(match piece.first()? {
        1 => Step::Binary(&piece[1..]),
        2 => Step::Chunk(usize::from(number(1)), std::str::from_utf8(piece.get(2..)?).ok()?),
        3 => Step::End,
        5 => {
            let audio = spoken(number(1), number(2));
            let audio = &audio[..audio.len().min(*left)];
            *left -= audio.len();
            Step::Binary(audio)
        }
        4 => Step::Fail,
        6 => Step::Send,
        7 => Step::Rewind(u64::from(number(1)) | u64::from(number(2)) << 8),
        _ => Step::Text(std::str::from_utf8(piece).ok()?),
    })
}

/// Each frame is an object, with a type in Izwi's own protocols; those that repeat no text are short.
fn run(bytes: &[u8], kind: Kind) {
    let mut left = MAX_SPOKEN_BYTES;
    let pieces = bytes.split(|byte| *byte == SEPARATOR);
    let steps: Vec<Step<'_>> = pieces.filter_map(|piece| step(piece, &mut left)).collect();
    let frames = Service::with(|service| {
        service.runtime.block_on(async {
            match kind {
                Kind::Speech => fuzzing::speech(&service.state, &steps).await,
                Kind::Chat => fuzzing::chat(&service.state, &steps).await,
                Kind::Live => fuzzing::live(&service.state, &steps).await,
                Kind::ElevenLabs => izwi_dialects::fuzzing::elevenlabs(&service.state, &steps).await,
                Kind::Realtime => izwi_dialects::fuzzing::realtime(&service.state, &steps).await,
            }
        })
    });
    // Events of the Realtime API repeat the session, and errors the id of their event.
    let (most_alone, repeats) = match kind {
        Kind::Speech | Kind::Chat | Kind::Live => (MAX_FRAME_BYTES, 0),
        // Errors and the ends of contexts repeat the id of their context.
        Kind::ElevenLabs => (MAX_FRAME_BYTES, 8 * bytes.len()),
        Kind::Realtime => (2 * MAX_FRAME_BYTES, bytes.len()),
    };
    for frame in frames {
        let value: Value = serde_json::from_str(&frame).expect("a frame of JSON");
        let is_error = match kind {
            Kind::ElevenLabs => value["error"].is_string(),
            _ => value["type"].as_str().expect("a type") == "error",
        };
        // Messages of audio of ElevenLabs hold all chunks since the last character.
        // A word of a live transcript has its times.
        let per_byte = match kind {
            Kind::ElevenLabs => 400,
            Kind::Live => 80,
            _ => 8,
        };
        let most = most_alone + if is_error { repeats } else { per_byte * bytes.len() };
        assert!(frame.len() <= most, "a frame of {} bytes: {frame}", frame.len());
    }
}
