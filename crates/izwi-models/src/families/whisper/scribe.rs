//! What the end of a pass leads to: another attempt, times of words, the next window, the end.
//!
//! The course is openai-whisper's, <https://github.com/openai/whisper/blob/main/whisper/transcribe.py>; knows no tensor.

use super::alignment::{self, Looks, TimedWord};
use super::config::FRAMES_PER_POSITION;
use super::decoder::SpanOutput;
use super::languages::is_unspaced;
use super::mel::{HOP, SAMPLE_RATE_HZ};
use super::rules::Rules;
use super::sampling::{Draws, probability};
use super::segments::{Cut, Cuts, Heard, compression_ratio, cut, is_loop};
use super::times;
use super::tokens::{TIME_STEP_S, Vocabulary};
use super::windows::{Context, Kind, Listening, Pass, Recording, Window};
use crate::regions::WINDOW_FRAMES;
use izwi_nn::Error;
use izwi_types::{Segment, Word};
use izwi_types::{StepOutput, Work};

/// What was heard in little silence counts when its mean log-probability is at least this; below it the window is
/// listened to again with all the silence the network is used to. On the clips in `assets/speech`, plain and in noise,
/// words that differ between the two lie below it.
const SURE_LOGPROB: f32 = -0.3;

/// The temperature rises by this with each attempt, up to [`MAX_TEMPERATURE`].
const TEMPERATURE_STEP: f32 = 0.2;
const MAX_TEMPERATURE: f32 = 1.0;
/// What was heard at a temperature above this is not shown to the decoder again.
const MAX_SHOWN_TEMPERATURE: f32 = 0.5;
/// What is left of a region is listened to if it holds at least this much speech, in mel frames; whisper.cpp stops
/// at 1 s: <https://github.com/ggml-org/whisper.cpp/blob/master/src/whisper.cpp> (`seek + 100 >= seek_end`).
const MIN_REST: usize = 50;
/// Speech behind the last timestamp of a window that is passed over, in mel frames: timestamps may be early.
const MAX_MISSED: usize = 150;
/// Segments of the same text in a row before the rest of them is taken for a loop.
const MAX_SAME: usize = 3;

/// Listens by the rules of one checkpoint.
#[derive(Debug)]
pub(super) struct Scribe {
    pub(super) vocabulary: Vocabulary,
    pub(super) rules: Rules,
    pub(super) context: Context,
    /// Whether the prompt names language and task.
    pub(super) multilingual: bool,
}

impl Scribe {
    /// The state of a recording nobody has listened to yet, and its first work; `None` where nobody speaks.
    pub(super) fn begin(&self, recording: &Recording) -> Option<(Listening, Work)> {
        let frames = next_frames(recording, 0, 0)?;
        let order = &recording.order;
        let mut listening = Listening {
            region: frames.0,
            language: order.language,
            history: order.prompt.clone(),
            shown_from: 0,
            last_window: String::new(),
            last_segment: (String::new(), 0),
            last_speech_s: 0.0,
            window: Window::new(recording, frames.0, frames.1, self.context),
            pass: Pass::new(Kind::Decode, Vec::new(), 0),
        };
        let work = self.first_pass(recording, &mut listening);
        Some((listening, work))
    }

    /// The first pass over a new window.
    fn first_pass(&self, recording: &Recording, listening: &mut Listening) -> Work {
        if self.multilingual && listening.language.is_none() {
            return listening.begin(Pass::new(Kind::Detect, vec![self.vocabulary.start], 0));
        }
        self.decode_pass(recording, listening)
    }

    fn decode_pass(&self, recording: &Recording, listening: &mut Listening) -> Work {
        let most = recording.order.max_positions / 2 - 1;
        let shown =
            if listening.window.conditioned { &listening.history[listening.shown_from..] } else { &[] };
        let shown = &shown[shown.len().saturating_sub(most)..];
        let mut tokens = Vec::with_capacity(shown.len() + 4);
        if !shown.is_empty() {
            tokens.push(self.vocabulary.previous);
            tokens.extend(shown);
        }
        let start_at = tokens.len();
        tokens.extend(self.head(recording, listening));
        listening.begin(Pass::new(Kind::Decode, tokens, start_at))
    }

    /// What every transcript begins with.
    fn head(&self, recording: &Recording, listening: &Listening) -> Vec<u32> {
        let mut head = vec![self.vocabulary.start];
        if self.multilingual {
            head.extend(listening.language);
            head.extend(recording.order.task);
        }
        head
    }

    /// Takes what a step computed of positions `from..end`.
    pub(super) fn advance(
        &self,
        recording: &Recording,
        listening: &mut Listening,
        (from, end): (usize, usize),
        output: SpanOutput,
    ) -> Result<StepOutput, Error> {
        let SpanOutput { logits, looks } = output;
        let mut logits = logits.into_iter();
        if listening.pass.kind == Kind::Align {
            listening.look(from, end - from, looks);
        }
        if asks_for_speech(listening, from, end) {
            let start = logits.next().ok_or(Error::Internal("the start token has no logits"))?;
            listening.window.no_speech = Some(probability(&start, self.vocabulary.no_speech));
            if listening.pass.start_at + 1 == listening.pass.tokens.len() {
                // English-only models begin right behind the start token.
                return self.sample(recording, listening, start);
            }
        }
        if end < listening.pass.tokens.len() {
            return Ok(StepOutput::default());
        }
        if listening.pass.kind == Kind::Align {
            return Ok(self.aligned(recording, listening));
        }
        let last = logits.next().ok_or(Error::Internal("the last token has no logits"))?;
        match listening.pass.kind {
            Kind::Detect => Ok(self.detected(recording, listening, &last)),
            _ => self.sample(recording, listening, last),
        }
    }

    fn detected(&self, recording: &Recording, listening: &mut Listening, logits: &[f32]) -> StepOutput {
        let languages = self.vocabulary.languages.iter();
        let likeliest = languages
            .max_by(|a, b| logits[a.1 as usize].total_cmp(&logits[b.1 as usize]).then(b.1.cmp(&a.1)));
        listening.language = likeliest.map(|(_, id)| *id);
        let work = self.decode_pass(recording, listening);
        StepOutput { language: self.language(listening), next_pass: Some(work), ..StepOutput::default() }
    }

    fn language(&self, listening: &Listening) -> Option<String> {
        if !self.multilingual {
            return Some("en".to_owned());
        }
        self.vocabulary.code(listening.language?).map(str::to_owned)
    }

    /// Chooses the next token; at the end of the pass, judges it.
    fn sample(
        &self,
        recording: &Recording,
        listening: &mut Listening,
        mut logits: Vec<f32>,
    ) -> Result<StepOutput, Error> {
        let (window, pass) = (&listening.window, &mut listening.pass);
        self.rules.apply(&mut logits, pass.said());
        let draws = Draws::new(recording.order.seed, window.frames.start, window.attempt);
        let choice = draws.choose(&logits, window.temperature, pass.said().len());
        pass.logprobs.push(choice.logprob);
        let most = recording.order.max_positions;
        let mut ended = choice.token == self.vocabulary.end;
        if !ended {
            pass.tokens.push(choice.token);
            // One more would have to be computed at a position that does not exist.
            let said = pass.said();
            ended = said.len() >= most / 2
                || pass.tokens.len() >= most
                || is_loop(said.len(), || self.vocabulary.text(said));
        }
        let output = if ended { self.judge(recording, listening) } else { StepOutput::default() };
        Ok(StepOutput { generated_tokens: 1, ..output })
    }

    /// Accepts what was heard, passes the window over or tries again.
    fn judge(&self, recording: &Recording, listening: &mut Listening) -> StepOutput {
        let heard = self.heard(listening);
        if heard.is_silence() {
            let end = listening.window.frames.end;
            return self.next_window(recording, listening, end, Vec::new());
        }
        let repeats = self.repeats(listening, &heard);
        let unsure = listening.window.positions < recording.max_positions && heard.avg_logprob < SURE_LOGPROB;
        if (heard.is_doubtful() || repeats || unsure) && self.try_again(recording, listening, repeats) {
            let work = if listening.window.encoded.is_empty() {
                self.first_pass(recording, listening)
            } else {
                self.decode_pass(recording, listening)
            };
            return StepOutput { next_pass: Some(work), ..StepOutput::default() };
        }
        let text: Vec<u32> = heard.tokens.iter().copied().filter(|&id| self.vocabulary.is_text(id)).collect();
        if !recording.order.words || text.is_empty() {
            return self.accept(recording, listening, heard, None);
        }
        let mut tokens = self.head(recording, listening);
        tokens.push(self.vocabulary.no_timestamps);
        tokens.extend(text);
        tokens.push(self.vocabulary.end);
        listening.window.heard = Some(heard);
        let work = listening.begin(Pass::new(Kind::Align, tokens, 0));
        StepOutput { next_pass: Some(work), ..StepOutput::default() }
    }

    fn heard(&self, listening: &Listening) -> Heard {
        let (window, pass) = (&listening.window, &listening.pass);
        let text = self.vocabulary.text(pass.said());
        let sum: f32 = pass.logprobs.iter().sum();
        Heard {
            tokens: pass.said().to_vec(),
            probabilities: pass.logprobs[..pass.said().len()].iter().map(|logprob| logprob.exp()).collect(),
            avg_logprob: sum / (pass.said().len() + 1) as f32,
            compression_ratio: compression_ratio(text.trim()),
            text,
            no_speech_prob: window.no_speech.unwrap_or(0.0),
            temperature: window.temperature,
        }
    }

    /// Whether the decoder wrote the last window's text again, which it was shown.
    fn repeats(&self, listening: &Listening, heard: &Heard) -> bool {
        let shown = listening.window.conditioned && listening.shown_from < listening.history.len();
        let text = heard.text.trim();
        shown && !text.is_empty() && text == listening.last_window
    }

    /// Prepares the next attempt at the window: without what it repeats, else with all the silence the network is
    /// used to, else at a higher temperature. False where there is none left.
    fn try_again(&self, recording: &Recording, listening: &mut Listening, repeats: bool) -> bool {
        let window = &mut listening.window;
        let hotter = window.temperature + TEMPERATURE_STEP;
        if repeats {
            window.conditioned = false;
        } else if window.positions < recording.max_positions {
            let (attempt, conditioned) = (window.attempt, window.conditioned);
            *window = Window::new(recording, listening.region, window.frames.clone(), Context::Full);
            (window.attempt, window.conditioned) = (attempt, conditioned);
        } else if hotter <= MAX_TEMPERATURE + 1e-3 {
            window.temperature = hotter;
        } else {
            return false;
        }
        window.attempt += 1;
        true
    }

    /// The pass that times words is complete.
    fn aligned(&self, recording: &Recording, listening: &mut Listening) -> StepOutput {
        let Some(heard) = listening.window.heard.take() else {
            let end = listening.window.frames.end;
            return self.next_window(recording, listening, end, Vec::new());
        };
        let (window, pass) = (&listening.window, &listening.pass);
        let looks = Looks {
            heads: &pass.looks,
            rows: pass.tokens.len(),
            positions: window.positions,
            used: (window.frames.len() / FRAMES_PER_POSITION).clamp(1, window.positions),
        };
        // The row of the token before tells when a token is said; the end's own row tells nothing.
        let first = pass.tokens.len() - 2 - self.text_len(&heard);
        let begins = looks.begins(first..pass.tokens.len() - 1);
        let begins: Vec<f64> = begins.into_iter().map(|at| at as f64 * TIME_STEP_S).collect();
        let is_text = |(id, _): &(&u32, &f32)| self.vocabulary.is_text(**id);
        let pairs = heard.tokens.iter().zip(&heard.probabilities).filter(is_text);
        let (text, probabilities): (Vec<u32>, Vec<f32>) = pairs.map(|(id, p)| (*id, *p)).unzip();
        let unspaced = self.language(listening).is_some_and(|code| is_unspaced(&code));
        let words = self.vocabulary.words(&text, unspaced);
        let mut words = alignment::time_words(words, &begins, &probabilities);
        let usual_s = alignment::median_duration(&words);
        alignment::shorten_at_sentence_ends(&mut words, usual_s);
        self.accept(recording, listening, heard, Some((words, usual_s)))
    }

    fn text_len(&self, heard: &Heard) -> usize {
        heard.tokens.iter().filter(|&&id| self.vocabulary.is_text(id)).count()
    }

    /// Turns what was heard into segments and goes on behind it.
    fn accept(
        &self,
        recording: &Recording,
        listening: &mut Listening,
        heard: Heard,
        words: Option<(Vec<TimedWord>, f64)>,
    ) -> StepOutput {
        let window = &listening.window;
        let cuts = cut(&heard.tokens, window.frames.len(), &self.vocabulary);
        let mut segments = self.segments(recording, listening, &heard, &cuts);
        let mut end = window.frames.start + cuts.frames_done;
        let spoken = recording.regions[listening.region].speech_end.min(window.frames.end);
        let heard_to = window.frames.start + cuts.segments.last().map_or(0, |last| last.frames.end);
        if cuts.closed && heard_to + MAX_MISSED < spoken {
            // Closed too early: what is left is heard again.
            end = heard_to;
        }
        if let Some((words, usual_s)) = words {
            let text_tokens: Vec<usize> = segments.iter().map(|segment| self.count_text(segment)).collect();
            let offset_s = seconds(window.frames.start);
            times::place(&mut segments, &text_tokens, words, (offset_s, usual_s, listening.last_speech_s));
            let last = segments.iter().flat_map(|segment| &segment.words).last().map(|word| word.end_s);
            if let Some(last_s) = last {
                listening.last_speech_s = last_s;
                let last = (last_s * (SAMPLE_RATE_HZ / HOP) as f64).round() as usize;
                if !cuts.closed && last > window.frames.start {
                    end = last.min(window.frames.end);
                }
            }
        }
        listening.last_window = heard.text.trim().to_owned();
        segments.retain_mut(|segment| self.keep(listening, segment));
        listening.history.extend(segments.iter().flat_map(|segment| &segment.tokens));
        if heard.temperature > MAX_SHOWN_TEMPERATURE || !listening.window.conditioned {
            listening.shown_from = listening.history.len();
        }
        for segment in &mut segments {
            clip(segment, recording.duration_s);
        }
        self.next_window(recording, listening, end, segments)
    }

    fn count_text(&self, segment: &Segment) -> usize {
        segment.tokens.iter().filter(|&&id| self.vocabulary.is_text(id)).count()
    }

    fn segments(
        &self,
        recording: &Recording,
        listening: &Listening,
        heard: &Heard,
        cuts: &Cuts,
    ) -> Vec<Segment> {
        let window = &listening.window.frames;
        let time_s = |frame: usize| seconds((window.start + frame).min(window.end)).min(recording.duration_s);
        let segment = |cut: &Cut| Segment {
            window_start_s: seconds(window.start),
            start_s: time_s(cut.frames.start),
            end_s: time_s(cut.frames.end),
            text: self.vocabulary.text(&heard.tokens[cut.tokens.clone()]),
            tokens: heard.tokens[cut.tokens.clone()].to_vec(),
            temperature: heard.temperature,
            avg_logprob: heard.avg_logprob,
            compression_ratio: heard.compression_ratio,
            no_speech_prob: heard.no_speech_prob,
            words: Vec::new(),
        };
        cuts.segments.iter().map(segment).collect()
    }

    /// Whether a segment says something, lasts, and is not one more turn of a loop.
    fn keep(&self, listening: &mut Listening, segment: &mut Segment) -> bool {
        let text = segment.text.trim();
        if text.is_empty() || segment.end_s <= segment.start_s {
            return false;
        }
        let (last, count) = &mut listening.last_segment;
        *count = if last == text { *count + 1 } else { 1 };
        text.clone_into(last);
        *count <= MAX_SAME
    }

    /// Opens the window behind mel frame `end`, or ends the recording.
    fn next_window(
        &self,
        recording: &Recording,
        listening: &mut Listening,
        end: usize,
        segments: Vec<Segment>,
    ) -> StepOutput {
        let next_pass = next_frames(recording, listening.region, end).map(|(region, frames)| {
            listening.region = region;
            listening.window = Window::new(recording, region, frames, self.context);
            self.first_pass(recording, listening)
        });
        StepOutput {
            text: segments.iter().map(|segment| segment.text.as_str()).collect(),
            segments,
            language: self.language(listening),
            finished: next_pass.is_none(),
            next_pass,
            ..StepOutput::default()
        }
    }
}

/// Whether a step over positions `from..end` is to tell if anybody speaks.
pub(super) fn asks_for_speech(listening: &Listening, from: usize, end: usize) -> bool {
    let pass = &listening.pass;
    let computed = (from..end).contains(&pass.start_at);
    pass.kind == Kind::Decode && listening.window.no_speech.is_none() && computed
}

/// The next window at or behind mel frame `from`: its region and frames.
fn next_frames(
    recording: &Recording,
    mut region: usize,
    from: usize,
) -> Option<(usize, std::ops::Range<usize>)> {
    loop {
        let candidate = recording.regions.get(region)?;
        let start = from.max(candidate.frames.start);
        let fresh = start == candidate.frames.start;
        if start < candidate.frames.end && (fresh || start + MIN_REST <= candidate.speech_end) {
            return Some((region, start..candidate.frames.end.min(start + WINDOW_FRAMES)));
        }
        region += 1;
    }
}

/// Seconds from the start of the recording.
fn seconds(frame: usize) -> f64 {
    (frame * HOP) as f64 / SAMPLE_RATE_HZ as f64
}

/// Holds a segment's times within the recording.
fn clip(segment: &mut Segment, duration_s: f64) {
    let within = |time: &mut f64| *time = time.clamp(0.0, duration_s);
    within(&mut segment.start_s);
    within(&mut segment.end_s);
    for Word { start_s, end_s, .. } in &mut segment.words {
        within(start_s);
        within(end_s);
    }
}
