//! The items of a Realtime conversation, and the model's context that is made of them.
//!
//! Knows no event. Items are a bounded number: the oldest are forgotten.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use izwi_core::engine::{Conversation, ConversationLimits, Emission, Message, ToolCall};
use izwi_server::ws::produced::Produced;
use izwi_server::{ApiError, AppState};
use izwi_types::excerpt;
use serde_json::{Value, json};

use super::audio_format::AudioFormat;
use super::config::Modality;
use super::events::ItemFields;
use super::input::Clip;
use super::parts::{Part, Samples, Source, check_length, checked_id, required};
use super::refusal::Refusal;

/// The most items that are remembered.
const MAX_ITEMS: usize = 256;
/// The most parts of one item.
const MAX_PARTS: usize = 16;
/// The most audio that waits for a response or a transcription.
pub(super) const MAX_WAITING_MS: u64 = 600_000;

/// One item.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    User(Vec<Part>),
    System(String),
    Assistant(Assistant),
    /// An answer that the client tells: history of another session.
    Told(String),
    /// A call of a tool by the model.
    Call(Arc<ToolCall>),
    /// What the client's tool returned.
    Output {
        call_id: String,
        output: String,
    },
}

/// An answer of the model.
#[derive(Debug, Clone)]
pub(super) struct Assistant {
    pub(super) modality: Modality,
    /// Its text; `None` once it was truncated, where what was heard of it is not known exactly.
    pub(super) text: Option<String>,
    /// Whether it was truncated: what comes after that was not heard.
    pub(super) is_truncated: bool,
    pub(super) produced: Produced,
    /// Samples that were delivered.
    pub(super) samples: u64,
    pub(super) state: State,
    /// Positions of the context before the user's turn.
    pub(super) prompt_start: usize,
    /// Positions of the user's turn before it.
    pub(super) prompt_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    InProgress,
    Completed,
    Incomplete,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

/// A call as its client sees it; its arguments once it is complete.
pub(super) fn call_view(id: &str, call: &ToolCall, state: State) -> Value {
    json!({
        "id": id,
        "object": "realtime.item",
        "type": "function_call",
        "status": state.name(),
        "call_id": call.id,
        "name": call.name,
        "arguments": if state == State::Completed { call.arguments.as_str() } else { "" },
    })
}

impl Assistant {
    pub(super) fn new(modality: Modality) -> Self {
        Self {
            modality,
            text: Some(String::new()),
            is_truncated: false,
            produced: Produced::default(),
            samples: 0,
            state: State::InProgress,
            prompt_start: 0,
            prompt_tokens: 0,
        }
    }

    /// Keeps what was heard in the first `samples`. The text is forgotten where the model does not tell what was said.
    pub(super) fn truncate(&mut self, samples: u64) {
        let kept = self.produced.heard(samples, self.state != State::InProgress);
        self.produced.truncate(kept);
        self.samples = self.samples.min(samples);
        self.is_truncated = true;
        let said = self.produced.emissions.iter().map(|emission| match emission {
            Emission::Said(text) => Some(&**text),
            _ => None,
        });
        self.text = said.collect();
    }
}

impl Item {
    pub(super) fn audio(id: String, clip: &Clip) -> Self {
        let source = clip.file.clone().map_or(Source::Dropped, Source::File);
        let part = Part::Audio { source, duration_ms: clip.duration_ms, transcript: None };
        Self { id, content: Content::User(vec![part]) }
    }

    /// Reads an item that a client creates.
    pub(super) fn create(
        fields: ItemFields,
        new_id: String,
        format: AudioFormat,
        state: &AppState,
    ) -> Result<Self, Refusal> {
        let max_chars = state.config().max_input_chars;
        let id = checked_id("item.id", fields.id.unwrap_or(new_id))?;
        match fields.kind.as_str() {
            "message" => {}
            "function_call" => {
                let call = ToolCall {
                    id: checked_id("item.call_id", required("item.call_id", fields.call_id)?)?,
                    name: checked_id("item.name", required("item.name", fields.name)?)?,
                    arguments: required("item.arguments", fields.arguments)?,
                };
                check_length("item.arguments", &call.arguments, max_chars)?;
                return Ok(Self { id, content: Content::Call(Arc::new(call)) });
            }
            "function_call_output" => {
                let call_id = checked_id("item.call_id", required("item.call_id", fields.call_id)?)?;
                let output = required("item.output", fields.output)?;
                check_length("item.output", &output, max_chars)?;
                return Ok(Self { id, content: Content::Output { call_id, output } });
            }
            other => {
                let what =
                    format!("it is '{}'; use message, function_call or function_call_output", excerpt(other));
                return Err(Refusal::unsupported("item.type", &what));
            }
        }
        let parts = fields.content.unwrap_or_default();
        if parts.is_empty() || parts.len() > MAX_PARTS {
            let message = format!("item.content has {} parts; it needs 1 to {MAX_PARTS}", parts.len());
            return Err(Refusal::invalid("item.content", message));
        }
        let of_assistant = fields.role.as_deref() == Some("assistant");
        let parts = parts.into_iter().map(|part| match of_assistant {
            true => Part::tell(part, max_chars),
            false => Part::create(part, format, state),
        });
        let content = match fields.role.as_deref() {
            Some("user") => Content::User(parts.collect::<Result<_, _>>()?),
            Some("system") => {
                let texts: Result<Vec<String>, Refusal> = parts.map(|part| part?.into_text()).collect();
                Content::System(texts?.join("\n"))
            }
            Some("assistant") => {
                let texts: Result<Vec<String>, Refusal> = parts.map(|part| part?.into_text()).collect();
                Content::Told(texts?.join("\n"))
            }
            other => {
                let other = excerpt(other.unwrap_or("(none)"));
                return Err(Refusal::invalid(
                    "item.role",
                    format!("item.role is {other}; use user, assistant or system"),
                ));
            }
        };
        Ok(Self { id, content })
    }

    /// The item as its client sees it, without audio.
    pub(super) fn view(&self) -> Value {
        let (role, state, content) = match &self.content {
            Content::User(parts) => ("user", State::Completed, parts.iter().map(Part::view).collect()),
            Content::System(text) => {
                ("system", State::Completed, vec![json!({"type": "input_text", "text": text})])
            }
            Content::Told(text) => {
                ("assistant", State::Completed, vec![json!({"type": "output_text", "text": text})])
            }
            Content::Assistant(answer) => {
                let part = match (answer.modality, &answer.text) {
                    (Modality::Audio, text) => json!({"type": "output_audio", "transcript": text}),
                    (Modality::Text, text) => json!({"type": "output_text", "text": text}),
                };
                let is_empty = answer.state == State::InProgress;
                ("assistant", answer.state, if is_empty { Vec::new() } else { vec![part] })
            }
            Content::Call(call) => return call_view(&self.id, call, State::Completed),
            Content::Output { call_id, output } => {
                return json!({
                    "id": self.id,
                    "object": "realtime.item",
                    "type": "function_call_output",
                    "status": State::Completed.name(),
                    "call_id": call_id,
                    "output": output,
                });
            }
        };
        json!({
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": state.name(),
            "role": role,
            "content": content,
        })
    }

    /// What the user said, if it is transcribed.
    pub(super) fn transcript(&self) -> Option<&String> {
        match &self.content {
            Content::User(parts) => match parts.as_slice() {
                [Part::Audio { transcript, .. }] => transcript.as_ref(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Audio that waits for a response.
    fn waiting_ms(&self) -> u64 {
        let Content::User(parts) = &self.content else { return 0 };
        let of = |part: &Part| match part {
            Part::Audio { source: Source::File(_), duration_ms, .. } => *duration_ms,
            Part::Audio { .. } | Part::Text(_) => 0,
        };
        parts.iter().map(of).sum()
    }

    /// Forgets what only the model's context needs.
    fn drop_context(&mut self) {
        match &mut self.content {
            Content::User(parts) => parts.iter_mut().for_each(|part| {
                if let Part::Audio { source, .. } = part {
                    *source = Source::Dropped;
                }
            }),
            Content::System(_) | Content::Told(_) | Content::Call(_) | Content::Output { .. } => {}
            Content::Assistant(answer) => answer.produced = Produced::default(),
        }
    }
}

/// The items of a conversation, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Items {
    items: Vec<Item>,
    /// Items before this one do not fit into the model's context.
    context_start: usize,
}

/// The context of a response.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) conversation: Conversation,
    /// Text of the system items.
    pub(super) system: Vec<String>,
    /// Positions up to the end of the last answer.
    pub(super) end: usize,
}

/// Audio to decode for the model: which part of which item.
pub(super) type Undecoded = Vec<(String, usize, Bytes)>;
/// As [`Undecoded`], decoded.
pub(super) type Decoded = Vec<(String, usize, Samples)>;

impl Items {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn position(&self, id: &str) -> Option<usize> {
        self.items.iter().position(|item| item.id == id)
    }

    pub(super) fn get(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    /// The item with this id.
    ///
    /// # Errors
    /// There is none, or it is forgotten.
    pub(super) fn find(&self, id: &str) -> Result<&Item, Refusal> {
        self.get(id).ok_or_else(|| not_found("item_id", id))
    }

    pub(super) fn last(&self) -> Option<&Item> {
        self.items.last()
    }

    pub(super) fn answer_mut(&mut self, id: &str) -> Option<&mut Assistant> {
        match self.items.iter_mut().find(|item| item.id == id).map(|item| &mut item.content) {
            Some(Content::Assistant(answer)) => Some(answer),
            _ => None,
        }
    }

    /// The id of the item before this one.
    pub(super) fn before(&self, id: &str) -> Option<&str> {
        let at = self.position(id)?.checked_sub(1)?;
        self.items.get(at).map(|item| item.id.as_str())
    }

    pub(super) fn push(&mut self, item: Item) {
        self.items.push(item);
        if self.items.len() > MAX_ITEMS {
            self.items.remove(0);
            self.context_start = self.context_start.saturating_sub(1);
        }
    }

    /// Inserts an item of the model after another.
    pub(super) fn insert_behind(&mut self, item: Item, previous: &str) {
        match self.position(previous) {
            Some(at) if at + 1 < self.items.len() && self.items.len() < MAX_ITEMS => {
                self.items.insert(at + 1, item)
            }
            _ => self.push(item),
        }
    }

    /// Inserts an item after another, at the start (`root`) or at the end (`None`).
    pub(super) fn insert(&mut self, item: Item, previous: Option<&str>) -> Result<(), Refusal> {
        if self.get(&item.id).is_some() {
            let message = format!("an item '{}' exists already", excerpt(&item.id));
            return Err(Refusal::invalid("item.id", message));
        }
        if self.waiting_ms() + item.waiting_ms() > MAX_WAITING_MS {
            return Err(too_much_waits());
        }
        let at = match previous {
            None => {
                self.push(item);
                return Ok(());
            }
            Some("root") => 0,
            Some(id) => self.position(id).ok_or_else(|| not_found("previous_item_id", id))? + 1,
        };
        if self.items.len() >= MAX_ITEMS {
            let message =
                format!("the conversation has {MAX_ITEMS} items; delete some, or append at its end");
            return Err(ApiError::TooLarge(message).into());
        }
        if at < self.context_start {
            self.context_start += 1;
        }
        self.items.insert(at, item);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Item> {
        let at = self.position(id)?;
        if at < self.context_start {
            self.context_start -= 1;
        }
        Some(self.items.remove(at))
    }

    /// Audio that waits for a response.
    pub(super) fn waiting_ms(&self) -> u64 {
        self.items.iter().map(Item::waiting_ms).sum()
    }

    /// Whether the user has said something that is not answered.
    pub(super) fn is_asked(&self) -> bool {
        let said = |item: &&Item| match &item.content {
            Content::User(parts) => parts.iter().any(Part::is_usable),
            Content::Assistant(answer) => {
                answer.state == State::InProgress || !answer.produced.emissions.is_empty()
            }
            Content::Told(_) | Content::Call(_) | Content::Output { .. } => true,
            Content::System(_) => false,
        };
        let last = self.items.iter().rev().find(said);
        last.is_some_and(|item| matches!(item.content, Content::User(_) | Content::Output { .. }))
    }

    /// The audio that the next context needs and that is not decoded.
    pub(super) fn undecoded(&self) -> Undecoded {
        let mut found = Vec::new();
        for item in &self.items[self.context_start..] {
            let Content::User(parts) = &item.content else { continue };
            for (index, part) in parts.iter().enumerate() {
                if let Part::Audio { source: Source::File(file), .. } = part {
                    found.push((item.id.clone(), index, file.clone()));
                }
            }
        }
        found
    }

    pub(super) fn set_decoded(&mut self, decoded: Decoded) {
        let mut decoded: HashMap<(String, usize), Samples> =
            decoded.into_iter().map(|(id, index, samples)| ((id, index), samples)).collect();
        for item in &mut self.items {
            let Content::User(parts) = &mut item.content else { continue };
            for (index, part) in parts.iter_mut().enumerate() {
                if let Part::Audio { source, .. } = part
                    && let Some(samples) = decoded.remove(&(item.id.clone(), index))
                {
                    *source = Source::Decoded(samples);
                }
            }
        }
    }

    /// Forgets audio of the user that is not decoded: the model cannot take it.
    pub(super) fn drop_undecoded(&mut self) {
        for item in &mut self.items {
            let Content::User(parts) = &mut item.content else { continue };
            for part in parts {
                if let Part::Audio { source, .. } = part
                    && matches!(source, Source::File(_))
                {
                    *source = Source::Dropped;
                }
            }
        }
    }

    /// Takes the transcript of an item, which may replace its audio.
    pub(super) fn set_transcript(&mut self, id: &str, text: &str, replaces_audio: bool) {
        if let Some(Item { content: Content::User(parts), .. }) =
            self.items.iter_mut().find(|item| item.id == id)
            && let Some(Part::Audio { transcript, source, .. }) = parts.first_mut()
        {
            *transcript = Some(text.to_owned());
            if replaces_audio && !text.trim().is_empty() {
                *source = Source::Transcript;
            }
        }
    }

    /// The turns before the item `answer`, the oldest left out if they do not fit.
    pub(super) fn context(&mut self, answer: &str, limits: ConversationLimits) -> Context {
        let until = self.position(answer).unwrap_or(self.items.len());
        let mut conversation = Conversation::new();
        // Positions and items up to the end of each answer.
        let mut ends: Vec<(usize, usize)> = Vec::new();
        let (mut system, mut asked) = (Vec::new(), 0);
        for (index, item) in self.items.iter().enumerate().take(until) {
            match &item.content {
                Content::System(text) => system.push(text.clone()),
                _ if index < self.context_start => {}
                Content::User(parts) => {
                    let messages: Vec<Message> = parts.iter().filter_map(Part::message).collect();
                    if !messages.is_empty() {
                        asked += messages.iter().map(positions).sum::<usize>();
                        conversation.ask(messages);
                    }
                }
                Content::Output { call_id, output } => {
                    let message = Message::Result { call_id: call_id.clone(), output: output.clone() };
                    asked += positions(&message);
                    conversation.ask(vec![message]);
                }
                Content::Call(call) => {
                    let (before, answered) =
                        (ends.last().map_or(0, |(end, _)| *end), conversation.answered());
                    let positions = std::mem::take(&mut asked) + positions_of_text(&call.arguments);
                    conversation.call(Arc::clone(call), positions);
                    if conversation.answered() == answered {
                        ends.pop();
                    }
                    ends.push((before + positions, index + 1));
                }
                Content::Told(text) => {
                    let positions = std::mem::take(&mut asked) + positions_of_text(text);
                    ends.push((ends.last().map_or(0, |(end, _)| *end) + positions, index + 1));
                    conversation.tell(text, positions);
                }
                Content::Assistant(answer) => {
                    if conversation.is_asked() && !answer.produced.emissions.is_empty() {
                        asked = 0;
                        let prompt = ends.last().map_or(0, |(end, _)| *end) + answer.prompt_tokens;
                        ends.push((prompt + answer.produced.emissions.len(), index + 1));
                        conversation.answer(answer.produced.emissions.clone(), prompt);
                    }
                }
            }
        }
        let dropped = conversation.truncate(limits);
        let mut end = ends.last().map_or(0, |(end, _)| *end);
        if let Some((dropped_end, start)) = dropped.checked_sub(1).and_then(|last| ends.get(last)) {
            end -= dropped_end;
            self.context_start = *start;
            self.items[..*start].iter_mut().for_each(Item::drop_context);
        }
        Context { conversation, system, end }
    }
}

/// About how many positions of a model's context a text takes, with the marks around its turn.
fn positions_of_text(text: &str) -> usize {
    8 + text.len().div_ceil(3)
}

/// About how many positions of a model's context a message takes, before a model has told it.
fn positions(message: &Message) -> usize {
    match message {
        Message::Text(text) | Message::Result { output: text, .. } => positions_of_text(text),
        Message::Recording(samples) => 8 + samples.len() / 1_000,
    }
}

fn not_found(param: &str, id: &str) -> Refusal {
    let message = format!("there is no item '{}', or it is forgotten", excerpt(id));
    Refusal::coded("item_not_found", Some(param), message)
}

/// The refusal of more audio than may wait.
pub(super) fn too_much_waits() -> Refusal {
    let seconds = MAX_WAITING_MS / 1_000;
    ApiError::overloaded(format!("{seconds} s of audio wait already; send it more slowly")).into()
}

#[cfg(test)]
mod tests {
    use izwi_core::engine::Turn;

    use super::*;
    use izwi_server::Recorder;
    use izwi_server::ServerConfig;
    use izwi_server::turns::PcmEncoding;
    use izwi_server::{Registry, RegistryConfig};

    const LIMITS: ConversationLimits = ConversationLimits { turns: 4, positions: 1_000 };

    fn user(id: &str) -> Item {
        Item { id: id.to_owned(), content: Content::User(vec![Part::Text(id.to_owned())]) }
    }

    fn said(ids: &[&str]) -> Turn {
        Turn::User(ids.iter().map(|id| Message::Text((*id).to_owned())).collect())
    }

    /// An answer of a token and two frames of ten samples each, after a prompt of five positions.
    fn answer(id: &str) -> Item {
        let mut answer = Assistant::new(Modality::Audio);
        let frame = || Emission::Frame([1].into());
        answer.produced.push(vec![Emission::Token(7), frame(), frame()], &[0, 10, 20]);
        (answer.samples, answer.prompt_tokens, answer.state) = (20, 5, State::Completed);
        Item { id: id.to_owned(), content: Content::Assistant(answer) }
    }

    fn conversation(exchanges: usize) -> Items {
        let mut items = Items::default();
        for index in 0..exchanges {
            items.push(user(&format!("u{index}")));
            items.push(answer(&format!("a{index}")));
        }
        items
    }

    fn lengths(context: &Context) -> Vec<usize> {
        let length = |turn: &Turn| match turn {
            Turn::User(messages) => messages.len(),
            Turn::Model(emissions) => emissions.len(),
            Turn::Told(text) => text.len(),
        };
        context.conversation.turns().iter().map(length).collect()
    }

    #[test]
    fn the_context_has_what_was_heard_and_what_was_not_answered() {
        let mut items = conversation(2);
        assert!(!items.is_asked());
        items.push(user("u2"));
        assert!(items.is_asked());
        let context = items.context("next", LIMITS);
        assert_eq!((lengths(&context), context.end), (vec![1, 3, 1, 3, 1], 16));
        // A half of the second answer was heard, and nothing of the first.
        items.answer_mut("a1").unwrap().truncate(19);
        items.answer_mut("a0").unwrap().truncate(0);
        assert_eq!(items.answer_mut("a1").unwrap().text, None);
        let context = items.context("next", LIMITS);
        assert_eq!((lengths(&context), context.end), (vec![2, 2, 1], 7));
        assert_eq!(context.conversation.turns()[0], said(&["u0", "u1"]));
        items.remove("a1");
        assert_eq!(items.context("next", LIMITS).conversation.turns(), [said(&["u0", "u1", "u2"])]);
        assert_eq!(items.context("u2", LIMITS).conversation.turns(), [said(&["u0", "u1"])], "up to an item");
    }

    #[tokio::test]
    async fn answers_that_the_client_tells_are_history() {
        let config = ServerConfig { max_input_chars: 100, ..ServerConfig::default() };
        let registry = Registry::new(RegistryConfig::new("m"));
        let state = AppState::new(config, registry, Recorder::install().unwrap(), None);
        let create = |item: Value| {
            let fields = serde_json::from_value(item).unwrap();
            let format = AudioFormat { encoding: PcmEncoding::S16Le, rate_hz: 24_000 };
            Item::create(fields, "new".to_owned(), format, &state)
        };
        let told =
            |content: Value| create(json!({"type": "message", "role": "assistant", "content": [content]}));
        for part in [
            json!({"type": "output_text", "text": "Hello."}),
            json!({"type": "text", "text": "Hello."}),
            json!({"type": "output_audio", "transcript": "Hello.", "audio": null}),
        ] {
            let item = told(part).unwrap();
            let view = item.view();
            assert_eq!((&view["role"], &view["status"]), (&json!("assistant"), &json!("completed")));
            assert_eq!(view["content"], json!([{"type": "output_text", "text": "Hello."}]));
        }
        for (part, param) in [
            (json!({"type": "input_text", "text": "a"}), "item.content.type"),
            (json!({"type": "output_text"}), "item.content.text"),
            (json!({"type": "output_audio", "audio": "AAAA"}), "item.content.transcript"),
            (json!({"type": "output_text", "text": "a".repeat(101)}), "item.content.text"),
        ] {
            assert_eq!(told(part).unwrap_err().param.as_deref(), Some(param));
        }
        let mut items = Items::default();
        let hello = told(json!({"type": "output_text", "text": "Hello."})).unwrap();
        items.insert(Item { id: "t0".to_owned(), ..hello }, None).unwrap();
        assert!(!items.is_asked());
        items.push(user("u0"));
        assert!(items.is_asked());
        let context = items.context("next", LIMITS);
        assert_eq!(
            context.conversation.turns(),
            [Turn::User(Vec::new()), Turn::Told("Hello.".into()), said(&["u0"])]
        );
        assert_eq!(context.end, positions_of_text("Hello."));
        items.push(answer("a0"));
        items.push(user("u1"));
        assert_eq!(lengths(&items.context("next", LIMITS)), [0, 6, 1, 3, 1]);
    }

    #[test]
    fn the_oldest_turns_leave_a_full_context_for_good() {
        let mut items = conversation(4);
        items.push(Item { id: "s".to_owned(), content: Content::System("Be kind.".to_owned()) });
        items.push(user("u4"));
        let context = items.context("next", LIMITS);
        assert_eq!((lengths(&context), context.end), (vec![1, 3, 1, 3, 1], 16));
        assert_eq!(context.system, ["Be kind."]);
        assert_eq!(items.answer_mut("a1").unwrap().produced.emissions, [], "its memory is free");
        items.push(answer("a4"));
        items.push(user("u5"));
        assert_eq!(lengths(&items.context("next", LIMITS)), [1, 3, 1, 3, 1, 3, 1], "it does not drop more");
        items.insert(user("first"), Some("root")).unwrap();
        assert_eq!(
            lengths(&items.context("next", LIMITS)).len(),
            7,
            "what is inserted before it stays outside"
        );
    }

    #[test]
    fn items_are_inserted_by_their_neighbours_and_are_a_bounded_number() {
        let mut items = conversation(1);
        items.insert(user("b"), Some("u0")).unwrap();
        items.insert(user("c"), None).unwrap();
        assert_eq!(
            (items.before("b"), items.before("c"), items.before("u0")),
            (Some("u0"), Some("a0"), None)
        );
        assert_eq!(items.insert(user("d"), Some("nobody")).unwrap_err().code, "item_not_found");
        assert_eq!(items.insert(user("b"), None).unwrap_err().param.as_deref(), Some("item.id"));
        for index in 0..2 * MAX_ITEMS {
            items.push(user(&index.to_string()));
        }
        assert_eq!(items.items.len(), MAX_ITEMS);
        assert!(items.find("b").is_err(), "the oldest are forgotten");
        assert_eq!(items.insert(user("e"), Some("root")).unwrap_err().code, "too_large");
    }

    #[test]
    fn audio_that_no_model_takes_is_no_question() {
        let mut items = Items::default();
        items.push(Item::audio(
            "a".to_owned(),
            &Clip { file: Some(Bytes::from_static(b"RIFF")), duration_ms: MAX_WAITING_MS },
        ));
        assert_eq!((items.is_asked(), items.undecoded().len()), (true, 1));
        let clip = Clip { file: Some(Bytes::new()), duration_ms: 1 };
        let error = items.insert(Item::audio("b".to_owned(), &clip), None).unwrap_err();
        assert_eq!(error.code, "overloaded");
        items.drop_undecoded();
        assert_eq!((items.is_asked(), items.undecoded().len(), items.waiting_ms()), (false, 0, 0));
    }
}
