//! What the icon knows, and what it shows of that.

use super::choices::Choices;
use super::server::Seen;
use crate::desktop::tray::{Entry, Sign, View};

/// Characters of a message in the menu, and of a list of models.
const SHOWN_CHARS: usize = 90;
/// Voices in the menu.
const MAX_VOICES: usize = 60;

/// A click in the menu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Click {
    /// Begins or ends a dictation.
    Dictate,
    ReadSelection,
    ReadClipboard,
    StopReading,
    StartServer,
    StopServer,
    OpenPage,
    /// A choice; `None` is the server's default.
    SpeechModel(Option<String>),
    Voice(Option<String>),
    DictationModel(Option<String>),
    Quit,
}

/// The server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Server {
    /// It was not asked yet.
    Unknown,
    Off,
    /// It was started, and does not answer yet.
    Starting,
    On(Seen),
}

/// The dictation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dictation {
    /// Nothing waits for a begin.
    Down,
    Waiting,
    /// The session with the server is opened.
    Beginning,
    /// The microphone is open.
    Listening,
    /// The microphone is closed, and the rest is transcribed.
    Ending,
}

/// All that is shown.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) url: String,
    pub(super) server: Server,
    /// Whether this program has started the server.
    pub(super) is_own: bool,
    pub(super) microphone: Option<String>,
    pub(super) dictation: Dictation,
    pub(super) is_reading: bool,
    pub(super) choices: Choices,
    /// The last thing that failed.
    pub(super) problem: Option<String>,
}

impl State {
    /// What the server offers, if it runs.
    pub(super) fn seen(&self) -> Option<&Seen> {
        match &self.server {
            Server::On(seen) => Some(seen),
            Server::Unknown | Server::Off | Server::Starting => None,
        }
    }

    /// The model that speaks: the chosen one, where the server has it.
    pub(super) fn speech_model(&self) -> Option<&str> {
        let models = self.seen()?.catalogue.models("tts");
        offered(&models, self.choices.speech_model.as_deref())
    }

    /// The chosen voice, where the model has it.
    pub(super) fn voice(&self) -> Option<&str> {
        offered(&self.voices(), self.choices.voice.as_deref())
    }

    /// The model that transcribes: the chosen one, where the server has it or is not known.
    pub(super) fn dictation_model(&self) -> Option<&str> {
        let chosen = self.choices.dictation_model.as_deref();
        self.seen().map_or(chosen, |seen| offered(&seen.catalogue.models("asr"), chosen))
    }

    fn voices(&self) -> Vec<&str> {
        let Some(seen) = self.seen() else { return Vec::new() };
        let models = seen.catalogue.models("tts");
        let model = self.speech_model().or_else(|| models.first().copied());
        model.map(|model| seen.catalogue.voices(model)).unwrap_or_default()
    }

    pub(super) fn view(&self) -> View<Click> {
        let (sign, tip) = self.sign();
        let mut entries = self.server_entries();
        entries.push(Entry::Separator);
        entries.extend(self.speech_entries());
        entries.push(Entry::Separator);
        let is_on = self.seen().is_some();
        entries.push(Entry::Action("Open the web page".to_owned(), is_on.then_some(Click::OpenPage)));
        entries.extend(self.choice_entries());
        entries.push(Entry::Separator);
        if let Some(problem) = &self.problem {
            entries.push(Entry::Text(shortened(problem)));
        }
        entries.push(Entry::Action("Quit".to_owned(), Some(Click::Quit)));
        View { sign, tip: format!("Izwi: {tip}"), middle_click: self.toggle().1, entries }
    }

    fn sign(&self) -> (Sign, String) {
        let microphone = self.microphone.as_deref().unwrap_or("the microphone");
        match (&self.server, self.dictation) {
            (_, Dictation::Listening) => (Sign::Listening, format!("the microphone is open ({microphone})")),
            _ if self.is_reading => (Sign::Speaking, "reads aloud".to_owned()),
            (Server::Off, _) => (Sign::Off, "the server does not run".to_owned()),
            (Server::Unknown | Server::Starting, _) => (Sign::Off, "the server starts".to_owned()),
            (Server::On(_), Dictation::Ending) => (Sign::Idle, "transcribes the rest".to_owned()),
            (Server::On(seen), _) if seen.status != "ok" => {
                (Sign::Idle, format!("the server is {}", seen.status))
            }
            (Server::On(_), _) => (Sign::Idle, "ready".to_owned()),
        }
    }

    fn server_entries(&self) -> Vec<Entry<Click>> {
        let url = &self.url;
        let state = match &self.server {
            Server::Unknown => format!("The server on {url} is asked"),
            Server::Off => format!("No server runs on {url}"),
            Server::Starting => format!("The server on {url} starts"),
            Server::On(seen) if seen.status == "ok" => format!("The server runs on {url}"),
            Server::On(seen) => format!("The server runs on {url} ({})", seen.status),
        };
        let mut entries = vec![Entry::Text(shortened(&state))];
        if let Some(seen) = self.seen() {
            let models = if seen.loaded.is_empty() { "none".to_owned() } else { seen.loaded.join(", ") };
            entries.push(Entry::Text(shortened(&format!("Loaded models: {models}"))));
        }
        // Also one that hangs.
        if self.is_own {
            entries.push(Entry::Action("Stop the server".to_owned(), Some(Click::StopServer)));
        } else if self.server == Server::Off {
            entries.push(Entry::Action("Start the server".to_owned(), Some(Click::StartServer)));
        }
        entries
    }

    fn speech_entries(&self) -> [Entry<Click>; 5] {
        let microphone = self.microphone.as_deref().unwrap_or("none was found");
        let is_open = if self.dictation == Dictation::Listening { "Microphone, open" } else { "Microphone" };
        let (toggle, click) = self.toggle();
        let may_read = self.seen().is_some() && !self.is_reading;
        let action =
            |label: &str, click: Click, may: bool| Entry::Action(label.to_owned(), may.then_some(click));
        [
            Entry::Text(shortened(&format!("{is_open}: {microphone}"))),
            Entry::Action(toggle.to_owned(), click),
            action("Read the selection aloud", Click::ReadSelection, may_read),
            action("Read the clipboard aloud", Click::ReadClipboard, may_read),
            action("Stop reading", Click::StopReading, self.is_reading),
        ]
    }

    /// The line that begins and ends a dictation, and its click.
    fn toggle(&self) -> (&'static str, Option<Click>) {
        match self.dictation {
            // What runs can be ended whatever the server does.
            Dictation::Beginning | Dictation::Listening => ("Stop dictation", Some(Click::Dictate)),
            Dictation::Ending => ("Start dictation", None),
            Dictation::Down | Dictation::Waiting => ("Start dictation", self.seen().map(|_| Click::Dictate)),
        }
    }

    fn choice_entries(&self) -> Vec<Entry<Click>> {
        let Some(seen) = self.seen() else { return Vec::new() };
        let mut voices = self.voices();
        voices.truncate(MAX_VOICES);
        let (speech, dictation) = (seen.catalogue.models("tts"), seen.catalogue.models("asr"));
        let choices = [
            choice("Voice", &voices, self.voice(), Click::Voice),
            choice("Speech model", &speech, self.speech_model(), Click::SpeechModel),
            choice("Dictation model", &dictation, self.dictation_model(), Click::DictationModel),
        ];
        choices.into_iter().flatten().collect()
    }
}

/// The chosen one, if it is offered.
fn offered<'a>(options: &[&'a str], chosen: Option<&str>) -> Option<&'a str> {
    options.iter().copied().find(|option| Some(*option) == chosen)
}

/// A menu of options below the default one; none without options.
fn choice(
    label: &str,
    options: &[&str],
    chosen: Option<&str>,
    click: impl Fn(Option<String>) -> Click,
) -> Option<Entry<Click>> {
    let first = ("The server's default".to_owned(), click(None));
    let others = options.iter().map(|&option| (option.to_owned(), click(Some(option.to_owned()))));
    let index =
        chosen.map_or(Some(0), |chosen| Some(1 + options.iter().position(|option| *option == chosen)?));
    (!options.is_empty()).then(|| Entry::Choice {
        label: label.to_owned(),
        options: std::iter::once(first).chain(others).collect(),
        chosen: index,
    })
}

/// A text that fits into a menu.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::server::{Catalogue, Model, Voice};
    use super::*;

    fn state() -> State {
        let model =
            |id: &str, task: &str, default| Model { id: id.into(), tasks: vec![task.into()], default };
        let voice = |id: &str, model: &str| Voice { id: id.into(), models: vec![model.into()] };
        let catalogue = Catalogue {
            models: vec![model("lark", "tts", false), model("wren", "tts", true), model("owl", "asr", true)],
            voices: vec![voice("a", "lark"), voice("b_1", "wren"), voice("c", "wren")],
        };
        State {
            url: "http://127.0.0.1:1".into(),
            server: Server::On(Seen {
                status: "ok".into(),
                loaded: Vec::new(),
                catalogue: Arc::new(catalogue),
            }),
            is_own: false,
            microphone: Some("parec".into()),
            dictation: Dictation::Waiting,
            is_reading: false,
            choices: Choices::default(),
            problem: None,
        }
    }

    /// The lines of the menu that can be clicked.
    fn clicks(state: &State) -> Vec<Click> {
        let click = |entry| match entry {
            Entry::Action(_, click) => click,
            _ => None,
        };
        state.view().entries.into_iter().filter_map(click).collect()
    }

    fn options(state: &State, of: &str) -> (Vec<String>, Option<usize>) {
        let found = state.view().entries.into_iter().find_map(|entry| match entry {
            Entry::Choice { label, options, chosen } if label == of => Some((options, chosen)),
            _ => None,
        });
        let (options, chosen) = found.unwrap();
        (options.into_iter().map(|(label, _)| label).collect(), chosen)
    }

    #[test]
    fn voices_are_those_of_the_model_and_a_choice_that_is_gone_is_the_default() {
        let mut state = state();
        let default = "The server's default";
        assert_eq!(
            options(&state, "Speech model"),
            (vec![default.into(), "wren".into(), "lark".into()], Some(0))
        );
        assert_eq!(options(&state, "Voice"), (vec![default.into(), "b_1".into(), "c".into()], Some(0)));
        state.choices.voice = Some("c".into());
        assert_eq!((options(&state, "Voice").1, state.voice()), (Some(2), Some("c")));
        state.choices.speech_model = Some("lark".into());
        assert_eq!(options(&state, "Voice"), (vec![default.into(), "a".into()], Some(0)));
        assert_eq!((state.speech_model(), state.voice()), (Some("lark"), None));
        state.choices.speech_model = Some("gone".into());
        assert_eq!((state.speech_model(), state.voice()), (None, Some("c")));
    }

    #[test]
    fn what_cannot_be_done_now_cannot_be_clicked() {
        use Click::{
            Dictate, OpenPage, Quit, ReadClipboard, ReadSelection, StartServer, StopReading, StopServer,
        };
        let on = state();
        assert_eq!(clicks(&on), [Dictate, ReadSelection, ReadClipboard, OpenPage, Quit]);
        let off = State { server: Server::Off, ..on.clone() };
        assert_eq!(clicks(&off), [StartServer, Quit]);
        let lost = State { dictation: Dictation::Listening, is_reading: true, ..off.clone() };
        assert_eq!(clicks(&lost), [StartServer, Dictate, StopReading, Quit]);
        let own = State { is_own: true, ..off };
        assert_eq!(clicks(&own), [StopServer, Quit]);
        let ending = State { dictation: Dictation::Ending, ..on };
        assert_eq!(clicks(&ending), [ReadSelection, ReadClipboard, OpenPage, Quit]);
    }

    #[test]
    fn an_open_microphone_is_shown_before_all_else() {
        let open =
            State { dictation: Dictation::Listening, is_reading: true, server: Server::Off, ..state() };
        let view = open.view();
        assert_eq!((view.sign, view.tip.as_str()), (Sign::Listening, "Izwi: the microphone is open (parec)"));
        let problem = State { problem: Some("ä".repeat(1_000)), ..state() };
        let texts = problem.view().entries.into_iter().filter_map(|entry| match entry {
            Entry::Text(text) => Some(text.chars().count()),
            _ => None,
        });
        assert_eq!(texts.max(), Some(SHOWN_CHARS + 1));
    }
}
