//! The tools: their arguments, the requests of the API that they make, and what they tell of the answers. A server and a
//! program that stands for one have them in common.
//!
//! Knows no transport and no engine.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::time::Duration;

use axum::http::HeaderMap;
use izwi_types::excerpt;
use rmcp::handler::server::common::schema_for_type;
use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, JsonObject,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::schemars::{self, JsonSchema};
use rmcp::service::{RequestContext, RoleServer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How often a client that asks for it is told that a tool still works.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes of a refusal that are read.
pub const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Arguments of `speak`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Speech {
    /// What to say, in plain text.
    #[serde(rename(serialize = "input"))]
    text: String,
    /// Name of a voice that the tool `voices` lists; the default voice of the model without it.
    voice: Option<String>,
    /// The model that has the voice; the default one without it.
    model: Option<String>,
    /// Tempo: 1 is the voice's normal one.
    speed: Option<f32>,
}

/// Arguments of `transcribe`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hearing {
    /// Language that is spoken, as a BCP 47 tag; detected without it.
    language: Option<String>,
    /// Words and phrases that are likely, such as names; not every model takes them.
    keywords: Option<Vec<String>>,
    /// Whether to tell who says what: segments with speakers and times, in place of text alone.
    #[serde(skip_serializing, default)]
    speakers: bool,
    /// Whether to tell when each word is said.
    #[serde(skip_serializing, default)]
    words: bool,
    /// Name of a model that transcribes; the default one without it.
    model: Option<String>,
}

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// An argument that is text, beside those of a tool's type.
#[derive(Debug)]
pub struct TextArgument {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Whether the tool needs it.
    pub is_required: bool,
}

/// A request of the API.
#[derive(Debug)]
pub struct Call {
    /// The path.
    pub path: &'static str,
    /// The JSON to post; `None` to get.
    pub body: Option<Value>,
}

impl Speech {
    /// The request for this speech as audio of `format`.
    pub fn call(&self, format: &str) -> Call {
        let mut body = json!(self);
        body["response_format"] = json!(format);
        Call { path: "/v1/audio/speech", body: Some(body) }
    }
}

impl Hearing {
    /// The request for the transcript of a recording in base64.
    ///
    /// # Errors
    /// The arguments contradict each other.
    pub fn call(&self, audio: String) -> Result<Call, String> {
        let mut body = json!(self);
        match (self.words, self.speakers) {
            (true, true) => return Err("words and speakers are both true; ask for one of them".to_owned()),
            (true, false) => {
                body["response_format"] = json!("verbose_json");
                body["timestamp_granularities"] = json!(["word"]);
            }
            (false, true) => body["response_format"] = json!("diarized_json"),
            (false, false) => {}
        }
        body["audio"] = Value::String(audio);
        Ok(Call { path: "/v1/audio/transcriptions", body: Some(body) })
    }

    /// What the tool tells of the API's answer.
    pub fn result(&self, mut answer: Value) -> CallToolResult {
        let members = match (self.words, self.speakers) {
            (false, false) => return text(answer["text"].as_str().unwrap_or_default()),
            (true, _) => ["text", "words"],
            (_, true) => ["text", "segments"],
        };
        CallToolResult::structured(members.iter().map(|name| (*name, answer[name].take())).collect())
    }
}

/// The requests behind the tool `voices`.
pub const LISTS: [Call; 2] =
    [Call { path: "/v1/audio/voices", body: None }, Call { path: "/v1/models", body: None }];

/// What the tool `voices` tells of the answers to [`LISTS`].
pub fn lists([voices, models]: [Value; 2]) -> CallToolResult {
    let pick = |list: &Value, members: &[&str]| -> Value {
        let rows = list.as_array().map(Vec::as_slice).unwrap_or_default().iter();
        rows.map(|row| members.iter().map(|name| (*name, row[*name].clone())).collect::<Value>()).collect()
    };
    CallToolResult::structured(json!({
        "voices": pick(&voices["voices"], &["name", "models", "language", "gender", "description", "default"]),
        "models": pick(&models["data"], &["id", "tasks", "languages", "default"]),
    }))
}

/// A result that is text.
pub fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// The sample rate of an answer with audio.
///
/// # Errors
/// It tells none.
pub fn sample_rate_hz(headers: &HeaderMap) -> Result<u32, String> {
    let rate_hz = headers.get("x-sample-rate").and_then(|rate| rate.to_str().ok()?.parse().ok());
    rate_hz.ok_or_else(|| "the server told no sample rate".to_owned())
}

/// What the API tells of a request that it refuses.
pub fn refusal(body: &[u8]) -> String {
    let envelope: Value = serde_json::from_slice(body).unwrap_or_default();
    match (&envelope["error"]["message"], envelope["error"]["param"].as_str()) {
        // The field has another name here.
        (Value::String(message), Some("input")) => message.replacen("input", "text", 1),
        (Value::String(message), _) => message.clone(),
        _ => "the server refused the request without a reason; see its log".to_owned(),
    }
}

/// Takes a text argument; one that is empty is as good as none.
///
/// # Errors
/// It is no text.
pub fn take(arguments: &mut JsonObject, name: &str) -> Result<Option<String>, String> {
    match arguments.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("{name} is no text; give a string")),
    }
}

/// Reads the other arguments.
///
/// # Errors
/// One is missing, unknown or of another type.
pub fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, String> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| format!("the arguments are wrong: {error}"))
}

/// A tool with the arguments of `T` and `more`.
pub fn tool<T: JsonSchema + 'static>(
    name: &'static str,
    description: &'static str,
    more: &[TextArgument],
) -> Tool {
    let mut schema = (*schema_for_type::<T>()).clone();
    for argument in more {
        let property = json!({"type": "string", "description": argument.description});
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        properties[argument.name] = property;
        if let Some(required) = argument.is_required.then(|| schema.entry("required").or_insert_with(|| json!([])))
            && let Some(required) = required.as_array_mut()
        {
            required.push(json!(argument.name));
        }
    }
    Tool::new(name, description, schema).with_annotations(ToolAnnotations::new().open_world(false))
}

/// The tool `voices`.
pub fn voices() -> Tool {
    tool::<Nothing>("voices", "Lists the voices and the models of `speak`, and the models of `transcribe`.", &[])
}

/// What the caller of another tool is told.
pub fn unknown(name: &str) -> String {
    format!("there is no tool '{}'; tools/list tells those that are", excerpt(name))
}

/// How a server with tools introduces itself.
pub fn introduction(instructions: &str) -> ServerConfig {
    let capabilities = ServerCapabilities::builder().enable_tools().build();
    let server = ServerConfig::new(capabilities).with_instructions(instructions);
    server.with_server_info(Implementation::new("izwi", env!("CARGO_PKG_VERSION")).with_title("Izwi"))
}

/// Runs the work of a tool until its client cancels it. With
/// `tells_progress`, a client that asks for it is told each second that it goes on.
///
/// # Errors
/// The client cancelled it. A failure of the work is a result.
pub async fn run(
    work: impl Future<Output = Result<CallToolResult, String>>,
    context: &RequestContext<RoleServer>,
    tells_progress: bool,
) -> Result<CallToolResponse, ErrorData> {
    tokio::select! {
        done = work => Ok(done.unwrap_or_else(|message| CallToolResult::error(vec![ContentBlock::text(message)])).into()),
        () = context.ct.cancelled() => Err(ErrorData::internal_error("the client cancelled the request", None)),
        never = tell_progress(context), if tells_progress => match never {},
    }
}

async fn tell_progress(context: &RequestContext<RoleServer>) -> Infallible {
    let Some(token) = context.meta.get_progress_token() else { return pending().await };
    let mut seconds = 0.0;
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        seconds += PROGRESS_INTERVAL.as_secs_f64();
        // A client that is gone cancels the request.
        let _ = context.peer.notify_progress(ProgressNotificationParam::new(token.clone(), seconds)).await;
    }
}
