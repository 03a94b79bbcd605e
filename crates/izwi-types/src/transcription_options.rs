//! The options of a transcription, each a row of the table below: HTTP, forms, their schemas, the command line, remote servers,
//! the engine and the models read it.
//!
//! Knows no route, no parser of flags and no family.

use serde::{Deserialize, Deserializer};

use crate::option_row::{ListLimits, OptionFlag, OptionRow, OptionValue};
use crate::{ChunkingStrategy, InputError, SpeechDetection};

/// Rows: description, name, its other name if it is a list, type = form and limits (see [`OptionValue`]), what a model that takes it
/// does, its flag.
macro_rules! transcription_options {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident $(/ $alias:literal)?: $type:ty = $form:ident($($limit:expr),*), $ability:literal
            $(, flag $flag:literal $value:literal $help:literal)?;
    )+) => {
        /// Options of a transcription, for HTTP, command line, engine and models. Absent options take the model's defaults.
        #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
        #[serde(default, expecting = "a JSON object")]
        pub struct TranscriptionOptions {
            $(
                $(#[doc = $doc])+
                #[serde(deserialize_with = "or_default" $(, alias = $alias)?)]
                pub $name: $type,
            )+
        }

        impl TranscriptionOptions {
            /// Every option with the place of its value, in the order of the table.
            pub fn rows(&mut self) -> Vec<OptionRow<'_>> {
                vec![$(OptionRow {
                    name: stringify!($name),
                    alias: [$($alias)?].first().copied(),
                    description: concat!($($doc),+).trim(),
                    ability: $ability,
                    flag: [$(OptionFlag { name: $flag, value: $value, help: $help })?].first().copied(),
                    value: OptionValue::$form(&mut self.$name, $($limit),*),
                }),+]
            }
        }
    };
}

transcription_options! {
    /// Code of the spoken language; detected without it, and with `auto`.
    language: Option<String> = Text(usize::MAX), "take a language",
        flag "language" "TAG" "Language of the recording, as a BCP 47 tag [default: detected]";
    /// Times to compute. `word` needs `response_format` `verbose_json`.
    timestamp_granularities / "timestamp_granularities[]": Vec<String> =
        List(ListLimits::of(&["word", "segment"])), "give word timestamps",
        flag "words" "word" "Add word timestamps; needs --format json";
    /// Whether the text is translated to English.
    translate: bool = Switch(), "translate",
        flag "translate" "" "Translate to English";
    /// Text before the recording, or words that occur in it.
    prompt: Option<String> = Text(65_536), "take a prompt",
        flag "prompt" "TEXT" "Text that could precede the recording: names, spellings, style";
    /// Texts that are continued side by side at temperature 0, to find the likeliest; 1 takes the likeliest token each time.
    /// Without it 5, where the model can, or 1 with `stream`.
    beam_size: Option<u64> = Whole(1..=10), "search for the likeliest text",
        flag "beam-size" "N" "Texts that are continued side by side to find the likeliest, 1 to 10; 1 is the fastest \
                              [default: the model's]";
    /// Texts that are finished before the search ends, as a multiple of `beam_size`; 1 without it.
    patience: Option<f32> = Number(f32::EPSILON..=8.0, None), "search for the likeliest text",
        flag "patience" "P" "Texts that are finished before the search ends, as a multiple of the beam size, up to 8 \
                             [default: 1]";
    /// Exponent of the length by which the log-probability of a text is divided, ((5 + tokens) / 6)^x. Without it the
    /// log-probability is divided by the number of tokens.
    length_penalty: Option<f32> = Number(0.0..=1.0, None), "search for the likeliest text",
        flag "length-penalty" "A" "Exponent of the length by which the log-probability of a text is divided, 0 to 1 \
                                   [default: the number of tokens]";
    /// 0 for the most likely text, raised where that fails.
    temperature: Option<f32> = Number(0.0..=1.0, Some(0.0)), "draw tokens";
    /// Seed of all randomness.
    seed: Option<u64> = Whole(0..=u64::MAX), "draw tokens";
    /// What the answer has besides the text. `logprobs` needs `response_format` `json`.
    include / "include[]": Vec<String> = List(ListLimits::of(&["logprobs"])), "give log-probabilities";
    /// How speech is found in the recording. Without it as with `auto`.
    chunking_strategy: Option<ChunkingStrategy> = Chunking(), "take parameters of speech detection";
    /// Languages of which one is detected, in place of `language`.
    languages / "languages[]": Vec<String> = List(ListLimits::any(32)), "choose among languages",
        flag "languages" "TAG,..." "Languages of which one is detected, as BCP 47 tags, in place of --language";
    /// Whether spoken numbers, ordinals, amounts of money, measures, dates and times are written in figures, where the model
    /// writes them in words. In English.
    inverse_normalization: bool = Switch(), "rewrite numbers",
        flag "inverse-normalization" "" "Write numbers, dates and amounts in figures where the model writes them in words";
    /// Words and phrases that are likely in the recording, such as names: at most 128, each of at most 128 characters.
    keywords / "keywords[]": Vec<String> = List(ListLimits { max_chars: 128, ..ListLimits::any(128) }), "take keywords",
        flag "keyword" "WORD" "A word or phrase that is likely in the recording, such as a name; may repeat";
    /// The most speakers that are told apart, of transcripts with speakers.
    max_speakers: Option<u64> = Whole(1..=32), "bound the number of speakers",
        flag "max-speakers" "N" "The most speakers that are told apart, 1 to 32; with --speakers";
}

impl TranscriptionOptions {
    /// These options with the times of words.
    #[must_use]
    pub fn with_words(self) -> Self {
        Self { timestamp_granularities: vec!["word".to_owned()], ..self }
    }

    /// These options with the log-probability of each token.
    #[must_use]
    pub fn with_logprobs(self) -> Self {
        Self { include: vec!["logprobs".to_owned()], ..self }
    }

    /// Whether the times of words are asked for.
    pub fn words(&self) -> bool {
        self.timestamp_granularities.iter().any(|name| name == "word")
    }

    /// Whether the log-probability of each token is asked for.
    pub fn logprobs(&self) -> bool {
        self.include.iter().any(|name| name == "logprobs")
    }

    /// How speech is found in the recording; `None` for the model's own way.
    pub fn detection(&self) -> Option<SpeechDetection> {
        self.chunking_strategy.as_ref().and_then(ChunkingStrategy::detection)
    }

    /// These options if they are valid for some model, without those that ask for what is so anyway.
    ///
    /// # Errors
    /// A value is outside its limits, or two contradict each other; the error names the option, the value and the remedy.
    pub fn checked(mut self) -> Result<Self, InputError> {
        self.rows().into_iter().try_for_each(OptionRow::check)?;
        self.language.take_if(|language| language.eq_ignore_ascii_case("auto"));
        // Segments have times in any case.
        self.timestamp_granularities.retain(|name| name != "segment");
        let fault = |param, message: &str| Err(InputError { param, message: message.to_owned() });
        if self.language.is_some() && !self.languages.is_empty() {
            return fault("languages", "language and languages are both given; send one");
        }
        if self.logprobs() && self.inverse_normalization {
            return fault(
                "include",
                "include has 'logprobs', which are those of the words that inverse_normalization rewrites; leave one out",
            );
        }
        if self.patience.is_some() && self.beam_size == Some(1) {
            return fault("patience", "patience needs a beam_size above 1; raise that or leave patience out");
        }
        Ok(self)
    }

    /// Names of the options that are set, in the order of the table.
    pub fn asked(&self) -> Vec<&'static str> {
        self.clone().rows().iter().filter(|row| row.is_set()).map(|row| row.name).collect()
    }

    /// The options that are set, as fields of a form.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        self.clone().rows().into_iter().flat_map(OptionRow::fields).collect()
    }

    /// Refuses what a model lacks that takes the options named in `taken` and no others.
    ///
    /// # Errors
    /// Another option is set; the error names it.
    pub fn check_taken(&self, taken: &[&str]) -> Result<(), InputError> {
        let mut options = self.clone();
        // A beam of one is no search.
        options.beam_size.take_if(|size| *size == 1);
        // At temperature 0 nothing is drawn.
        options.temperature.take_if(|temperature| *temperature == 0.0);
        let lacked = options.rows().into_iter().find(|row| row.is_set() && !taken.contains(&row.name));
        let Some(OptionRow { name, ability, .. }) = lacked else { return Ok(()) };
        let param = if name == "translate" { "model" } else { name };
        Err(InputError { param, message: format!("this model does not {ability}; choose another for it") })
    }
}

/// Reads a member that may be null, which counts as absent.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(reader: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(reader)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options without a value.
    fn none() -> TranscriptionOptions {
        TranscriptionOptions::default()
    }

    #[test]
    fn values_outside_their_limits_are_refused_by_name() {
        let list = |entry: &str, count| vec![entry.to_owned(); count];
        for (options, param) in [
            (TranscriptionOptions { beam_size: Some(0), ..none() }, "beam_size"),
            (TranscriptionOptions { beam_size: Some(11), ..none() }, "beam_size"),
            (TranscriptionOptions { beam_size: Some(1), patience: Some(1.0), ..none() }, "patience"),
            (TranscriptionOptions { patience: Some(0.0), ..none() }, "patience"),
            (TranscriptionOptions { patience: Some(8.5), ..none() }, "patience"),
            (TranscriptionOptions { patience: Some(f32::NAN), ..none() }, "patience"),
            (TranscriptionOptions { length_penalty: Some(1.5), ..none() }, "length_penalty"),
            (TranscriptionOptions { length_penalty: Some(f32::NAN), ..none() }, "length_penalty"),
            (TranscriptionOptions { temperature: Some(-0.1), ..none() }, "temperature"),
            (TranscriptionOptions { temperature: Some(1.5), ..none() }, "temperature"),
            (TranscriptionOptions { temperature: Some(f32::NAN), ..none() }, "temperature"),
            (TranscriptionOptions { prompt: Some("é".repeat(65_537)), ..none() }, "prompt"),
            (TranscriptionOptions { languages: list("en", 33), ..none() }, "languages"),
            (TranscriptionOptions { keywords: list("a", 129), ..none() }, "keywords"),
            (TranscriptionOptions { keywords: list(&"é".repeat(129), 1), ..none() }, "keywords"),
            (TranscriptionOptions { include: list("all", 1), ..none() }, "include"),
            (
                TranscriptionOptions { timestamp_granularities: list("letter", 1), ..none() },
                "timestamp_granularities",
            ),
        ] {
            let error = options.clone().checked().unwrap_err();
            assert_eq!(error.param, param, "{options:?}: {error}");
        }
        let error = TranscriptionOptions { patience: Some(9.0), ..none() }.checked().unwrap_err();
        assert_eq!(error.message, "patience is 9; it must be above 0 and at most 8");
        let widest = TranscriptionOptions {
            beam_size: Some(10),
            patience: Some(8.0),
            length_penalty: Some(0.0),
            temperature: Some(1.0),
            ..none()
        };
        assert_eq!(widest.clone().checked(), Ok(widest));
    }

    #[test]
    fn what_is_blank_or_so_anyway_is_not_asked() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let options = TranscriptionOptions {
            language: Some("Auto".to_owned()),
            prompt: Some(" ".to_owned()),
            languages: texts(&[" "]),
            timestamp_granularities: texts(&["segment"]),
            chunking_strategy: Some(ChunkingStrategy::Named("auto".to_owned())),
            ..none()
        };
        assert_eq!(options.checked(), Ok(none()));
    }

    #[test]
    fn what_is_set_is_told_by_name_and_refused_where_it_is_not_taken() {
        let options = TranscriptionOptions {
            language: Some("en".to_owned()),
            temperature: Some(0.5),
            beam_size: Some(1),
            keywords: vec!["a".to_owned(), "b".to_owned()],
            ..none()
        };
        assert_eq!(options.asked(), ["language", "beam_size", "temperature", "keywords"]);
        let fields = options.fields();
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert_eq!(
            fields,
            [
                ("language", "en"),
                ("beam_size", "1"),
                ("temperature", "0.5"),
                ("keywords[]", "a"),
                ("keywords[]", "b")
            ]
        );
        assert_eq!(options.check_taken(&["language", "temperature", "keywords"]), Ok(()), "no search");
        let error = options.check_taken(&["language", "keywords"]).unwrap_err();
        assert_eq!(error.param, "temperature");
        let still = TranscriptionOptions { temperature: Some(0.0), ..none() };
        assert_eq!(still.check_taken(&[]), Ok(()), "nothing is drawn");
        let error = options.check_taken(&["language", "temperature"]).unwrap_err();
        assert_eq!(
            (error.param, &*error.message),
            ("keywords", "this model does not take keywords; choose another for it")
        );
        let error = TranscriptionOptions { translate: true, ..none() }.check_taken(&[]).unwrap_err();
        assert_eq!(error.param, "model");
    }
}
