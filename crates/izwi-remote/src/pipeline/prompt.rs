//! The request for a completion: the conversation as messages of the chat completions API.

use std::sync::Arc;

use izwi_core::engine::GenerationParams;
use izwi_types::{ConverseInput, Emission, Message, Tool, ToolCall, ToolChoice, Turn};
use serde_json::{Map, Value, json};

use super::transcripts::Transcripts;
use super::{PipelineConfig, SYSTEM};

/// Members that a configuration may not set.
pub(super) const RESERVED: [&str; 5] = ["model", "messages", "stream", "tools", "tool_choice"];
/// What stands for the result of a call that has none.
const NO_RESULT: &str = "(no result)";

/// The body of `POST /chat/completions`.
pub(super) fn body(
    config: &PipelineConfig,
    input: &ConverseInput,
    transcripts: &Transcripts,
) -> Map<String, Value> {
    let mut body = Map::from_iter([("stream_options".to_owned(), json!({"include_usage": true}))]);
    body.extend(config.parameters.clone());
    let system = input.instructions.as_deref().or(config.system.as_deref()).unwrap_or(SYSTEM);
    let mut set = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    set("model", config.llm.model.as_str().into());
    set("messages", messages(system, &input.turns, transcripts).into());
    set("stream", true.into());
    if input.max_tokens != GenerationParams::default().max_tokens {
        set("max_tokens", input.max_tokens.into());
    }
    if let Some(sampling) = &input.text_sampling {
        set("temperature", sampling.temperature.into());
    }
    if !input.tools.is_empty() {
        set("tools", input.tools.iter().map(tool).collect());
        set(
            "tool_choice",
            match &input.tool_choice {
                ToolChoice::Auto => "auto".into(),
                ToolChoice::None => "none".into(),
                ToolChoice::Required => "required".into(),
                ToolChoice::Named(name) => json!({"type": "function", "function": {"name": name}}),
            },
        );
    }
    body
}

fn tool(tool: &Tool) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        function["description"] = description.as_str().into();
    }
    // What is no JSON is left to the server.
    if let Some(parameters) = &tool.parameters {
        let schema = serde_json::from_str(parameters);
        function["parameters"] = schema.unwrap_or_else(|_| parameters.as_str().into());
    }
    json!({"type": "function", "function": function})
}

fn messages(system: &str, turns: &[Turn], transcripts: &Transcripts) -> Vec<Value> {
    let mut messages = vec![json!({"role": "system", "content": system})];
    let mut calls: Vec<&ToolCall> = Vec::new();
    for turn in turns {
        match turn {
            Turn::User(parts) => {
                // Every call has one result, right behind it; some servers refuse anything else.
                messages.extend(calls.drain(..).map(|call| {
                    let content = parts.iter().find_map(|part| match part {
                        Message::Result { call_id, output } if *call_id == call.id => Some(output.as_str()),
                        _ => None,
                    });
                    json!({"role": "tool", "tool_call_id": call.id, "content": content.unwrap_or(NO_RESULT)})
                }));
                let said: Vec<&str> = parts.iter().filter_map(|part| text_of(part, transcripts)).collect();
                say("user", &said.join("\n"), &mut messages);
            }
            Turn::Told(text) => say("assistant", text, &mut messages),
            Turn::Model(emissions) => {
                let said: String = emissions.iter().filter_map(said).collect();
                calls = emissions.iter().filter_map(call).map(Arc::as_ref).collect();
                if calls.is_empty() {
                    say("assistant", said.trim(), &mut messages);
                    continue;
                }
                let told: Vec<Value> = calls.iter().map(|call| told(call)).collect();
                messages.push(json!({"role": "assistant", "content": said.trim(), "tool_calls": told}));
            }
        }
    }
    messages
}

/// Adds text, to the message before it if that is of the same role: some models take turns alone.
fn say(role: &str, text: &str, messages: &mut Vec<Value>) {
    if text.is_empty() {
        return;
    }
    match messages.last_mut() {
        Some(last) if last["role"] == role && last.get("tool_calls").is_none() => {
            let joined = format!("{}\n{text}", last["content"].as_str().unwrap_or_default());
            last["content"] = joined.into();
        }
        _ => messages.push(json!({"role": role, "content": text})),
    }
}

fn text_of<'a>(part: &'a Message, transcripts: &'a Transcripts) -> Option<&'a str> {
    let text = match part {
        Message::Text(text) => text.trim(),
        Message::Recording(samples) => transcripts.text(samples),
        Message::Result { .. } => "",
    };
    Some(text).filter(|text| !text.is_empty())
}

fn said(emission: &Emission) -> Option<&str> {
    match emission {
        Emission::Said(text) => Some(text),
        Emission::Token(_) | Emission::Frame(_) | Emission::Call(_) => None,
    }
}

fn call(emission: &Emission) -> Option<&Arc<ToolCall>> {
    match emission {
        Emission::Call(call) => Some(call),
        Emission::Token(_) | Emission::Frame(_) | Emission::Said(_) => None,
    }
}

fn told(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call_of(id: &str) -> Emission {
        let (id, name, arguments) = (id.to_owned(), "look".to_owned(), "{}".to_owned());
        Emission::Call(Arc::new(ToolCall { id, name, arguments }))
    }

    #[test]
    fn every_call_has_a_result_and_roles_take_turns() {
        let text = |text: &str| Message::Text(text.to_owned());
        let result = |id: &str| Message::Result { call_id: id.to_owned(), output: format!("of {id}") };
        let turns = [
            Turn::User(vec![text("a")]),
            Turn::Model([].into()),
            Turn::User(vec![text("b")]),
            Turn::Model(
                [Emission::Said("I ".into()), Emission::Said("look. ".into()), call_of("1"), call_of("2")]
                    .into(),
            ),
            Turn::User(vec![text("and?"), result("2"), result("9")]),
            Turn::Told("Nothing.".into()),
            Turn::User(Vec::new()),
        ];
        let messages = messages("s", &turns, &Transcripts::default());
        let shown: Vec<String> = messages
            .iter()
            .map(|message| format!("{}: {}", message["role"], message["content"]).replace('"', ""))
            .collect();
        let expected = [
            "system: s",
            "user: a\\nb",
            "assistant: I look.",
            "tool: (no result)",
            "tool: of 2",
            "user: and?",
            "assistant: Nothing.",
        ];
        assert_eq!(shown, expected);
        assert_eq!(messages[2]["tool_calls"][1]["id"], "2");
        assert_eq!(messages[4]["tool_call_id"], "2");
    }
}
