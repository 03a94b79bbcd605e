//! The responses of a session, from their jobs to their ends.

use std::sync::Arc;

use izwi_audio::encode::EncodeError;
use izwi_core::engine::{
    AudioInput, ChatOptions, Conversation, Emission, Engine, EngineCoreRequest, RequestId, SpeechOptions,
    StreamingOutput, ToolCall,
};
use izwi_server::chunking::ChunkSizes;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Job, Outcome};
use izwi_server::{ApiError, AppState};

use super::config::{Modality, ResponseConfig};
use super::events::{ServerEvent, emit, new_id};
use super::items::{Assistant, Content, Context, Decoded, Item, Undecoded};
use super::parts::Samples;
use super::response::{Active, Asked, CancelReason, Ending, Reply, Responding, usage};
use super::session::Session;

impl Session {
    pub(super) fn respond(
        &mut self,
        asked: Asked,
        number: u64,
        engine: Engine,
    ) -> Result<Job<Self>, ApiError> {
        let response = Responding::new(asked, number, &engine)?;
        let undecoded = self.items_of(number).undecoded();
        self.activate(&response.asked, number, &response.item_id);
        let input = decode(engine.clone(), self.state.clone(), undecoded, self.id.clone());
        Ok(Job::prepared(engine, input, Self::request, Reply::Response(Box::new(response))))
    }

    /// The number of another response.
    pub(super) fn next_number(&mut self) -> u64 {
        self.responses += 1;
        self.responses
    }

    /// Gives a response its place in the conversation.
    pub(super) fn activate(&mut self, asked: &Asked, number: u64, item_id: &str) {
        let content = Content::Assistant(Assistant::new(asked.config.modality));
        self.items_of(number).push(Item { id: item_id.to_owned(), content });
        if !asked.is_out_of_band {
            self.active = Some(Active { id: asked.id.clone(), number, cancelled: None });
        }
    }

    /// The request for a response, once the user's audio is decoded.
    fn request(&mut self, reply: &Reply, decoded: Decoded) -> EngineCoreRequest {
        let (Reply::Response(response), Some(chat)) = (reply, &self.chat) else {
            return EngineCoreRequest::converse(Conversation::new());
        };
        let (chat, limits) = (Engine::clone(chat), chat.config().conversation_limits());
        let items = self.items_of(response.number);
        items.set_decoded(decoded);
        let Context { mut conversation, system, end } = items.context(&response.item_id, limits);
        if let Some(answer) = items.answer_mut(&response.item_id) {
            answer.prompt_start = end;
        }
        if !conversation.is_asked() {
            // The model begins, or goes on.
            conversation.ask(Vec::new());
        }
        Self::request_of(&response.asked.config, conversation, system, &chat)
    }

    /// The request for a response to a conversation.
    pub(super) fn request_of(
        config: &ResponseConfig,
        conversation: Conversation,
        mut system: Vec<String>,
        chat: &Engine,
    ) -> EngineCoreRequest {
        system.splice(..0, config.instructions.clone());
        let options = SpeechOptions {
            max_tokens: config.max_output_tokens,
            instructions: (!system.is_empty()).then(|| system.join("\n")),
            speed: config.output.speed,
            ..SpeechOptions::default()
        };
        let request = EngineCoreRequest::converse(Conversation::new())
            .with_chat(ChatOptions {
                conversation,
                text_temperature: None,
                tools: config.tools.clone(),
                tool_choice: config.tool_choice.clone(),
                text_only: config.modality == Modality::Text,
            })
            .with_options(options);
        let request = EngineCoreRequest { voice: config.output.voice.clone(), ..request };
        match ChunkSizes::resolve(None, None, chat.profile().info.sample_rate_hz) {
            Ok(chunks) => chunks.of(request),
            Err(_) => request,
        }
    }

    pub(super) fn deliver_response(
        &mut self,
        response: &mut Responding,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        let (mut emissions, mut ends, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for (emission, end) in chunk.emissions.iter().zip(&chunk.emission_ends) {
            match emission {
                Emission::Call(call) => calls.push(Arc::clone(call)),
                emission => {
                    emissions.push(emission.clone());
                    ends.push(*end);
                }
            }
        }
        let is_empty = chunk.samples.is_empty() && chunk.text.is_none() && emissions.is_empty();
        let is_of_calls = is_empty && (!calls.is_empty() || !response.calls.is_empty());
        if !response.is_told && !is_of_calls {
            response.is_told = true;
            let items = self.items_of(response.number);
            let item = items.get(&response.item_id).map(Item::view).unwrap_or_default();
            let previous = items.before(&response.item_id);
            response.tell(response.opening(item, previous), out);
        }
        let audio = response.encoded.encode(&chunk)?;
        if let Some(delta) = &chunk.text {
            response.text.push_str(delta);
        }
        response.count(&emissions);
        for event in response.deltas(chunk.text.as_deref(), &audio) {
            emit(event, out);
        }
        // What comes after a truncation was not heard.
        if let Some(answer) = self.items_of(response.number).answer_mut(&response.item_id)
            && !answer.is_truncated
        {
            if let Some(text) = &mut answer.text {
                text.push_str(chunk.text.as_deref().unwrap_or_default());
            }
            answer.samples += chunk.samples.len() as u64;
            answer.produced.push(emissions, &ends);
        }
        calls.into_iter().for_each(|call| self.tell_call(response, call, out));
        Ok(())
    }

    /// Tells a call of a tool, an item of its own behind the answer.
    fn tell_call(&mut self, response: &mut Responding, call: Arc<ToolCall>, out: &mut Outbox) {
        let id = new_id("item");
        let behind = response.calls.last().unwrap_or(&response.item_id).clone();
        let items = self.items_of(response.number);
        items.insert_behind(Item { id: id.clone(), content: Content::Call(Arc::clone(&call)) }, &behind);
        if !response.is_told {
            // There is no answer before it.
            items.remove(&response.item_id);
        }
        let previous = items.before(&id);
        response.tell(response.call(&id, &call, previous), out);
        response.calls.push(id);
    }

    pub(super) fn end_response(&mut self, response: Responding, outcome: Outcome, out: &mut Outbox) {
        if self.is_speculative(&response) {
            self.speculation = None;
        }
        let is_it = |active: &Active| active.number == response.number;
        let other = self.out_of_band.iter().position(|other| is_it(&other.active));
        let mut other = other.map(|at| self.out_of_band.remove(at));
        let (active, items) = match &mut other {
            Some(other) => (Some(&other.active), &mut other.items),
            None => (self.active.as_ref().filter(|active| is_it(active)), &mut self.items),
        };
        // Nobody knows of a speculative one that is not wanted.
        let Some(cancelled) = active.map(|active| active.cancelled) else { return };
        if !response.asked.is_out_of_band {
            self.active = None;
        }
        let failure = response.failure.clone();
        let (ending, prompt_tokens) = match &outcome {
            Outcome::Finished(finish) => {
                (Ending::of(finish, cancelled, failure), Some(finish.stats.prompt_tokens))
            }
            Outcome::Cancelled => (Ending::Cancelled(cancelled.unwrap_or(CancelReason::Client)), None),
            Outcome::Failed => {
                let failure = failure.unwrap_or_else(|| ApiError::CutOff.into());
                if failure.kind == "invalid_request_error" {
                    // The next response is not to fail of the same.
                    items.drop_undecoded();
                }
                (Ending::Failed(failure), None)
            }
        };
        let item = response.is_told.then(|| {
            if let Some(answer) = items.answer_mut(&response.item_id) {
                answer.state = ending.state();
                answer.prompt_tokens = prompt_tokens.unwrap_or_default().saturating_sub(answer.prompt_start);
            }
            let item = items.get(&response.item_id).map(Item::view).unwrap_or_default();
            let previous = items.before(&response.item_id);
            response.tell(response.closing(item.clone(), previous), out);
            item
        });
        if item.is_none() {
            items.remove(&response.item_id);
        }
        let calls = response.calls.iter().filter_map(|id| items.get(id)).map(Item::view);
        let output = item.into_iter().chain(calls).collect();
        let mut done = response.asked.ended(&self.conversation_id, &ending, output);
        if let Outcome::Finished(finish) = &outcome {
            // A model that tells no tokens counts them elsewhere.
            let tokens = match response.tokens {
                (0, 0) => (finish.stats.generated_tokens, 0),
                tokens => tokens,
            };
            done["usage"] = usage(finish.stats.prompt_tokens, tokens);
        }
        emit(ServerEvent::ResponseDone { response: done }, out);
    }
}

/// Decodes the user's audio for the model.
async fn decode(
    engine: Engine,
    state: AppState,
    undecoded: Undecoded,
    session_id: String,
) -> Result<Decoded, ApiError> {
    let mut decoded = Vec::with_capacity(undecoded.len());
    for (item, part, file) in undecoded {
        let samples = engine.decode_message(AudioInput::File(file)).await;
        let id = RequestId::from(session_id.as_str());
        let samples = samples.map_err(|error| ApiError::from_engine(error, &engine.profile().model, &id))?;
        decoded.push((item, part, Samples::new(&state, samples)?));
    }
    Ok(decoded)
}
