//! WebSocket frames of every kind of session: of the wrong type, in the wrong order, oversized, in fragments, broken.

use anyhow::{Context, Result, ensure};
use izwi_tests::{Dice, Incoming, Session};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};

use super::{LISTENER, MAX_ERROR_BYTES, PARTNER, REAL, SPEAKER, Victim};

/// Sessions of each kind, and frames in each.
const SESSIONS: usize = 16;
const FRAMES: usize = 30;

const MEMBERS: [&str; 28] = [
    "encoding",
    "sample_rate",
    "latency_ms",
    "prompt",
    "threshold",
    "prefix_padding_ms",
    "silence_duration_ms",
    "model",
    "voice",
    "language",
    "instructions",
    "seed",
    "speed",
    "response_format",
    "chunk_ms",
    "first_chunk_ms",
    "priority",
    "input_sample_rate",
    "text_temperature",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "max_tokens",
    "non_streaming_mode",
    "ref_audio",
    "ref_text",
    "x_vector_only_mode",
];

/// Sends hostile frames in many sessions. Returns how many were sent.
pub(super) async fn attack(victim: &Victim) -> Result<usize> {
    let mut dice = Dice::new(0xf4a3);
    let mut sent = 0;
    let live = format!("ws://{}/v1/audio/transcriptions/stream", victim.server.address);
    for index in 0..3 * SESSIONS {
        let (kind, index) = (index % 3, index / 3);
        let mut session = match kind {
            0 => victim.server.session().await?,
            1 => victim.server.chat().await?,
            _ => Session::open(&live).await?,
        };
        if index % 2 == 0 {
            let model = match (kind, index % 4) {
                (0, _) => SPEAKER,
                (1, 0) => PARTNER,
                (1, _) => REAL,
                _ => LISTENER,
            };
            session.send(json!({"type": "session.config", "model": model, "max_tokens": 3})).await?;
        }
        for _ in 0..FRAMES {
            sent += 1;
            let message = hostile(&mut dice);
            let shown = format!("{message:?}").chars().take(200).collect::<String>();
            if session.send_raw(message).await.is_err() || !answers(&mut session).await.context(shown)? {
                break;
            }
        }
    }
    Ok(sent)
}

/// Whether the session still answers a ping; false if the server has closed it.
async fn answers(session: &mut Session) -> Result<bool> {
    if session.send(json!({"type": "ping"})).await.is_err() {
        return Ok(false);
    }
    loop {
        match session.next().await? {
            Incoming::Frame(frame) if frame["type"] == "pong" => return Ok(true),
            Incoming::Frame(frame) if frame["type"] == "error" => check_error(&frame)?,
            Incoming::Frame(_) | Incoming::Audio(_) => {}
            Incoming::Closed(_) => return Ok(false),
        }
    }
}

fn check_error(frame: &Value) -> Result<()> {
    let text = frame.to_string();
    ensure!(text.len() <= MAX_ERROR_BYTES, "an error of {} bytes", text.len());
    let is_text = |member: &str| frame[member].as_str().is_some_and(|text| !text.is_empty());
    ensure!(is_text("code") && is_text("message"), "{text}");
    ensure!(frame["code"] != "internal_error", "{text}");
    Ok(())
}

fn hostile(dice: &mut Dice) -> Message {
    // Few of those that end the session.
    let kind = match dice.roll(20) {
        3..=7 if dice.roll(6) > 0 => 18,
        kind => kind,
    };
    let text = match kind {
        0 => return Message::binary(dice.bytes(5_000)),
        1 => return Message::binary(vec![0; 1 + 2 * dice.roll(500)]),
        2 => return Message::text("x".repeat(256 << 10)),
        3 => return Message::text("x".repeat((256 << 10) + 1 + dice.roll(100))),
        // Fragments: the end of nothing, a part without its end, a reserved code.
        4 => return raw(OpCode::Data(Data::Continue), true, dice.bytes(40)),
        5 => return raw(OpCode::Data(Data::Text), false, b"{\"type\":".to_vec()),
        6 if dice.roll(3) == 0 => return raw(OpCode::Data(Data::Reserved(3)), true, dice.bytes(40)),
        6 if dice.roll(2) == 0 => return raw(OpCode::Control(Control::Reserved(11)), true, Vec::new()),
        7 => return raw(OpCode::Data(Data::Text), true, [&b"{\"type\":\""[..], &dice.bytes(40)].concat()),
        8 => json!({"type": dice.pick(&["input.done", "input.flush", "interrupt", "input.audio.commit"])}),
        9 => {
            json!({"type": "playback.ack", "played_ms": u64::MAX, "utterance": dice.roll(3), "turn": u64::MAX})
        }
        10 => json!({"type": "interrupt", "played_ms": dice.wrong()}),
        11 => {
            json!({"type": "session.resume", "session_id": dice.text(99), "resume_token": dice.text(99), "next_sample": u64::MAX})
        }
        12 => json!({"type": dice.pick(&["input.text", "speak"]), "text": dice.wrong()}),
        13 => json!({"type": dice.pick(&["input.text", "speak"]), "text": dice.text(300)}),
        14 => json!({"type": "speak", "text": "Hi.", dice.pick(&MEMBERS): dice.wrong()}),
        15 => json!({"type": dice.text(200_000 / 40)}),
        16 => json!({"type": "session.config", dice.pick(&MEMBERS): "\u{7f}".repeat(dice.roll(100_000))}),
        17 => return Message::text("[".repeat(1 + dice.roll(60_000))),
        18 => return Message::text(dice.text(400)),
        _ => json!({"type": "session.config", dice.pick(&MEMBERS): dice.wrong()}),
    };
    Message::text(text.to_string())
}

fn raw(code: OpCode, is_final: bool, payload: Vec<u8>) -> Message {
    let header = FrameHeader { is_final, opcode: code, ..FrameHeader::default() };
    Message::Frame(Frame::from_payload(header, payload.into()))
}
