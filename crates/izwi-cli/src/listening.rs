//! Listening in this process: many recordings through one engine at once, their transcripts in the order given.
//!
//! Knows where recordings come from only as futures of their bytes, and not where transcripts go.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use izwi_core::engine::{
    AudioInput, Engine, EngineCoreConfig, EngineCoreRequest, FinishReason, RequestStats, Transcript,
};

use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// Recordings are in memory while the engine has them: a second batch is ready when the first is done, not more.
const BATCHES_UNDER_WAY: usize = 2;

/// What was heard in one recording.
#[derive(Debug)]
pub(crate) struct Heard {
    /// The words and when they were said.
    pub(crate) transcript: Transcript,
    /// The engine's numbers.
    pub(crate) stats: RequestStats,
}

/// The course of the work, as it happens; recordings are named by their place in the list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Course<'a> {
    /// A recording was read: its file.
    Read(usize, &'a [u8]),
    /// A recording was heard up to this time, in seconds.
    Reached(usize, f64),
    /// A recording is done, well or not.
    Done(usize),
}

/// How many recordings are under way at once: enough to keep the engine busy, too few to overload it.
pub(crate) fn under_way(config: &EngineCoreConfig) -> usize {
    (config.max_batch_size * BATCHES_UNDER_WAY).clamp(1, config.max_waiting_requests.max(1))
}

/// Reads and transcribes all recordings and hands on each result as soon as it and all before it are there.
///
/// `request` makes the request of a recording out of its file. What fails for one recording is its result; the others
/// go on.
///
/// # Errors
/// `deliver` fails, or the process was interrupted.
pub(crate) async fn listen<R>(
    engine: &Engine,
    recordings: Vec<R>,
    request: impl Fn(AudioInput) -> EngineCoreRequest,
    interrupt: &mut Interrupt,
    course: impl Fn(Course<'_>),
    mut deliver: impl FnMut(usize, Result<Heard>) -> Result<()>,
) -> Result<()>
where
    R: Future<Output = Result<Vec<u8>>>,
{
    let (request, course) = (&request, &course);
    let hearing = recordings.into_iter().enumerate().map(|(index, recording)| async move {
        let heard = async {
            let file = recording.await?;
            course(Course::Read(index, &file));
            let reached = |seconds| course(Course::Reached(index, seconds));
            hear(engine, request(AudioInput::File(file.into())), reached).await
        };
        let heard = heard.await;
        course(Course::Done(index));
        (index, heard)
    });
    let mut results = futures::stream::iter(hearing).buffer_unordered(under_way(engine.config()));
    let (mut early, mut next) = (BTreeMap::new(), 0);
    loop {
        let result = tokio::select! {
            result = results.next() => result,
            // Dropping the stream aborts what is under way.
            () = interrupt.requested() => return Err(Failure::Interrupted.into()),
        };
        let Some((index, heard)) = result else { return Ok(()) };
        early.insert(index, heard);
        while let Some(heard) = early.remove(&next) {
            deliver(next, heard)?;
            next += 1;
        }
    }
}

/// Transcribes one recording; `reached` hears up to where, in seconds, as that moves on.
async fn hear(engine: &Engine, request: EngineCoreRequest, reached: impl Fn(f64)) -> Result<Heard> {
    let (_, mut chunks) = engine.generate_streaming(request).await?;
    let mut transcript = Transcript::default();
    while let Some(chunk) = chunks.recv().await {
        transcript.segments.extend(chunk.segments);
        transcript.language = chunk.language.or(transcript.language);
        if let Some(last) = transcript.segments.last() {
            reached(last.end_s);
        }
        if let Some(stats) = chunk.stats {
            if let Some(error) = &stats.error {
                anyhow::bail!("the model failed: {error}");
            }
            return Ok(Heard { transcript, stats });
        }
    }
    anyhow::bail!("the engine ended before the transcript did")
}

/// What to tell a person about an end that was not the recording's own; `None` for a good one.
pub(crate) fn cut_short(reason: FinishReason) -> Option<&'static str> {
    match reason {
        FinishReason::Stop => None,
        FinishReason::Length => Some("the transcript was cut at the length limit"),
        FinishReason::RunawayTrimmed => Some("the model did not come to an end by itself and was cut"),
        FinishReason::Cancelled | FinishReason::Interrupted => Some("the transcription was cancelled"),
        FinishReason::Error => Some("the model failed"),
    }
}

/// The length of a WAV file by its header; `None` for other files, whose length only decoding tells.
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
                // A stream's header promises more than there is.
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

    /// Transcribes and returns what was delivered: the place and the text, or the error.
    async fn heard(engine: &Engine, recordings: Vec<Result<Vec<u8>>>) -> Vec<(usize, String)> {
        let mut interrupt = Interrupt::listen().unwrap();
        let mut delivered = Vec::new();
        let recordings = recordings.into_iter().map(std::future::ready).collect();
        let deliver = |index, heard: Result<Heard>| {
            let text = heard.map_or_else(|error| format!("error: {error}"), |heard| heard.transcript.text());
            delivered.push((index, text));
            Ok(())
        };
        listen(engine, recordings, EngineCoreRequest::asr, &mut interrupt, |_| {}, deliver).await.unwrap();
        delivered
    }

    #[tokio::test]
    async fn transcripts_come_in_order_whatever_their_length() {
        let engine = engine(EngineCoreConfig::default(), Duration::ZERO);
        let delivered = heard(&engine, vec![Ok(wav(5)), Ok(wav(1)), Ok(wav(2))]).await;
        let expected = ["word0 word1 word2 word3 word4", "word0", "word0 word1"];
        assert_eq!(delivered, expected.map(str::to_owned).into_iter().enumerate().collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn one_bad_recording_leaves_the_others_alone() {
        let engine = engine(EngineCoreConfig::default(), Duration::ZERO);
        let lost = Err(anyhow::anyhow!("no such file"));
        let delivered = heard(&engine, vec![Ok(b"nonsense".to_vec()), Ok(wav(1)), lost, Ok(wav(2))]).await;
        assert!(delivered[0].1.starts_with("error: audio is"), "{delivered:?}");
        assert_eq!((delivered[1].1.as_str(), delivered[3].1.as_str()), ("word0", "word0 word1"));
        assert_eq!(delivered[2].1, "error: no such file");
    }

    #[tokio::test]
    async fn a_small_engine_is_never_overloaded() {
        let config = EngineCoreConfig {
            max_waiting_requests: 1,
            max_running_requests: 1,
            max_batch_size: 1,
            ..EngineCoreConfig::default()
        };
        assert_eq!(under_way(&config), 1);
        let engine = engine(config, Duration::ZERO);
        let delivered = heard(&engine, (0..40).map(|_| Ok(wav(1))).collect()).await;
        assert_eq!(delivered.len(), 40);
        assert!(delivered.iter().all(|(_, text)| text == "word0"), "{delivered:?}");
        assert_eq!(under_way(&EngineCoreConfig::default()), 16);
    }

    #[tokio::test]
    async fn the_course_tells_how_far_each_recording_is() {
        let engine = engine(EngineCoreConfig::default(), Duration::ZERO);
        let seen = RefCell::new(Vec::new());
        let course = |event: Course<'_>| {
            seen.borrow_mut().push(match event {
                Course::Read(_, file) => wav_duration(file).unwrap().as_secs_f64(),
                Course::Reached(_, seconds) => seconds,
                Course::Done(_) => -1.0,
            });
        };
        let recordings = vec![std::future::ready(Ok(wav(2)))];
        let mut interrupt = Interrupt::listen().unwrap();
        listen(&engine, recordings, EngineCoreRequest::asr, &mut interrupt, course, |_, _| Ok(()))
            .await
            .unwrap();
        let mut seen = seen.into_inner();
        seen.dedup();
        assert_eq!(seen, [2.0, 1.0, 2.0, -1.0], "its length, then each second, then the end");
    }

    #[tokio::test]
    async fn a_reader_that_has_gone_ends_it_and_nothing_runs_on() {
        let engine = engine(EngineCoreConfig::default(), Duration::from_millis(1));
        let lengths = [1, 60, 60, 60];
        let recordings = lengths.map(|seconds| std::future::ready(Ok(wav(seconds)))).into_iter().collect();
        let mut interrupt = Interrupt::listen().unwrap();
        let closed = |_, _| Err(Failure::OutputClosed.into());
        let ended = listen(&engine, recordings, EngineCoreRequest::asr, &mut interrupt, |_| {}, closed).await;
        assert!(ended.is_err());
        let begun = std::time::Instant::now();
        while engine.running_requests().await + engine.pending_requests().await > 0 {
            assert!(begun.elapsed().as_secs() < 60, "requests run on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn a_wav_tells_its_length() {
        assert_eq!(wav_duration(&wav(3)), Some(Duration::from_secs(3)));
        let streamed = [&izwi_audio::wav::streaming_header(RATE_HZ)[..], &[0; 48_000]].concat();
        assert_eq!(wav_duration(&streamed), Some(Duration::from_secs(1)));
        for file in [&b"RIFF"[..], b"", b"ID3 and so on and so forth", &wav(1)[..30]] {
            assert_eq!(wav_duration(file), None);
        }
    }
}
