//! What is generated in a Realtime session, a response or a transcription, and the events of it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use izwi_core::engine::{Emission, Engine, FinishReason, ToolCall};
use izwi_server::ApiError;
use izwi_server::encoding::EncodedUtterance;
use izwi_server::live::LiveReply;
use izwi_server::turns::Deciding;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::Finish;
use serde_json::{Value, json};

use super::config::{Modality, ResponseConfig};
use super::events::{Place, ServerEvent, emit, new_id};
use super::items::{Items, State, call_view};
use super::refusal::Refusal;

/// The most responses out of the conversation that are generated at once.
pub(super) const MAX_ACTIVE_OUT_OF_BAND: usize = 2;

/// Why a response was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CancelReason {
    TurnDetected,
    Client,
}

impl CancelReason {
    fn name(self) -> &'static str {
        match self {
            Self::TurnDetected => "turn_detected",
            Self::Client => "client_cancelled",
        }
    }
}

/// A response that has an id.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    pub(super) id: String,
    pub(super) config: ResponseConfig,
    /// Whether it is out of the conversation.
    pub(super) is_out_of_band: bool,
}

/// A response that is generated.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) id: String,
    pub(super) number: u64,
    /// Why it was cancelled.
    pub(super) cancelled: Option<CancelReason>,
}

/// A response to what was said so far.
#[derive(Debug)]
pub(super) struct Speculation {
    /// The response that it becomes.
    pub(super) asked: Asked,
    pub(super) number: u64,
    pub(super) item_id: String,
    pub(super) text: String,
    /// The last item before what it answers.
    pub(super) behind: Option<String>,
    /// Positions of the context before the user's turn.
    pub(super) prompt_start: usize,
}

/// A response out of the conversation.
#[derive(Debug)]
pub(super) struct OutOfBand {
    pub(super) asked: Asked,
    pub(super) active: Active,
    /// What it answers, and the answer.
    pub(super) items: Items,
    pub(super) is_begun: bool,
}

/// What is known of a response while it is generated.
pub(crate) struct Responding {
    pub(super) asked: Asked,
    /// Tells it from what else the session generates.
    pub(super) number: u64,
    pub(super) item_id: String,
    pub(super) encoded: EncodedUtterance,
    pub(super) text: String,
    /// Whether its item was reported.
    pub(super) is_told: bool,
    /// Tokens of text and of audio.
    pub(super) tokens: (usize, usize),
    /// The items of its calls of tools.
    pub(super) calls: Vec<String>,
    pub(super) failure: Option<Refusal>,
}

/// A transcript that is generated.
pub(crate) struct Transcribing {
    pub(super) live: LiveReply,
    pub(super) failure: Option<Refusal>,
}

pub(crate) enum Reply {
    Turn(Deciding),
    Response(Box<Responding>),
    Transcription(Box<Transcribing>),
}

impl Reply {
    /// Takes the failure of its job.
    pub(super) fn fail(&mut self, error: &ApiError) {
        match self {
            Self::Turn(_) => Deciding::note_failure(error),
            Self::Response(response) => response.failure = Some(error.clone().into()),
            Self::Transcription(transcription) => transcription.failure = Some(error.clone().into()),
        }
    }
}

/// How a response ended.
#[derive(Debug)]
pub(super) enum Ending {
    Completed,
    MaxTokens,
    Cancelled(CancelReason),
    Failed(Refusal),
}

impl Ending {
    pub(super) fn of(finish: &Finish, cancelled: Option<CancelReason>, failure: Option<Refusal>) -> Self {
        if let Some(failure) = failure {
            return Self::Failed(failure);
        }
        match (finish.reason, cancelled) {
            (FinishReason::Interrupted | FinishReason::Cancelled, reason) => {
                Self::Cancelled(reason.unwrap_or(CancelReason::Client))
            }
            (FinishReason::Length, _) => Self::MaxTokens,
            _ => Self::Completed,
        }
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::MaxTokens => "incomplete",
            Self::Cancelled(_) => "cancelled",
            Self::Failed(_) => "failed",
        }
    }

    fn details(&self) -> Value {
        match self {
            Self::Completed => Value::Null,
            Self::MaxTokens => json!({"type": "incomplete", "reason": "max_output_tokens"}),
            Self::Cancelled(reason) => json!({"type": "cancelled", "reason": reason.name()}),
            Self::Failed(error) => {
                let error = json!({"type": error.kind, "code": error.code, "message": error.message});
                json!({"type": "failed", "error": error})
            }
        }
    }

    /// State of the item.
    pub(super) fn state(&self) -> State {
        if matches!(self, Self::Completed) { State::Completed } else { State::Incomplete }
    }
}

impl Asked {
    fn view(&self, conversation: &str, status: &str, details: Value, output: Vec<Value>) -> Value {
        let mut view = self.config.view();
        view["id"] = self.id.as_str().into();
        view["conversation_id"] = if self.is_out_of_band { Value::Null } else { conversation.into() };
        view["status"] = status.into();
        view["status_details"] = details;
        view["output"] = output.into();
        view["usage"] = Value::Null;
        view
    }

    /// `response` of `response.created`.
    pub(super) fn begun(&self, conversation: &str) -> Value {
        self.view(conversation, "in_progress", Value::Null, Vec::new())
    }

    /// `response` of `response.done`.
    pub(super) fn ended(&self, conversation: &str, ending: &Ending, output: Vec<Value>) -> Value {
        self.view(conversation, ending.status(), ending.details(), output)
    }
}

/// `usage` of a response: tokens of the whole prompt, and of the output by kind.
pub(super) fn usage(prompt_tokens: usize, (text, audio): (usize, usize)) -> Value {
    json!({
        "total_tokens": prompt_tokens + text + audio,
        "input_tokens": prompt_tokens,
        "output_tokens": text + audio,
        "output_token_details": {"text_tokens": text, "audio_tokens": audio},
    })
}

impl Responding {
    /// A response of which nothing is generated.
    pub(super) fn new(asked: Asked, number: u64, engine: &Engine) -> Result<Self, ApiError> {
        let encoded = asked.config.output.format.encoder(engine.profile().info.sample_rate_hz)?;
        Ok(Self {
            asked,
            number,
            item_id: new_id("item"),
            encoded,
            text: String::new(),
            is_told: false,
            tokens: (0, 0),
            calls: Vec::new(),
            failure: None,
        })
    }

    pub(super) fn count(&mut self, emissions: &[Emission]) {
        let count =
            |is_it: fn(&Emission) -> bool| emissions.iter().filter(|emission| is_it(emission)).count();
        self.tokens.0 += count(|emission| matches!(emission, Emission::Token(_)));
        self.tokens.1 += count(|emission| matches!(emission, Emission::Frame(_)));
    }

    pub(super) fn place(&self) -> Place<'_> {
        Place { response_id: &self.asked.id, item_id: &self.item_id, output_index: 0, content_index: 0 }
    }

    /// The part of the item, with the text so far.
    fn part(&self) -> Value {
        match self.asked.config.modality {
            Modality::Audio => json!({"type": "audio", "transcript": self.text}),
            Modality::Text => json!({"type": "text", "text": self.text}),
        }
    }

    /// Tells events, those of the conversation only if it belongs to that.
    pub(super) fn tell<'a>(&self, events: impl IntoIterator<Item = ServerEvent<'a>>, out: &mut Outbox) {
        for event in events {
            let is_of_conversation =
                matches!(event, ServerEvent::ItemAdded { .. } | ServerEvent::ItemDone { .. });
            if !(is_of_conversation && self.asked.is_out_of_band) {
                emit(event, out);
            }
        }
    }

    /// The events that tell the item, with its view.
    pub(super) fn opening<'a>(&'a self, item: Value, previous: Option<&'a str>) -> [ServerEvent<'a>; 3] {
        [
            ServerEvent::OutputItemAdded { response_id: &self.asked.id, output_index: 0, item: item.clone() },
            ServerEvent::ItemAdded { item, previous_item_id: previous },
            ServerEvent::PartAdded { place: self.place(), part: self.part() },
        ]
    }

    /// The events of new text and new audio.
    pub(super) fn deltas<'a>(&'a self, text: Option<&'a str>, audio: &[u8]) -> Vec<ServerEvent<'a>> {
        let place = self.place();
        let mut events = Vec::new();
        match (text.filter(|text| !text.is_empty()), self.asked.config.modality) {
            (None, _) => {}
            (Some(delta), Modality::Audio) => events.push(ServerEvent::TranscriptDelta { place, delta }),
            (Some(delta), Modality::Text) => events.push(ServerEvent::TextDelta { place, delta }),
        }
        if !audio.is_empty() && self.asked.config.modality == Modality::Audio {
            events.push(ServerEvent::AudioDelta { place, delta: STANDARD.encode(audio) });
        }
        events
    }

    /// The events of a call of a tool.
    pub(super) fn call<'a>(
        &'a self,
        id: &'a str,
        call: &'a ToolCall,
        previous: Option<&'a str>,
    ) -> [ServerEvent<'a>; 6] {
        let response_id = self.asked.id.as_str();
        let output_index = (usize::from(self.is_told) + self.calls.len()).try_into().unwrap_or(u8::MAX);
        let (begun, item) = (call_view(id, call, State::InProgress), call_view(id, call, State::Completed));
        let (call_id, arguments) = (call.id.as_str(), call.arguments.as_str());
        [
            ServerEvent::OutputItemAdded { response_id, output_index, item: begun.clone() },
            ServerEvent::ItemAdded { item: begun, previous_item_id: previous },
            ServerEvent::ArgumentsDelta { response_id, item_id: id, output_index, call_id, delta: arguments },
            ServerEvent::ArgumentsDone {
                response_id,
                item_id: id,
                output_index,
                call_id,
                name: &call.name,
                arguments,
            },
            ServerEvent::ItemDone { item: item.clone(), previous_item_id: previous },
            ServerEvent::OutputItemDone { response_id, output_index, item },
        ]
    }

    /// The events that end the item.
    pub(super) fn closing<'a>(&'a self, item: Value, previous: Option<&'a str>) -> Vec<ServerEvent<'a>> {
        let place = self.place();
        let mut events = match self.asked.config.modality {
            Modality::Audio => vec![
                ServerEvent::AudioDone { place },
                ServerEvent::TranscriptDone { place, transcript: &self.text },
            ],
            Modality::Text => vec![ServerEvent::TextDone { place, text: &self.text }],
        };
        events.extend([
            ServerEvent::PartDone { place, part: self.part() },
            ServerEvent::ItemDone { item: item.clone(), previous_item_id: previous },
            ServerEvent::OutputItemDone { response_id: &self.asked.id, output_index: 0, item },
        ]);
        events
    }
}
