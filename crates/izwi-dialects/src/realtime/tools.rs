//! Tools of a session and of a response: how clients send them, and how they see them. Knows no model.

use izwi_core::engine::{Tool, ToolChoice};
use izwi_types::excerpt;
use serde_json::{Value, json};

use super::refusal::Refusal;

/// The most tools.
const MAX_TOOLS: usize = 128;
/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 64;

/// Reads `tools`.
///
/// # Errors
/// One is no function, or is damaged.
pub(super) fn read(of: &str, tools: &[Value]) -> Result<Vec<Tool>, Refusal> {
    let param = format!("{of}.tools");
    if tools.len() > MAX_TOOLS {
        let message = format!("{param} has {} tools; send {MAX_TOOLS} at most", tools.len());
        return Err(Refusal::invalid(&param, message));
    }
    tools.iter().map(|tool| read_one(&param, tool)).collect()
}

fn read_one(param: &str, tool: &Value) -> Result<Tool, Refusal> {
    if tool.get("type").is_some_and(|kind| kind != "function") {
        let what = format!("one has the type {}; send functions", excerpt(&tool["type"]));
        return Err(Refusal::unsupported(param, &what));
    }
    let name = tool["name"].as_str().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_plain) {
        let shown = excerpt(&tool["name"]);
        let message =
            format!("{param}.name is {shown}; use 1 to {MAX_NAME_BYTES} letters, digits, '-' and '_'");
        return Err(Refusal::invalid(&format!("{param}.name"), message));
    }
    let parameters = match &tool["parameters"] {
        Value::Null => None,
        schema @ Value::Object(_) => Some(schema.to_string()),
        other => {
            let message = format!("{param}.parameters is {}; send a JSON Schema", excerpt(other));
            return Err(Refusal::invalid(&format!("{param}.parameters"), message));
        }
    };
    let description = tool["description"].as_str().map(str::to_owned);
    Ok(Tool { name: name.to_owned(), description, parameters })
}

/// Reads `tool_choice`.
///
/// # Errors
/// It is none.
pub(super) fn choice(of: &str, choice: &Value) -> Result<ToolChoice, Refusal> {
    match (choice.as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Some(name)) if choice["type"] == "function" => Ok(ToolChoice::Named(name.to_owned())),
        _ => {
            let param = format!("{of}.tool_choice");
            let message = format!(
                "{param} is {}; use auto, none, required, or {{\"type\": \"function\", \"name\": ...}}",
                excerpt(choice)
            );
            Err(Refusal::invalid(&param, message))
        }
    }
}

pub(super) fn view(tools: &[Tool]) -> Vec<Value> {
    let view = |tool: &Tool| {
        let parameters = tool.parameters.as_ref().and_then(|schema| serde_json::from_str(schema).ok());
        json!({
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": parameters.unwrap_or(Value::Null),
        })
    };
    tools.iter().map(view).collect()
}

pub(super) fn choice_view(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Named(name) => json!({"type": "function", "name": name}),
    }
}
