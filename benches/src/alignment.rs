//! Times of an aligned text against those of the voice that spoke it: a TTS model that knows when its words are said is the truth.
//!
//! Each sentence is a recording, and all of them together are one that no window holds. Reports a table, or JSON.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use izwi_benches::{clips, engines};
use izwi_core::engine::{Engine, EngineCoreRequest, FinishReason, SpokenWord, Word};
use serde::Serialize;

/// Seed, so that every run generates the same audio.
const SEED: u64 = 1;
/// Silence between two sentences of the long recording, in seconds.
const PAUSE_S: f64 = 0.3;

/// Measures the error of aligned words.
#[derive(Debug, Parser)]
struct Args {
    /// ASR model that aligns.
    #[arg(long, default_value = "whisper-base")]
    model: String,
    /// TTS model that speaks and tells when each word is said.
    #[arg(long, default_value = "hibari")]
    voice: String,
    /// Compute threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Fail if the median or the 95th percentile of the error of the sentences is above these, in milliseconds.
    #[arg(long, value_delimiter = ',', num_args = 2)]
    at_most: Option<Vec<f64>>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was said, and the truth.
struct Spoken {
    text: String,
    samples: Vec<f32>,
    rate_hz: u32,
    /// Start and end of each word, in seconds.
    words: Vec<(String, f64, f64)>,
}

async fn speak(engine: &Engine, text: &str) -> Result<Spoken> {
    let mut params = engine.profile().default_params();
    params.seed = Some(SEED);
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(text).with_params(params)).await?;
    let (mut samples, mut words, mut end) = (Vec::new(), Vec::<SpokenWord>::new(), None);
    while let Some(chunk) = chunks.recv().await {
        samples.extend(chunk.samples);
        words.extend(chunk.words);
        end = chunk.stats.map(|stats| stats.finish_reason).or(end);
    }
    ensure!(end == Some(FinishReason::Stop), "'{text}' was not spoken to its end");
    let rate_hz = engine.profile().info.sample_rate_hz;
    let at = |sample: u64| sample as f64 / f64::from(rate_hz);
    let words = words.iter().map(|word| {
        let written = text[word.text_start..word.text_end].trim().to_owned();
        (written, at(word.sample_start), at(word.sample_end))
    });
    Ok(Spoken { words: words.collect(), text: text.to_owned(), samples, rate_hz })
}

/// All recordings one after another, each sentence on a line.
fn joined(spoken: &[Spoken]) -> Result<Spoken> {
    let rate_hz = spoken.first().context("there are no sentences")?.rate_hz;
    let mut all = Spoken { text: String::new(), samples: Vec::new(), rate_hz, words: Vec::new() };
    for one in spoken {
        let offset_s = all.samples.len() as f64 / f64::from(rate_hz);
        let moved =
            one.words.iter().map(|(word, start, end)| (word.clone(), start + offset_s, end + offset_s));
        all.words.extend(moved);
        all.samples.extend(&one.samples);
        all.samples.extend(vec![0.0; (PAUSE_S * f64::from(rate_hz)) as usize]);
        all.text = [&all.text, "\n", &one.text].concat();
    }
    Ok(all)
}

/// Errors of the boundaries, in milliseconds, positive where ours are late.
#[derive(Debug, Default)]
struct Errors {
    starts: Vec<f64>,
    ends: Vec<f64>,
    /// Words that were not found.
    missed: usize,
    audio_s: f64,
    took_s: f64,
}

/// Aligns a recording. The words of the voice are ours, or some of ours together.
async fn align(engine: &Engine, spoken: &Spoken, errors: &mut Errors) -> Result<()> {
    let wav = izwi_audio::wav::to_bytes(&spoken.samples, spoken.rate_hz)?;
    let output = engine.generate(EngineCoreRequest::alignment(wav, spoken.text.as_str())).await?;
    errors.audio_s += output.stats.audio_duration.as_secs_f64();
    errors.took_s += output.stats.generation_time.as_secs_f64();
    let transcript = output.transcript.context("no words")?;
    let mut ours = transcript.segments.into_iter().flat_map(|segment| segment.words);
    for (written, start, end) in &spoken.words {
        let mut parts: Vec<Word> = Vec::new();
        while parts.iter().map(|part| letters(&part.text)).sum::<usize>() < letters(written) {
            parts.push(ours.next().with_context(|| format!("no word is left for '{written}'"))?);
        }
        let [first, ..] = &parts[..] else { continue };
        errors.missed += usize::from(parts.iter().any(|part| part.probability == 0.0));
        errors.starts.push((first.start_s - start) * 1e3);
        errors.ends.push((parts[parts.len() - 1].end_s - end) * 1e3);
    }
    Ok(())
}

fn letters(text: &str) -> usize {
    text.chars().filter(|c| c.is_alphanumeric()).count()
}

#[derive(Debug, Serialize)]
struct Row {
    recordings: &'static str,
    boundaries: &'static str,
    count: usize,
    missed: usize,
    bias_ms: f64,
    median_ms: f64,
    p90_ms: f64,
    p95_ms: f64,
    max_ms: f64,
    rtf: f64,
}

impl Row {
    fn new(
        recordings: &'static str,
        boundaries: &'static str,
        errors: &Errors,
        mut values: Vec<f64>,
    ) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let mut sizes: Vec<f64> = values.iter().map(|value| value.abs()).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        let share = |sorted: &[f64], share: f64| {
            let last = sorted.len().saturating_sub(1);
            sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
        };
        Self {
            recordings,
            boundaries,
            count: values.len(),
            missed: errors.missed,
            bias_ms: share(&values, 0.5),
            median_ms: share(&sizes, 0.5),
            p90_ms: share(&sizes, 0.9),
            p95_ms: share(&sizes, 0.95),
            max_ms: share(&sizes, 1.0),
            rtf: errors.took_s / errors.audio_s.max(f64::MIN_POSITIVE),
        }
    }

    fn line(&self) -> String {
        let Self { recordings, boundaries, count, missed, bias_ms, median_ms, p90_ms, p95_ms, max_ms, rtf } =
            self;
        format!(
            "| {recordings} | {boundaries} | {count} | {missed} | {bias_ms:.0} | {median_ms:.0} | {p90_ms:.0} | {p95_ms:.0} | \
             {max_ms:.0} | {rtf:.3} |"
        )
    }
}

fn of(name: &'static str, errors: &Errors) -> Vec<Row> {
    let both = [&errors.starts[..], &errors.ends].concat();
    let kinds = [("starts", errors.starts.clone()), ("ends", errors.ends.clone()), ("all", both)];
    kinds.into_iter().map(|(kind, values)| Row::new(name, kind, errors, values)).collect()
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let path = clips::root().join("benches/alignment/sentences.txt");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let voice = engines::load(&args.voice, args.threads).await?;
    let mut spoken = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        spoken.push(speak(&voice, line).await?);
    }
    drop(voice);
    let engine = engines::load(&args.model, args.threads).await?;
    let (mut sentences, mut long) = (Errors::default(), Errors::default());
    for one in &spoken {
        align(&engine, one, &mut sentences).await.with_context(|| format!("'{}'", one.text))?;
    }
    align(&engine, &joined(&spoken)?, &mut long).await.context("the long recording")?;
    let mut rows = of("sentences", &sentences);
    rows.extend(of("one recording", &long));
    if args.json {
        print(&serde_json::to_string_pretty(&rows)?);
    } else {
        print(
            "| recordings | boundaries | count | missed | bias ms | median ms | p90 ms | p95 ms | max ms | RTF |",
        );
        print("|---|---|---|---|---|---|---|---|---|---|");
        rows.iter().for_each(|row| print(&row.line()));
    }
    if let (Some([median, p95]), Some(all)) = (args.at_most.as_deref(), rows.get(2)) {
        ensure!(
            all.median_ms <= *median && all.p95_ms <= *p95,
            "the error is {:.0} ms in the median and {:.0} ms at the 95th percentile, above {median} and {p95}",
            all.median_ms,
            all.p95_ms
        );
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the report is this program's output")]
fn print(text: &str) {
    println!("{text}");
}
