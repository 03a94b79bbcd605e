//! Decides what follows a decoder pass: a fallback, the alignment of words, the next window, or the end.
//!
//! The algorithm is openai-whisper's, <https://github.com/openai/whisper/blob/main/whisper/transcribe.py>. Knows no tensor.

use super::alignment::{self, TimedWord};
use super::beam_search::BeamOptions;
use super::context::Context;
use super::decoder::SpanOutput;
use super::rules::Rules;
use super::sampling::{Draws, choose_with, probability};
use super::segments::{
    DecodingResult, SegmentSpan, SegmentSpans, compression_ratio, is_loop, is_phantom, split_segments,
};
use super::state::{DecodingState, Pass, PassKind, Recording, Window};
use super::tokens::{TIME_STEP_S, Vocabulary};
use super::word_times;
use crate::given_text::Progress;
use crate::log_mel::{HOP, SAMPLE_RATE_HZ};
use crate::regions::WINDOW_FRAMES;
use izwi_nn::Error;
use izwi_types::languages::is_unspaced;
use izwi_types::{Segment, StepOutput, TokenLogprob, Word, Work};

/// A result over a short context is accepted at this mean log-probability; below it the window is decoded again over the
/// full 30 s context. On the clips in `assets/speech`, plain and with noise, words that differ between the two contexts
/// lie below it.
const MIN_SHORT_CONTEXT_LOGPROB: f32 = -0.3;

/// Temperature increase of each fallback, up to [`MAX_TEMPERATURE`].
const TEMPERATURE_STEP: f32 = 0.2;
const MAX_TEMPERATURE: f32 = 1.0;
/// Text decoded above this temperature is not part of the next prompt.
pub(super) const MAX_PROMPT_TEMPERATURE: f32 = 0.5;
/// Least speech in the rest of a region for another window, in mel frames; whisper.cpp stops at 1 s: <https://github.com/ggml-org/whisper.cpp/blob/master/src/whisper.cpp> (`seek + 100 >= seek_end`).
const MIN_REST: usize = 50;
/// Speech after the last timestamp of a window that is not decoded again, in mel frames: timestamps may be early.
const MAX_UNCOVERED: usize = 150;
/// Equal consecutive segments that are kept; more are a loop.
const MAX_SAME: usize = 3;

/// Decodes the windows of recordings with one checkpoint.
#[derive(Debug)]
pub(super) struct WindowDecoder {
    pub(super) vocabulary: Vocabulary,
    pub(super) rules: Rules,
    pub(super) context: Context,
    /// Parts of the encoder.
    pub(super) parts: usize,
    /// Whether the prompt contains language and task.
    pub(super) multilingual: bool,
}

impl WindowDecoder {
    /// The initial state of a recording and its first work; `None` if it has no speech.
    pub(super) fn begin(&self, recording: &Recording) -> Option<(DecodingState, Work)> {
        let frames = next_frames(recording, 0, 0)?;
        let options = &recording.options;
        let context = options.decided.as_ref().map_or(self.context, |decided| decided.context(self.context));
        let mut state = DecodingState {
            region: frames.0,
            language: options.language,
            history: options.prompt.clone(),
            prompt_reset_since: 0,
            last_window: String::new(),
            last_segment: (String::new(), 0),
            last_speech_s: 0.0,
            share: 0..0,
            likely: Vec::new(),
            progress: Progress::default(),
            window: Window::new(recording, frames.0, frames.1, context, self.parts),
            pass: Pass::new(PassKind::Decode, Vec::new(), 0),
        };
        let work = self.first_pass(recording, &mut state);
        Some((state, work))
    }

    /// The first pass over a new window.
    fn first_pass(&self, recording: &Recording, state: &mut DecodingState) -> Work {
        if self.multilingual && state.language.is_none() {
            return state.begin(Pass::new(PassKind::Detect, vec![self.vocabulary.start], 0));
        }
        self.decode_pass(recording, state)
    }

    fn decode_pass(&self, recording: &Recording, state: &mut DecodingState) -> Work {
        if let Some(decided) = &recording.options.decided {
            return self.live_pass(recording, decided, state);
        }
        if let Some(pass) = self.whole_pass(recording, state) {
            return state.begin(pass);
        }
        let most = recording.options.max_positions / 2 - 1;
        let conditioned = state.window.conditioned;
        let shown = if conditioned { &state.history[state.prompt_reset_since..] } else { &[] };
        let shown = &shown[shown.len().saturating_sub(most)..];
        let mut tokens = Vec::with_capacity(shown.len() + 4);
        if !shown.is_empty() {
            tokens.push(self.vocabulary.previous);
            tokens.extend(shown);
        }
        let start_at = tokens.len();
        tokens.extend(self.head(recording, state));
        let cold = state.window.temperature <= 0.0;
        let beams = if cold { recording.options.beams } else { BeamOptions::GREEDY };
        state.begin(Pass::new(PassKind::Decode, tokens, start_at).with_beams(beams))
    }

    /// The tokens that every transcript starts with.
    pub(super) fn head(&self, recording: &Recording, state: &DecodingState) -> Vec<u32> {
        let mut head = vec![self.vocabulary.start];
        if self.multilingual {
            head.extend(state.language);
            head.extend(recording.options.task);
        }
        head
    }

    /// Processes the decoder output of positions `from..end`.
    pub(super) fn advance(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        (from, end): (usize, usize),
        output: SpanOutput,
    ) -> Result<StepOutput, Error> {
        let SpanOutput { logits, cross_weights } = output;
        let mut logits = logits.into_iter();
        if state.pass.kind == PassKind::Align {
            state.record_cross_weights(from, end - from, cross_weights);
        }
        if state.pass.kind == PassKind::Score {
            state.record_logprobs((from, end), logits.as_slice());
        }
        if needs_no_speech_prob(state, from, end) {
            let start = logits.next().ok_or(Error::Internal("the start token has no logits"))?;
            state.window.no_speech = Some(probability(&start, self.vocabulary.no_speech));
            if state.pass.start_at + 1 == state.pass.tokens.len() {
                // English-only models generate right after the start token.
                return self.sample(recording, state, vec![start]);
            }
        }
        if end < state.pass.tokens.len() {
            return Ok(StepOutput::default());
        }
        match state.pass.kind {
            PassKind::Score if state.window.rescoring.is_some() => return Ok(self.rescored(recording, state)),
            PassKind::Score => return Ok(self.scored(recording, state)),
            PassKind::Align => return Ok(self.aligned(recording, state)),
            PassKind::Detect | PassKind::Decode => {}
        }
        let last: Vec<Vec<f32>> = logits.collect();
        match (state.pass.kind, &last[..]) {
            (_, []) => Err(Error::Internal("the last token has no logits")),
            (PassKind::Detect, [last, ..]) => Ok(self.detected(recording, state, last)),
            _ => self.sample(recording, state, last),
        }
    }

    fn detected(&self, recording: &Recording, state: &mut DecodingState, logits: &[f32]) -> StepOutput {
        let candidates = &recording.options.languages;
        let languages = self.vocabulary.languages.iter();
        let languages = languages.filter(|(_, id)| candidates.is_empty() || candidates.contains(id));
        let (ids, weights): (Vec<u32>, Vec<f32>) =
            languages.map(|(_, id)| (*id, logits[*id as usize])).unzip();
        let likeliest =
            (0..ids.len()).max_by(|&a, &b| weights[a].total_cmp(&weights[b]).then(ids[b].cmp(&ids[a])));
        state.language = likeliest.map(|at| ids[at]);
        let work = self.decode_pass(recording, state);
        StepOutput {
            language: self.language(state),
            language_probability: likeliest.map(|at| probability(&weights, at as u32)),
            next_pass: Some(work),
            ..StepOutput::default()
        }
    }

    fn language(&self, state: &DecodingState) -> Option<String> {
        if !self.multilingual {
            return Some("en".to_owned());
        }
        self.vocabulary.code(state.language?).map(str::to_owned)
    }

    /// Generates the next token by `logits`, `[vocabulary]` for each branch of a search, and, at the end, finishes the pass.
    fn sample(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        mut logits: Vec<Vec<f32>>,
    ) -> Result<StepOutput, Error> {
        if state.pass.beams.is_some() {
            return Ok(self.search(recording, state, &mut logits));
        }
        let mut logits = logits.pop().ok_or(Error::Internal("the last token has no logits"))?;
        if let Some(decided) = &recording.options.decided {
            return self.sample_live(recording, decided, state, logits);
        }
        let (window, pass) = (&state.window, &mut state.pass);
        self.rules.apply(&mut logits, pass.generated());
        let draws = Draws::new(recording.options.seed, window.frames.start, window.attempt);
        let (keywords, at) = (recording.options.keywords.as_ref(), pass.generated().len());
        let choice = choose_with(keywords, &mut pass.place, &logits, |logits| {
            draws.choose(logits, window.temperature, at)
        });
        pass.logprobs.push(choice.logprob);
        let most = recording.options.max_positions;
        let mut ended = choice.token == self.vocabulary.end;
        if !ended {
            pass.tokens.push(choice.token);
            // Another token would need a position that does not exist.
            let generated = pass.generated();
            ended = generated.len() >= most / 2
                || pass.tokens.len() >= most
                || is_loop(generated.len(), || self.vocabulary.text(generated));
        }
        let output = if ended { self.finish_pass(recording, state) } else { StepOutput::default() };
        Ok(StepOutput { generated_tokens: 1, ..output })
    }

    /// Continues the texts of a search and, at its end, finishes the pass with the best.
    fn search(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        logits: &mut [Vec<f32>],
    ) -> StepOutput {
        let pass = &mut state.pass;
        let Some(beams) = &mut pass.beams else { return StepOutput::default() };
        let rules = |logits: &mut [f32], tokens: &[u32]| self.rules.apply(logits, tokens);
        let parents = beams.advance(rules, recording.options.keywords.as_ref(), self.vocabulary.end, logits);
        let most = recording.options.max_positions;
        let ended = beams.is_complete()
            || beams.len() >= most / 2
            || pass.prompt_len + beams.len() >= most
            || is_loop(beams.len(), || self.vocabulary.text(beams.likeliest()));
        if !ended {
            return StepOutput { generated_tokens: 1, parents, ..StepOutput::default() };
        }
        let best = beams.best();
        pass.tokens.extend(best.tokens);
        pass.logprobs = best.logprobs;
        pass.beams = None;
        StepOutput { generated_tokens: 1, ..self.finish_pass(recording, state) }
    }

    /// Accepts the result, skips the window as silence, or falls back.
    fn finish_pass(&self, recording: &Recording, state: &mut DecodingState) -> StepOutput {
        let result = self.result(state);
        if result.is_silence() {
            let end = state.window.frames.end;
            return self.next_window(recording, state, end, Vec::new());
        }
        let repeats = self.repeats(state, &result);
        let uncertain = state.window.positions < recording.max_positions
            && result.avg_logprob < MIN_SHORT_CONTEXT_LOGPROB;
        if (result.needs_fallback() || repeats || uncertain) && self.fall_back(recording, state, repeats) {
            let work = if state.window.encoded.is_empty() {
                self.first_pass(recording, state)
            } else {
                self.decode_pass(recording, state)
            };
            return StepOutput { next_pass: Some(work), ..StepOutput::default() };
        }
        let prompt = state.pass.tokens[..state.pass.prompt_len].to_vec();
        self.rescore(recording, state, prompt, result)
    }

    /// Times the words of a result, if they are wanted, or accepts it.
    pub(super) fn align_or_accept(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        result: DecodingResult,
    ) -> StepOutput {
        if let Some(given) = &recording.options.given {
            return self.align_given(recording, given, state, result);
        }
        let text: Vec<u32> =
            result.tokens.iter().copied().filter(|&id| self.vocabulary.is_text(id)).collect();
        if !recording.options.words || text.is_empty() {
            return self.accept(recording, state, result, None);
        }
        let mut tokens = self.head(recording, state);
        tokens.push(self.vocabulary.no_timestamps);
        tokens.extend(text);
        tokens.push(self.vocabulary.end);
        state.window.result = Some(result);
        let work = state.begin(Pass::new(PassKind::Align, tokens, 0));
        StepOutput { next_pass: Some(work), ..StepOutput::default() }
    }

    pub(super) fn result(&self, state: &DecodingState) -> DecodingResult {
        let (window, pass) = (&state.window, &state.pass);
        let text = self.vocabulary.text(pass.generated());
        let sum: f32 = pass.logprobs.iter().sum();
        DecodingResult {
            tokens: pass.generated().to_vec(),
            logprobs: pass.logprobs[..pass.generated().len()].to_vec(),
            avg_logprob: sum / (pass.generated().len() + 1) as f32,
            compression_ratio: compression_ratio(text.trim()),
            text,
            no_speech_prob: window.no_speech.unwrap_or(0.0),
            temperature: window.temperature,
        }
    }

    /// Whether the decoder repeated the text of the last window, which its prompt contains.
    fn repeats(&self, state: &DecodingState, result: &DecodingResult) -> bool {
        let shown = state.window.conditioned && state.prompt_reset_since < state.history.len();
        let text = result.text.trim();
        shown && !text.is_empty() && text == state.last_window
    }

    /// Prepares the next attempt at the window: without a prompt if it repeats, else over the full context, else at a
    /// higher temperature. False if no attempt is left.
    fn fall_back(&self, recording: &Recording, state: &mut DecodingState, repeats: bool) -> bool {
        let window = &mut state.window;
        let hotter = window.temperature + TEMPERATURE_STEP;
        if repeats {
            window.conditioned = false;
        } else if window.positions < recording.max_positions {
            let (attempt, conditioned) = (window.attempt, window.conditioned);
            *window = Window::new(recording, state.region, window.frames.clone(), Context::Full, self.parts);
            (window.attempt, window.conditioned) = (attempt, conditioned);
        } else if hotter <= MAX_TEMPERATURE + 1e-3 {
            window.temperature = hotter;
        } else {
            return false;
        }
        window.attempt += 1;
        true
    }

    /// Finishes the alignment pass: times the words.
    fn aligned(&self, recording: &Recording, state: &mut DecodingState) -> StepOutput {
        if let Some(given) = &recording.options.given {
            return self.given_aligned(recording, given, state);
        }
        let Some(result) = state.window.result.take() else {
            let end = state.window.frames.end;
            return self.next_window(recording, state, end, Vec::new());
        };
        let pass = &state.pass;
        let cross_weights = state.cross_weights();
        // The row before a token aligns it; the row of the end token aligns nothing.
        let first = pass.tokens.len() - 2 - self.text_len(&result);
        let begins = cross_weights.begins(first..pass.tokens.len() - 1);
        let begins: Vec<f64> = begins.into_iter().map(|at| at as f64 * TIME_STEP_S).collect();
        let is_text = |(id, _): &(&u32, &f32)| self.vocabulary.is_text(**id);
        let pairs = result.tokens.iter().zip(&result.logprobs).filter(is_text);
        let (text, probabilities): (Vec<u32>, Vec<f32>) = pairs.map(|(id, p)| (*id, p.exp())).unzip();
        let words = self.vocabulary.words(&text, self.is_unspaced(state));
        let mut words = alignment::time_words(words, &begins, &probabilities);
        let usual_s = alignment::median_duration(&words);
        alignment::shorten_at_sentence_ends(&mut words, usual_s);
        self.accept(recording, state, result, Some((words, usual_s)))
    }

    /// Whether the language has no spaces between its words.
    pub(super) fn is_unspaced(&self, state: &DecodingState) -> bool {
        self.language(state).is_some_and(|code| is_unspaced(&code))
    }

    fn text_len(&self, result: &DecodingResult) -> usize {
        result.tokens.iter().filter(|&&id| self.vocabulary.is_text(id)).count()
    }

    /// Turns the result into segments and continues after them.
    fn accept(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        result: DecodingResult,
        words: Option<(Vec<TimedWord>, f64)>,
    ) -> StepOutput {
        let spans = split_segments(&result.tokens, state.window.frames.len(), &self.vocabulary);
        let mut segments = self.segments(recording, state, &result, &spans);
        let mut phantoms = self.phantoms(recording, state, &result, &spans).into_iter();
        let mut last_s = None;
        if let Some((words, usual_s)) = words {
            let text_tokens: Vec<usize> = segments.iter().map(|segment| self.count_text(segment)).collect();
            let offset_s = seconds(state.window.frames.start);
            word_times::place(&mut segments, &text_tokens, words, (offset_s, usual_s, state.last_speech_s));
            last_s = segments.iter().flat_map(|segment| &segment.words).last().map(|word| word.end_s);
            state.last_speech_s = last_s.unwrap_or(state.last_speech_s);
        }
        let end = self.end_of(recording, state, &spans, last_s);
        state.last_window = result.text.trim().to_owned();
        segments.retain_mut(|segment| phantoms.next() != Some(true) && self.keep(state, segment));
        state.history.extend(segments.iter().flat_map(|segment| &segment.tokens));
        if result.temperature > MAX_PROMPT_TEMPERATURE || !state.window.conditioned {
            state.prompt_reset_since = state.history.len();
        }
        for segment in &mut segments {
            clip(segment, recording.duration_s);
        }
        self.next_window(recording, state, end, segments)
    }

    /// Where the next window begins; `last_s` is the end of the last word, if words are timed.
    pub(super) fn end_of(
        &self,
        recording: &Recording,
        state: &DecodingState,
        spans: &SegmentSpans,
        last_s: Option<f64>,
    ) -> usize {
        let window = &state.window.frames;
        let spoken = recording.regions[state.region].speech_end.min(window.end);
        let covered_to = window.start + spans.segments.last().map_or(0, |last| last.frames.end);
        if spans.closed {
            // Closed too early: the rest is decoded again.
            return if covered_to + MAX_UNCOVERED < spoken {
                covered_to
            } else {
                window.start + spans.frames_done
            };
        }
        let last = last_s.map(|last_s| (last_s * (SAMPLE_RATE_HZ / HOP) as f64).round() as usize);
        match last.filter(|last| *last > window.start) {
            Some(last) => last.min(window.end),
            None => window.start + spans.frames_done,
        }
    }

    /// For each segment, whether nobody said its text. Live windows, which are speech, have none.
    fn phantoms(
        &self,
        recording: &Recording,
        state: &DecodingState,
        result: &DecodingResult,
        spans: &SegmentSpans,
    ) -> Vec<bool> {
        let (window, region) = (&state.window.frames, &recording.regions[state.region]);
        let is_phantom = |span: &SegmentSpan| {
            let frames = window.start + span.frames.start..(window.start + span.frames.end).min(window.end);
            let activity = region.activity(&frames);
            is_phantom(result.avg_logprob_of(span), result.no_speech_prob, activity)
        };
        let is_live = recording.options.decided.is_some();
        spans.segments.iter().map(|span| !is_live && is_phantom(span)).collect()
    }

    fn count_text(&self, segment: &Segment) -> usize {
        segment.tokens.iter().filter(|&&id| self.vocabulary.is_text(id)).count()
    }

    fn segments(
        &self,
        recording: &Recording,
        state: &DecodingState,
        result: &DecodingResult,
        spans: &SegmentSpans,
    ) -> Vec<Segment> {
        let window = &state.window.frames;
        let time_s = |frame: usize| seconds((window.start + frame).min(window.end)).min(recording.duration_s);
        let segment = |span: &SegmentSpan| Segment {
            window_start_s: seconds(window.start),
            start_s: time_s(span.frames.start),
            end_s: time_s(span.frames.end),
            text: self.vocabulary.text(&result.tokens[span.tokens.clone()]),
            tokens: result.tokens[span.tokens.clone()].to_vec(),
            temperature: result.temperature,
            avg_logprob: result.avg_logprob,
            compression_ratio: result.compression_ratio,
            no_speech_prob: result.no_speech_prob,
            words: Vec::new(),
            logprobs: self.logprobs(recording, result, span),
            speaker: None,
            speaker_name: None,
            embedding: None,
            end_of_turn: None,
        };
        spans.segments.iter().map(segment).collect()
    }

    /// The text tokens of a segment with their log-probabilities; none unless the request asks for them.
    fn logprobs(
        &self,
        recording: &Recording,
        result: &DecodingResult,
        span: &SegmentSpan,
    ) -> Vec<TokenLogprob> {
        if !recording.options.logprobs {
            return Vec::new();
        }
        let tokens = span.tokens.clone().map(|at| (result.tokens[at], result.logprobs[at]));
        let text = tokens.filter(|(id, _)| self.vocabulary.is_text(*id));
        text.map(|(id, logprob)| TokenLogprob { bytes: self.vocabulary.bytes.of(id).to_vec(), logprob })
            .collect()
    }

    /// Whether a segment has text and a duration, and is not part of a loop.
    fn keep(&self, state: &mut DecodingState, segment: &mut Segment) -> bool {
        let text = segment.text.trim();
        if text.is_empty() || segment.end_s <= segment.start_s {
            return false;
        }
        let (last, count) = &mut state.last_segment;
        *count = if last == text { *count + 1 } else { 1 };
        text.clone_into(last);
        *count <= MAX_SAME
    }

    /// Starts the window after mel frame `end`, or finishes the recording.
    pub(super) fn next_window(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        end: usize,
        mut segments: Vec<Segment>,
    ) -> StepOutput {
        // Live audio is one window, which is transcribed again with what follows.
        let next = match recording.options.decided {
            Some(_) => None,
            None => next_frames(recording, state.region, end),
        };
        let next_pass = next.map(|(region, frames)| {
            state.region = region;
            state.window = Window::new(recording, region, frames, self.context, self.parts);
            self.first_pass(recording, state)
        });
        if let Some(given) = recording.options.given.as_ref().filter(|_| next_pass.is_none()) {
            segments.extend(state.progress.end(&given.text));
        }
        StepOutput {
            text: segments.iter().map(|segment| segment.text.as_str()).collect(),
            segments,
            language: self.language(state),
            finished: next_pass.is_none(),
            next_pass,
            ..StepOutput::default()
        }
    }
}

/// Whether a step over positions `from..end` computes the probability of no speech.
pub(super) fn needs_no_speech_prob(state: &DecodingState, from: usize, end: usize) -> bool {
    let pass = &state.pass;
    let computed = (from..end).contains(&pass.start_at);
    pass.kind == PassKind::Decode && state.window.no_speech.is_none() && computed
}

/// The next window at or after mel frame `from`: its region and frames.
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
pub(super) fn seconds(frame: usize) -> f64 {
    (frame * HOP) as f64 / SAMPLE_RATE_HZ as f64
}

/// Clamps a segment's times to the recording.
fn clip(segment: &mut Segment, duration_s: f64) {
    let within = |time: &mut f64| *time = time.clamp(0.0, duration_s);
    within(&mut segment.start_s);
    within(&mut segment.end_s);
    for Word { start_s, end_s, .. } in &mut segment.words {
        within(start_s);
        within(end_s);
    }
}
