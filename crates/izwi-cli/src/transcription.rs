//! Transcription: many recordings through one engine concurrently, their transcripts in the order of the recordings.
//!
//! Knows recordings as futures of their bytes. Knows no destination of the transcripts.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use izwi_core::engine::known_speakers::{KnownSpeaker, named};
use izwi_core::engine::speakers::SpeakerJoin;
use izwi_core::engine::{
    AudioInput, Engine, EngineCoreConfig, EngineCoreRequest, RequestStats, Segment, Transcript,
};

use crate::engine::OutputStream;
use crate::interrupt::Interrupt;

/// Batches in memory: the second is ready when the first is done.
const BATCHES_IN_MEMORY: usize = 2;

/// The result for one recording.
#[derive(Debug)]
pub(crate) struct Transcription {
    /// Segments with their times, and the language.
    pub(crate) transcript: Transcript,
    /// When each speaker speaks, where that is asked.
    pub(crate) turns: Vec<Segment>,
    /// Statistics of the engine.
    pub(crate) stats: RequestStats,
}

/// A progress event; recordings are identified by their index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Event<'a> {
    /// The file was read: its bytes.
    Read(usize, &'a [u8]),
    /// The recording is transcribed up to this time, in seconds.
    Reached(usize, f64),
    /// The recording is transcribed or has failed.
    Done(usize),
}

/// The models that hear recordings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Engines<'a> {
    /// Tells what is said.
    pub(crate) text: &'a Engine,
    /// Tells who says it, where that is asked.
    pub(crate) speakers: Option<&'a Engine>,
    /// Speakers whose names are known.
    pub(crate) known: &'a [KnownSpeaker],
}

impl<'a> From<&'a Engine> for Engines<'a> {
    fn from(text: &'a Engine) -> Self {
        Self { text, speakers: None, known: &[] }
    }
}

/// Number of concurrent recordings: enough to keep the engine busy, too few to overload it.
pub(crate) fn concurrency(config: &EngineCoreConfig) -> usize {
    (config.max_batch_size * BATCHES_IN_MEMORY).clamp(1, config.max_waiting_requests.max(1))
}

/// Reads and transcribes all recordings; delivers each result as soon as it and all before it are complete.
///
/// `request` makes the request for a file. The failure of one recording is its result; the others continue.
///
/// # Errors
/// `deliver` fails, or the process is interrupted.
pub(crate) async fn transcribe_all<'a, R>(
    engines: impl Into<Engines<'a>>,
    recordings: Vec<R>,
    request: impl Fn(AudioInput) -> EngineCoreRequest,
    interrupt: &mut Interrupt,
    on_event: impl Fn(Event<'_>),
    mut deliver: impl FnMut(usize, Result<Transcription>) -> Result<()>,
) -> Result<()>
where
    R: Future<Output = Result<Vec<u8>>>,
{
    let (engines, request, on_event) = (engines.into(), &request, &on_event);
    let work = recordings.into_iter().enumerate().map(|(index, recording)| async move {
        let work = async {
            let file = recording.await?;
            on_event(Event::Read(index, &file));
            let reached = |seconds| on_event(Event::Reached(index, seconds));
            let audio = AudioInput::File(file.into());
            let mut text = request(audio);
            let turns =
                engines.speakers.map(|speakers| transcribe(speakers, text.split_diarization(), |_| {}));
            let text = transcribe(engines.text, text, reached);
            let Some(turns) = turns else { return text.await };
            let (mut done, turns) = tokio::try_join!(text, turns)?;
            let segments = std::mem::take(&mut done.transcript.segments);
            done.turns = named(turns.transcript.segments, engines.known)?;
            done.transcript.segments = SpeakerJoin::whole(segments, done.turns.clone());
            Ok(done)
        };
        let result = work.await;
        on_event(Event::Done(index));
        (index, result)
    });
    let mut results = futures::stream::iter(work).buffer_unordered(concurrency(engines.text.config()));
    let delivered = async {
        let (mut early, mut next) = (BTreeMap::new(), 0);
        while let Some((index, result)) = results.next().await {
            early.insert(index, result);
            while let Some(result) = early.remove(&next) {
                deliver(next, result)?;
                next += 1;
            }
        }
        Ok(())
    };
    // An interrupt drops the futures, which aborts their requests.
    interrupt.guard(delivered).await
}

/// Transcribes one recording; calls `reached` with the end of the last segment, in seconds.
async fn transcribe(
    engine: &Engine,
    request: EngineCoreRequest,
    reached: impl Fn(f64),
) -> Result<Transcription> {
    let mut chunks = OutputStream::start(engine, request).await?;
    let mut transcript = Transcript::default();
    loop {
        let chunk = chunks.next().await?;
        transcript.segments.extend(chunk.segments);
        transcript.language = chunk.language.or(transcript.language);
        if let Some(last) = transcript.segments.last() {
            reached(last.end_s);
        }
        if let Some(stats) = chunk.stats {
            return Ok(Transcription { transcript, turns: Vec::new(), stats });
        }
    }
}

/// The duration of a WAV file by its header; `None` for other formats, which have to be decoded.
pub(crate) fn wav_duration(file: &[u8]) -> Option<Duration> {
    let word = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    if file.get(..4)? != b"RIFF" || file.get(8..12)? != b"WAVE" {
        return None;
    }
    let (mut at, mut bytes_per_second) = (12_usize, None);
    loop {
        let size = word(at + 4)?;
        match file.get(at..at + 4)? {
            b"fmt " => bytes_per_second = word(at + 16).filter(|rate| *rate > 0),
            b"data" => {
                // The header of a stream has no length.
                let bytes = (size as usize).min(file.len().saturating_sub(at + 8));
                return Some(Duration::from_secs_f64(bytes as f64 / f64::from(bytes_per_second?)));
            }
            _ => {}
        }
        at = at.checked_add(8 + size as usize + (size as usize & 1))?;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};

    use super::*;
    use crate::failure::Failure;

    const RATE_HZ: u32 = 24_000;

    fn engine(config: EngineCoreConfig, step_time: Duration) -> Engine {
        let model = SimulatedModel {
            transcribes: true,
            sample_rate: RATE_HZ,
            step_time,
            ..SimulatedModel::default()
        };
        let executor = SimulatedExecutor::new(&config, model);
        Engine::with_executor(config, Box::new(executor)).unwrap()
    }

    fn wav(seconds: usize) -> Vec<u8> {
        izwi_audio::wav::to_bytes(&vec![0.1; seconds * RATE_HZ as usize], RATE_HZ).unwrap()
    }

    /// Transcribes and returns the deliveries: index, and text or error.
    async fn transcribed(engine: &Engine, recordings: Vec<Result<Vec<u8>>>) -> Vec<(usize, String)> {
        let mut interrupt = Interrupt::listen().unwrap();
        let mut delivered = Vec::new();
        let recordings = recordings.into_iter().map(std::future::ready).collect();
        let deliver = |index, result: Result<Transcription>| {
            let text = result.map_or_else(|error| format!("error: {error}"), |done| done.transcript.text());
            delivered.push((index, text));
            Ok(())
        };
        transcribe_all(engine, recordings, EngineCoreRequest::asr, &mut interrupt, |_| {}, deliver)
            .await
            .unwrap();
        delivered
    }

    #[tokio::test]
    async fn transcripts_are_delivered_in_order() {
        let engine = engine(EngineCoreConfig::default(), Duration::ZERO);
        let delivered = transcribed(&engine, vec![Ok(wav(5)), Ok(wav(1)), Ok(wav(2))]).await;
        let expected = ["word0 word1 word2 word3 word4", "word0", "word0 word1"];
        assert_eq!(delivered, expected.map(str::to_owned).into_iter().enumerate().collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_failed_recording_does_not_stop_the_others() {
        let engine = engine(EngineCoreConfig::default(), Duration::ZERO);
        let lost = Err(anyhow::anyhow!("no such file"));
        let delivered =
            transcribed(&engine, vec![Ok(b"nonsense".to_vec()), Ok(wav(1)), lost, Ok(wav(2))]).await;
        assert!(delivered[0].1.starts_with("error: audio has no supported format"), "{delivered:?}");
        assert_eq!((delivered[1].1.as_str(), delivered[3].1.as_str()), ("word0", "word0 word1"));
        assert_eq!(delivered[2].1, "error: no such file");
    }

    #[tokio::test]
    async fn a_small_engine_is_not_overloaded() {
        let config = EngineCoreConfig {
            max_waiting_requests: 1,
            max_running_requests: 1,
            max_batch_size: 1,
            ..EngineCoreConfig::default()
        };
        assert_eq!(concurrency(&config), 1);
        let engine = engine(config, Duration::ZERO);
        let delivered = transcribed(&engine, (0..40).map(|_| Ok(wav(1))).collect()).await;
        assert_eq!(delivered.len(), 40);
        assert!(delivered.iter().all(|(_, text)| text == "word0"), "{delivered:?}");
        assert_eq!(concurrency(&EngineCoreConfig::default()), 16);
    }

    #[tokio::test]
    async fn events_report_the_progress_of_a_recording() {
        let engine = engine(EngineCoreConfig::default(), Duration::ZERO);
        let seen = RefCell::new(Vec::new());
        let on_event = |event: Event<'_>| {
            seen.borrow_mut().push(match event {
                Event::Read(_, file) => wav_duration(file).unwrap().as_secs_f64(),
                Event::Reached(_, seconds) => seconds,
                Event::Done(_) => -1.0,
            });
        };
        let recordings = vec![std::future::ready(Ok(wav(2)))];
        let mut interrupt = Interrupt::listen().unwrap();
        transcribe_all(&engine, recordings, EngineCoreRequest::asr, &mut interrupt, on_event, |_, _| Ok(()))
            .await
            .unwrap();
        let mut seen = seen.into_inner();
        seen.dedup();
        assert_eq!(seen, [2.0, 1.0, 2.0, -1.0], "the duration, each second, the end");
    }

    #[tokio::test]
    async fn a_closed_output_aborts_all_requests() {
        let engine = engine(EngineCoreConfig::default(), Duration::from_millis(1));
        let lengths = [1, 60, 60, 60];
        let recordings = lengths.map(|seconds| std::future::ready(Ok(wav(seconds)))).into_iter().collect();
        let mut interrupt = Interrupt::listen().unwrap();
        let closed = |_, _| Err(Failure::OutputClosed.into());
        let ended =
            transcribe_all(&engine, recordings, EngineCoreRequest::asr, &mut interrupt, |_| {}, closed).await;
        assert!(ended.is_err());
        let begun = std::time::Instant::now();
        while engine.status().running + engine.status().pending > 0 {
            assert!(begun.elapsed().as_secs() < 60, "requests continue");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn the_duration_of_a_wav_is_read_from_its_header() {
        assert_eq!(wav_duration(&wav(3)), Some(Duration::from_secs(3)));
        let streamed = [&izwi_audio::wav::streaming_header(RATE_HZ)[..], &[0; 48_000]].concat();
        assert_eq!(wav_duration(&streamed), Some(Duration::from_secs(1)));
        for file in [&b"RIFF"[..], b"", b"ID3 and so on and so forth", &wav(1)[..30]] {
            assert_eq!(wav_duration(file), None);
        }
    }
}
