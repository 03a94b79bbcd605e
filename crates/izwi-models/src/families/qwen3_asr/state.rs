//! A prepared recording, and the state of its transcription: the stretch it is at, tokens, rows of the tower.
//!
//! Knows no network.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::aligner::{Aligner, Alignment, WordTime};
use super::answer::{self, is_spaced};
use super::audio::Window;
use super::decoder::Piece;
use super::tokens::{Prompt, Vocabulary};
use crate::given_text::{GivenText, GivenWord, Progress, SaidWord};
use crate::keywords::{Keywords, Place};
use crate::log_mel::SAMPLE_RATE_HZ;
use crate::text::heard::heard;
use crate::text::spoken_words::{self, SpokenWord};
use izwi_nn::Error;
use izwi_nn::sampling::{Draw, Draws, logprob, mix};
use izwi_types::{EncoderWork, SamplingParams, Segment, StepOutput, TokenLogprob, Word, Work, languages};

/// The most tokens of a second of speech, and of a stretch besides: nobody speaks faster, loops do.
pub(super) const TOKENS_PER_S: usize = 30;
pub(super) const SPARE_TOKENS: usize = 32;
/// Tokens in which an answer names its language.
const HEADER_TOKENS: usize = 16;

/// A prepared recording.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) stretches: Vec<Stretch>,
    /// It has the language and the decided text, if the language is known.
    pub(super) prompt: Prompt,
    /// The token in whose place a row of the tower goes.
    pub(super) audio_token: u32,
    /// Code of the language that the prompt names.
    pub(super) language: Option<String>,
    /// What an answer may begin with where one of some languages is detected; empty for any language.
    pub(super) headers: Vec<Vec<u32>>,
    pub(super) decided: Option<Decided>,
    /// Whether it is a window of live audio.
    pub(super) is_live: bool,
    pub(super) sampling: SamplingParams,
    pub(super) seed: u64,
    pub(super) max_tokens_per_step: usize,
    /// What tokens gain; `None` without keywords.
    pub(super) keywords: Option<Keywords>,
    pub(super) has_logprobs: bool,
    pub(super) has_words: bool,
    /// The text that is aligned, where one is given.
    pub(super) given: Option<Given>,
}

/// A text, and the alignment of all of it, for a recording of one stretch. Stretches of a longer one are transcribed first: the
/// words of the text that the transcript comes from are aligned.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) text: GivenText,
    pub(super) whole: Arc<Alignment>,
}

/// A word of the text as the aligner takes it.
pub(super) fn spoken(word: &GivenWord) -> SpokenWord {
    SpokenWord { text: word.said.clone(), place: word.letters.clone() }
}

/// What the transcript of a live window begins with.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
}

/// A stretch of speech.
#[derive(Debug)]
pub(super) struct Stretch {
    /// Its samples in the recording.
    pub(super) samples: Range<usize>,
    pub(super) windows: Vec<Window>,
    /// Those of the aligner, where words have times.
    pub(super) aligned: Vec<Window>,
    /// The most tokens of its transcript.
    pub(super) max_tokens: usize,
}

impl Stretch {
    /// Rows of the tower.
    pub(super) fn rows(&self) -> usize {
        self.windows.last().map_or(0, |window| window.rows.end)
    }
}

/// State of a running sequence; there is speech.
#[derive(Debug)]
pub(super) struct State {
    /// Index of the stretch.
    stretch: usize,
    /// The prompt and what follows it.
    tokens: Vec<u32>,
    /// Where the generated tokens begin: all after them are.
    generated_from: usize,
    /// Code of the language, once known.
    language: Option<String>,
    /// Whether decided text waits for the language.
    awaits_language: bool,
    logprobs: Vec<f32>,
    /// How far the generated tokens are in a keyword.
    place: Place,
    /// Rows of each window, `[rows, width]`; `None` before the tower runs and once the positions are computed.
    pub(super) encoded: Vec<Option<Tensor>>,
    /// The last character so far.
    last: Option<char>,
    /// The transcript of the stretch while its words are aligned.
    pub(super) heard: Option<Heard>,
    /// Words of a given text that are timed.
    progress: Progress,
}

/// A transcript whose words are aligned.
#[derive(Debug)]
pub(super) struct Heard {
    segment: Segment,
    pub(super) alignment: Arc<Alignment>,
    /// Words of a given text before the aligned ones, which are not found.
    skipped: usize,
}

impl State {
    /// The state at the start of a recording; `None` without speech.
    pub(super) fn new(recording: &Recording) -> Option<Self> {
        let mut state = Self {
            stretch: 0,
            tokens: Vec::new(),
            generated_from: 0,
            language: None,
            awaits_language: false,
            logprobs: Vec::new(),
            place: Place::default(),
            encoded: Vec::new(),
            last: None,
            heard: None,
            progress: Progress::default(),
        };
        if !state.begin(recording, 0) {
            return None;
        }
        if let (Some(given), [_]) = (&recording.given, &recording.stretches[..]) {
            let alignment = Arc::clone(&given.whole);
            state.heard = Some(Heard { segment: Segment::default(), alignment, skipped: 0 });
        }
        Some(state)
    }

    /// Moves to a stretch, if there is one.
    fn begin(&mut self, recording: &Recording, index: usize) -> bool {
        let Some(stretch) = recording.stretches.get(index) else { return false };
        let Prompt { before, after } = &recording.prompt;
        self.stretch = index;
        self.tokens.clone_from(before);
        self.tokens.extend(std::iter::repeat_n(recording.audio_token, stretch.rows()));
        self.tokens.extend(after);
        self.language.clone_from(&recording.language);
        self.awaits_language = self.language.is_none() && recording.decided.is_some();
        self.generated_from = self.tokens.len();
        self.logprobs.clear();
        self.place = Place::default();
        self.encoded = vec![None; stretch.windows.len()];
        true
    }

    /// Positions whose tokens are known.
    pub(super) fn known(&self) -> usize {
        self.tokens.len()
    }

    /// The generated tokens.
    pub(super) fn generated(&self) -> &[u32] {
        &self.tokens[self.generated_from..]
    }

    /// The stretch that is transcribed.
    pub(super) fn stretch<'a>(&self, recording: &'a Recording) -> Result<&'a Stretch, Error> {
        let unknown = Error::Internal("a pass of a stretch that does not exist");
        recording.stretches.get(self.stretch).ok_or(unknown)
    }

    /// The work of the pass over the known positions, or that of the aligner.
    pub(super) fn work(&self, recording: &Recording) -> Work {
        if let (Some(heard), Some(stretch)) = (&self.heard, recording.stretches.get(self.stretch)) {
            let positions = heard.alignment.positions(&stretch.aligned);
            return Work::Units([positions.min(recording.max_tokens_per_step).max(1)].into());
        }
        let before = recording.prompt.before.len();
        let windows = recording.stretches.get(self.stretch).map_or(&[][..], |stretch| &stretch.windows);
        let heard = windows.iter().flat_map(|window| {
            (0..window.rows.len()).map(move |row| mix(mix(window.key ^ mix(2)) ^ row as u64))
        });
        let rows: usize = windows.iter().map(|window| window.rows.len()).sum();
        let (first, rest) = (&self.tokens[..before], &self.tokens[before + rows..]);
        let keys = first.iter().copied().map(key).chain(heard).chain(rest.iter().copied().map(key));
        let encoder =
            |window: &Window| EncoderWork { end: before + window.rows.end, tokens: window.rows.len() };
        Work::Autoregressive {
            prompt: keys.collect(),
            encoders: windows.iter().map(encoder).collect(),
            branches: 1,
        }
    }

    /// The windows that `positions` need and that the tower has not run over.
    pub(super) fn missing(&self, recording: &Recording, positions: &Range<usize>) -> Vec<usize> {
        let before = recording.prompt.before.len();
        let windows = recording.stretches.get(self.stretch).map_or(&[][..], |stretch| &stretch.windows);
        let is_needed = |window: &Window| {
            before + window.rows.start < positions.end && positions.start < before + window.rows.end
        };
        let missing = windows.iter().zip(&self.encoded).enumerate();
        missing.filter(|(_, (window, rows))| rows.is_none() && is_needed(window)).map(|(at, _)| at).collect()
    }

    /// The content of `positions`, all of them known and encoded.
    pub(super) fn pieces(
        &self,
        recording: &Recording,
        positions: Range<usize>,
    ) -> Result<Vec<Piece<'_>>, Error> {
        let unknown = || Error::Internal("an entry asks for positions that do not exist");
        let before = recording.prompt.before.len();
        let mut pieces = Vec::new();
        let mut at = positions.start;
        let windows = &self.stretch(recording)?.windows;
        for (window, encoded) in windows.iter().zip(&self.encoded) {
            let heard = before + window.rows.start..before + window.rows.end;
            if at < heard.start.min(positions.end) {
                let end = heard.start.min(positions.end);
                pieces.push(Piece::Tokens(self.tokens.get(at..end).ok_or_else(unknown)?));
                at = end;
            }
            let end = heard.end.min(positions.end);
            if at < end {
                let rows = encoded.as_ref().ok_or(Error::Internal("a window is not encoded"))?;
                pieces.push(Piece::Heard(rows.narrow(0, at - heard.start, end - at)?));
                at = end;
            }
        }
        if at < positions.end {
            pieces.push(Piece::Tokens(self.tokens.get(at..positions.end).ok_or_else(unknown)?));
        }
        Ok(pieces)
    }

    /// Drops the rows of the tower before position `end`, which are computed.
    pub(super) fn drop_computed(&mut self, recording: &Recording, end: usize) {
        let before = recording.prompt.before.len();
        let Some(stretch) = recording.stretches.get(self.stretch) else { return };
        for (window, rows) in stretch.windows.iter().zip(&mut self.encoded) {
            rows.take_if(|_| before + window.rows.end <= end);
        }
    }

    /// Takes the token that follows the known positions, and moves on where the transcript of the stretch ends.
    pub(super) fn advance(
        &mut self,
        recording: &Recording,
        vocabulary: &Vocabulary,
        aligner: Option<&Aligner>,
        logits: &[f32],
    ) -> Result<StepOutput, Error> {
        let stretch = self.stretch(recording)?;
        let draws = Draws::new(mix(recording.seed ^ mix(self.stretch as u64)));
        let count = self.generated().len();
        let draw = Draw { draws: &draws, counter: count as u64, sampling: &recording.sampling };
        // The header of an answer, which names the language, is none of its words.
        let is_text = self.language.is_some() || self.generated().contains(&vocabulary.mark);
        let token = match recording.keywords.as_ref().filter(|_| is_text) {
            _ if !is_text && let Some(token) = self.next_of(&recording.headers, logits) => token,
            Some(keywords) => {
                let mut raised = logits.to_vec();
                keywords.raise(self.place, &mut raised);
                let token = draw.choose(&raised, 0);
                self.place = keywords.next(self.place, logits, token as usize);
                token
            }
            None => draw.choose(logits, 0),
        };
        let mut output = StepOutput { generated_tokens: 1, ..StepOutput::default() };
        let is_end = vocabulary.is_end(token);
        if !is_end {
            self.tokens.push(token);
            self.logprobs.push(logprob(logits, token as usize));
        }
        if self.awaits_language {
            if !is_end && token != vocabulary.mark && count + 1 < HEADER_TOKENS {
                output.content_key = Some(key(token));
                return Ok(output);
            }
            let (name, _) = answer::parse(&vocabulary.text(self.generated()), None);
            let Some(decided) = recording.decided.as_ref().filter(|_| !name.is_empty()) else {
                return Ok(StepOutput { finished: true, ..output });
            };
            self.awaits_language = false;
            self.language = languages::code_of(&name);
            self.tokens.extend(&decided.tokens);
            (self.generated_from, output.next_pass) = (self.tokens.len(), Some(self.work(recording)));
            self.logprobs.clear();
            return Ok(output);
        }
        if is_end || count + 1 >= stretch.max_tokens || answer::is_loop(self.generated()) {
            let aligner = aligner.filter(|_| recording.has_words);
            return Ok(self.finish(recording, stretch, vocabulary, aligner, output));
        }
        output.content_key = Some(key(token));
        Ok(output)
    }

    /// The likeliest token with which one of `headers` goes on; `None` without headers.
    fn next_of(&self, headers: &[Vec<u32>], logits: &[f32]) -> Option<u32> {
        let begun = self.generated();
        let rest = headers.iter().filter_map(|header| header.strip_prefix(begun)?.first().copied());
        rest.max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize]))
    }

    /// Ends the transcript of a stretch, whose words are aligned if there is an `aligner`.
    fn finish(
        &mut self,
        recording: &Recording,
        stretch: &Stretch,
        vocabulary: &Vocabulary,
        aligner: Option<&Aligner>,
        mut output: StepOutput,
    ) -> StepOutput {
        let segment = self.segment(recording, stretch, vocabulary);
        if let (Some(segment), Some(aligner)) = (&segment, aligner) {
            let (words, skipped) = match &recording.given {
                Some(given) => self.share(given, &segment.text),
                None => (aligner.words.words(&segment.text, self.language.as_deref()), 0),
            };
            if !words.is_empty() {
                let alignment = Arc::new(aligner.alignment(words));
                self.heard = Some(Heard { segment: segment.clone(), alignment, skipped });
                output.next_pass = Some(self.work(recording));
                return output;
            }
        }
        self.deliver(recording, segment.into_iter().filter(|_| recording.given.is_none()).collect(), output)
    }

    /// The words of a text that a transcript comes from, and how many before them are not found.
    fn share(&self, given: &Given, transcript: &str) -> (Vec<SpokenWord>, usize) {
        let rest = &given.text.words[self.progress.timed()..];
        let found = heard(rest.iter().map(|word| word.said.as_str()), transcript);
        (rest[found.clone()].iter().map(spoken).collect(), found.start)
    }

    /// Delivers the words of a given text with the times of the aligner.
    fn align_given(
        &mut self,
        recording: &Recording,
        given: &Given,
        heard: &Heard,
        times: &[WordTime],
    ) -> StepOutput {
        let samples = recording.stretches.get(self.stretch).map_or(0..0, |stretch| stretch.samples.clone());
        let [start_s, end_s] = [samples.start, samples.end].map(|at| at as f64 / SAMPLE_RATE_HZ as f64);
        let at = |ms: u64| (start_s + ms as f64 / 1e3).min(end_s);
        let said = times.iter().map(|&([start, end], probability)| {
            Some(SaidWord { start_s: at(start), end_s: at(end), probability })
        });
        let segments = self.progress.add(&given.text, std::iter::repeat_n(None, heard.skipped).chain(said));
        self.deliver(recording, segments, StepOutput::default())
    }

    /// Delivers the transcript of the stretch with the times of its words, in milliseconds from the start of the stretch.
    pub(super) fn align(&mut self, recording: &Recording, times: &[WordTime]) -> StepOutput {
        let output = StepOutput::default();
        let Some(heard) = self.heard.take() else {
            return self.deliver(recording, Vec::new(), output);
        };
        if let Some(given) = &recording.given {
            return self.align_given(recording, given, &heard, times);
        }
        let Heard { mut segment, alignment, .. } = heard;
        let likely = segment.avg_logprob.exp();
        let tokens = segment.logprobs.iter();
        let mut bytes = tokens.flat_map(|token| token.bytes.iter().map(|_| token.logprob.exp()));
        let at = |ms: u64| (segment.start_s + ms as f64 / 1e3).min(segment.end_s);
        let words = spoken_words::cut(&segment.text, &alignment.words).into_iter().zip(times);
        let words = words.map(|(text, &([start, end], _))| Word {
            text: text.to_owned(),
            start_s: at(start),
            end_s: at(end),
            probability: {
                let of_bytes = text.bytes().map(|_| bytes.next().unwrap_or(likely));
                of_bytes.sum::<f32>() / text.len().max(1) as f32
            },
        });
        segment.words = words.collect();
        if let [first, .., last] = &segment.words[..]
            && first.start_s < last.end_s
        {
            (segment.start_s, segment.end_s) = (first.start_s, last.end_s);
        }
        self.deliver(recording, vec![segment], output)
    }

    /// Ends a stretch: its transcript, and what follows.
    fn deliver(
        &mut self,
        recording: &Recording,
        mut segments: Vec<Segment>,
        mut output: StepOutput,
    ) -> StepOutput {
        output.language.clone_from(&self.language);
        if self.begin(recording, self.stretch + 1) {
            output.next_pass = Some(self.work(recording));
        } else {
            output.finished = true;
            segments.extend(recording.given.iter().flat_map(|given| self.progress.end(&given.text)));
        }
        for mut segment in segments {
            if !recording.has_logprobs {
                segment.logprobs.clear();
            }
            output.text.push_str(&segment.text);
            output.segments.push(segment);
        }
        output
    }

    /// What the transcript of a stretch came to; `None` without text.
    fn segment(
        &mut self,
        recording: &Recording,
        stretch: &Stretch,
        vocabulary: &Vocabulary,
    ) -> Option<Segment> {
        let raw = vocabulary.text(self.generated());
        let forced = self.language.as_deref().map(answer::language_name);
        let (name, text) = answer::parse(&raw, forced.as_deref());
        if self.language.is_none() {
            self.language = languages::code_of(&name);
        }
        let decided = recording.decided.as_ref().map(|decided| decided.text.as_str());
        let joint = match (decided, self.last, text.chars().next()) {
            // The network writes the space itself.
            (Some(_), ..) if raw.starts_with(' ') && !text.is_empty() => " ",
            (None, last, Some(first)) if last.is_some_and(|last| is_spaced(last, first)) => " ",
            // A window of live audio may follow another.
            (None, None, Some(first)) if recording.is_live && is_spaced('a', first) => " ",
            _ => "",
        };
        let mut logprobs = self.token_logprobs(vocabulary, &raw, joint, &text);
        if let Some(decided) = decided {
            logprobs.insert(0, TokenLogprob { bytes: decided.into(), logprob: 0.0 });
        }
        let text = [decided.unwrap_or_default(), joint, &text].concat();
        self.last = text.chars().next_back().or(self.last);
        let seconds = |samples: usize| samples as f64 / SAMPLE_RATE_HZ as f64;
        let count = self.logprobs.len().max(1) as f32;
        (!text.is_empty()).then(|| Segment {
            window_start_s: seconds(stretch.samples.start),
            start_s: seconds(stretch.samples.start),
            end_s: seconds(stretch.samples.end),
            text,
            tokens: self.generated().to_vec(),
            temperature: recording.sampling.temperature,
            avg_logprob: self.logprobs.iter().sum::<f32>() / count,
            logprobs,
            ..Segment::default()
        })
    }

    /// The bytes that each token has in `joint` and `text`, with its log-probability; none where text of `raw` was cut out.
    fn token_logprobs(
        &self,
        vocabulary: &Vocabulary,
        raw: &str,
        joint: &str,
        text: &str,
    ) -> Vec<TokenLogprob> {
        let Some(at) = raw.rfind(text).filter(|_| !text.is_empty()) else { return Vec::new() };
        // What is before and behind the text is valid, so that its bytes are those of the tokens.
        let tokens = self.generated().iter().map(|&token| vocabulary.bytes.of(token));
        let total: usize = tokens.clone().map(<[u8]>::len).sum();
        let kept = at..total.saturating_sub(raw.len() - at - text.len());
        let mut end = 0;
        let parts = tokens.zip(&self.logprobs).filter_map(|(bytes, &logprob)| {
            let start = end;
            end += bytes.len();
            let own = kept.start.clamp(start, end) - start..kept.end.clamp(start, end) - start;
            (!own.is_empty()).then(|| TokenLogprob { bytes: bytes[own].to_vec(), logprob })
        });
        let mut parts: Vec<TokenLogprob> = parts.collect();
        if let Some(first) = parts.first_mut() {
            first.bytes.splice(..0, joint.bytes());
        }
        parts
    }
}

/// Content key of the position of a token.
fn key(token: u32) -> u64 {
    mix(mix(1) ^ u64::from(token))
}
