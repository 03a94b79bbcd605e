//! One message while it is spoken: audio, index marks at their times, and its end.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde::Deserialize;
use sse_stream::{Sse, SseByteStream};
use tokio::sync::watch;

use super::message::{Cue, Utterance};
use super::parameters::Parameters;
use super::protocol::{Event, MAX_EVENT_SAMPLES, Output};
use super::sound::Sound;
use super::speaker::Speaker;

/// The most bytes of an answer: about a quarter of an hour of speech.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// What the marks begin with that Speech Dispatcher sets, at which a text can be paused.
const PAUSE_MARK: &str = "__spd_";

/// What Speech Dispatcher wants of the message that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Speech,
    /// To pause at the next mark.
    Pause,
    Silence,
}

/// How a message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Complete,
    Paused,
    Stopped,
}

/// An event of the server.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum ServerEvent {
    #[serde(rename = "speech.audio.word")]
    Word { text: String, start_ms: u64 },
    #[serde(rename = "speech.audio.delta")]
    Delta { audio: String },
    #[serde(rename = "speech.audio.done")]
    Done,
    /// An error, or an event of a newer server.
    #[serde(untagged)]
    Other(serde_json::Value),
}

/// A message that is spoken.
#[derive(Debug)]
pub(super) struct Speech {
    pub(super) speaker: Arc<Speaker>,
    pub(super) output: Arc<Output>,
    pub(super) wanted: watch::Receiver<Wanted>,
    pub(super) parts: Vec<Utterance>,
    pub(super) parameters: Parameters,
}

impl Speech {
    /// Speaks it. A failure is logged, and ends the message as a stop does.
    ///
    /// # Errors
    /// Speech Dispatcher has closed the pipe.
    pub(super) async fn run(self) -> io::Result<()> {
        self.output.send(&Event::Begin).await?;
        let ended = self.speak().await.unwrap_or_else(|error| {
            tracing::warn!("a message is not spoken: {error:#}");
            Ended::Stopped
        });
        let event = match ended {
            Ended::Complete => Event::End,
            Ended::Paused => Event::Pause,
            Ended::Stopped => Event::Stop,
        };
        self.output.send(&event).await
    }

    async fn speak(&self) -> Result<Ended> {
        for part in &self.parts {
            let ended = self.speak_part(part).await?;
            if ended != Ended::Complete {
                return Ok(ended);
            }
        }
        Ok(Ended::Complete)
    }

    async fn speak_part(&self, part: &Utterance) -> Result<Ended> {
        let mut wanted = self.wanted.clone();
        let mut playback = Playback::of(self, part);
        if !part.markup.is_empty() {
            let asked = self.speaker.speak(&part.markup, &self.parameters);
            let answer = tokio::select! {
                biased;
                () = silence(&mut wanted) => return Ok(Ended::Stopped),
                answer = asked => answer?,
            };
            let rate_hz =
                izwi_dialects::mcp::tools::sample_rate_hz(answer.headers()).map_err(anyhow::Error::msg)?;
            let mut sound = Sound::new(rate_hz, &self.parameters)?;
            let mut events = events(answer);
            let mut words_end = 0;
            loop {
                let event = tokio::select! {
                    biased;
                    () = silence(&mut wanted) => return Ok(Ended::Stopped),
                    event = next(&mut events) => event?,
                };
                let samples = match event {
                    ServerEvent::Word { text, start_ms } => {
                        if let Some((due, end)) = part.due(&text, words_end, playback.planned) {
                            words_end = end;
                            playback.plan(start_ms * u64::from(rate_hz) / 1_000, due);
                        }
                        continue;
                    }
                    ServerEvent::Delta { audio } => sound.push(&samples(&audio)?)?,
                    ServerEvent::Done => break,
                    ServerEvent::Other(event) if event["type"] == "error" || event["error"].is_object() => {
                        anyhow::bail!("the server failed: {event}")
                    }
                    ServerEvent::Other(_) => continue,
                };
                if let Some(ended) = playback.play(&samples, &sound).await? {
                    return Ok(ended);
                }
            }
            let rest = sound.finish()?;
            if let Some(ended) = playback.play(&rest, &sound).await? {
                return Ok(ended);
            }
        }
        Ok(playback.tell(part.cues.len(), None).await?.unwrap_or(Ended::Complete))
    }
}

/// What has been told of a part, and what is due when.
#[derive(Debug)]
struct Playback<'a> {
    speech: &'a Speech,
    part: &'a Utterance,
    /// Samples that were sent, without those of cues.
    sent: u64,
    /// Cues that were told, and those whose time is known.
    told: usize,
    planned: usize,
    /// A sample of the source, and how many cues are told there.
    due: VecDeque<(u64, usize)>,
}

impl<'a> Playback<'a> {
    fn of(speech: &'a Speech, part: &'a Utterance) -> Self {
        Self { speech, part, sent: 0, told: 0, planned: 0, due: VecDeque::new() }
    }

    fn plan(&mut self, sample: u64, count: usize) {
        self.planned += count;
        if count > 0 {
            self.due.push_back((sample, self.planned));
        }
    }

    /// Sends samples, and what is due between them. Returns how the message ended, if it did.
    async fn play(&mut self, mut samples: &[i16], sound: &Sound) -> io::Result<Option<Ended>> {
        while !samples.is_empty() {
            let until = self.due.front().map(|(sample, _)| sound.place(*sample).saturating_sub(self.sent));
            if let Some(0) = until {
                let upto = self.due.pop_front().map_or(self.told, |(_, upto)| upto);
                if let Some(ended) = self.tell(upto, Some(sound)).await? {
                    return Ok(Some(ended));
                }
                continue;
            }
            let count = samples.len().min(MAX_EVENT_SAMPLES);
            let count = until.map_or(count, |until| count.min(usize::try_from(until).unwrap_or(count)));
            let (now, later) = samples.split_at(count);
            if self.is_stopped() {
                return Ok(Some(Ended::Stopped));
            }
            self.send(now.to_vec(), sound).await?;
            self.sent += count as u64;
            samples = later;
        }
        Ok(None)
    }

    /// Tells the cues before `upto`; a pause that is wanted begins after a mark for it.
    async fn tell(&mut self, upto: usize, sound: Option<&Sound>) -> io::Result<Option<Ended>> {
        let speech = self.speech;
        for (_, cue) in &self.part.cues[self.told..upto.max(self.told)] {
            if self.is_stopped() {
                return Ok(Some(Ended::Stopped));
            }
            self.told += 1;
            match (cue, sound) {
                (Cue::Mark(name), _) => {
                    speech.output.send(&Event::IndexMark(name.clone())).await?;
                    if name.starts_with(PAUSE_MARK) && *speech.wanted.borrow() == Wanted::Pause {
                        return Ok(Some(Ended::Paused));
                    }
                }
                (Cue::Capital, Some(sound)) => self.send(sound.tone(), sound).await?,
                (Cue::Capital, None) => {}
            }
        }
        Ok(None)
    }

    async fn send(&self, samples: Vec<i16>, sound: &Sound) -> io::Result<()> {
        self.speech.output.send(&Event::Audio { rate_hz: sound.rate_hz(), samples }).await
    }

    fn is_stopped(&self) -> bool {
        *self.speech.wanted.borrow() == Wanted::Silence
    }
}

/// Waits until silence is wanted.
async fn silence(wanted: &mut watch::Receiver<Wanted>) {
    // Who no longer tells wants nothing more either.
    let _ = wanted.wait_for(|wanted| *wanted == Wanted::Silence).await;
}

/// The events of an answer, as long as they are of one utterance.
fn events(answer: reqwest::Response) -> BoxStream<'static, Result<Sse, sse_stream::Error>> {
    let bounded = answer.bytes_stream().scan(0, |total, part| {
        *total += part.as_ref().map_or(0, Bytes::len);
        let is_bounded = *total <= MAX_ANSWER_BYTES;
        let too_long = || io::Error::other(format!("it sent more than {MAX_ANSWER_BYTES} bytes"));
        let part = part.map_err(io::Error::other);
        std::future::ready(Some(part.and_then(|part| is_bounded.then_some(part).ok_or_else(too_long))))
    });
    SseByteStream::new(bounded).boxed()
}

/// The next event of the server.
async fn next(events: &mut BoxStream<'static, Result<Sse, sse_stream::Error>>) -> Result<ServerEvent> {
    loop {
        let event = events.next().await.context("the server ended before the speech")?;
        let event = event.context("the connection to the server is lost")?;
        if let Some(data) = event.data {
            return serde_json::from_str(&data).context("the server sent no event");
        }
    }
}

/// Samples of 16 bits in base64.
fn samples(audio: &str) -> Result<Vec<f32>> {
    let bytes = STANDARD.decode(audio).context("the server sent no audio")?;
    let (pairs, _) = bytes.as_chunks::<2>();
    Ok(pairs.iter().map(|&pair| f32::from(i16::from_le_bytes(pair)) / 32_768.0).collect())
}
