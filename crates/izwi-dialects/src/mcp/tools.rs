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
    /// Tempo, 0.25 to 4; 1 is the voice's normal one.
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
    /// The request for this speech as 16-bit samples. `is_heard` says whether somebody hears them as they come.
    pub fn call(&self, is_heard: bool) -> Call {
        let mut body = json!(self);
        body["response_format"] = json!("pcm");
        body["live"] = json!(is_heard);
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
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| format!("the arguments are wrong: {error}"))
}

/// A tool with the arguments of `T` and `more`. `is_read_only` says that it does nothing but tell something.
pub fn tool<T: JsonSchema + 'static>(
    name: &'static str,
    description: &'static str,
    more: &[TextArgument],
    is_read_only: bool,
) -> Tool {
    let annotations = ToolAnnotations::new().read_only(is_read_only).open_world(false);
    Tool::new(name, description, schema::<T>(more)).with_annotations(annotations)
}

/// The schema of the arguments, in the simplest form, which every client understands.
fn schema<T: JsonSchema + 'static>(more: &[TextArgument]) -> JsonObject {
    let described = (*schema_for_type::<T>()).clone();
    let member = |name: &str| described.get(name).cloned().unwrap_or_default();
    let (mut properties, mut required) = (JsonObject::new(), Vec::new());
    for (name, property) in member("properties").as_object().into_iter().flatten() {
        // What may be left out is an option, whose type is a list with `null`.
        let kind = property["type"].as_array().map_or(&property["type"], |kinds| &kinds[0]);
        let mut simple = json!({"type": kind, "description": property["description"]});
        if let Some(items) = property.get("items") {
            simple["items"] = items.clone();
        }
        properties.insert(name.clone(), simple);
    }
    for argument in more {
        let property = json!({"type": "string", "description": argument.description});
        properties.insert(argument.name.to_owned(), property);
        required.extend(argument.is_required.then(|| json!(argument.name)));
    }
    required.extend(member("required").as_array().into_iter().flatten().cloned());
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    schema.as_object().cloned().unwrap_or_default()
}

/// The tool `voices`.
pub fn voices() -> Tool {
    tool::<Nothing>(
        "voices",
        "Lists the voices and the models of `speak`, and the models of `transcribe`.",
        &[],
        true,
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn arguments_become_requests() {
        let speech: Speech = read(object(json!({"text": "Hi.", "speed": 1.5, "voice": null}))).unwrap();
        let Call { path, body } = speech.call(true);
        let mut body = object(body.unwrap());
        body.retain(|_, value| !value.is_null());
        let expected = json!({"input": "Hi.", "speed": 1.5, "response_format": "pcm", "live": true});
        assert_eq!((path, Value::Object(body)), ("/v1/audio/speech", expected));

        for (given, expected) in [
            (
                json!({"language": "de", "keywords": ["Izwi"]}),
                json!({"language": "de", "keywords": ["Izwi"]}),
            ),
            (
                json!({"words": true}),
                json!({"response_format": "verbose_json", "timestamp_granularities": ["word"]}),
            ),
            (json!({"speakers": true, "words": false}), json!({"response_format": "diarized_json"})),
        ] {
            let hearing: Hearing = read(object(given)).unwrap();
            let mut body = object(hearing.call("AAAA".to_owned()).unwrap().body.unwrap());
            body.retain(|_, value| !value.is_null());
            assert_eq!(body.remove("audio").unwrap(), "AAAA");
            assert_eq!(Value::Object(body), expected);
        }
        let both: Hearing = read(object(json!({"words": true, "speakers": true}))).unwrap();
        assert!(both.call(String::new()).unwrap_err().contains("ask for one"));
    }

    #[test]
    fn wrong_arguments_are_told() {
        let wrong = |given: Value| read::<Speech>(object(given)).unwrap_err();
        assert!(wrong(json!({})).contains("missing field `text`"));
        assert!(wrong(json!({"text": "a", "pitch": 1})).contains("unknown field `pitch`"));
        assert!(wrong(json!({"text": 1})).contains("expected a string"));
        let mut given = object(json!({"a": 1, "b": "", "c": null, "d": "x"}));
        assert!(take(&mut given, "a").unwrap_err().contains("a is no text"));
        assert_eq!(
            [take(&mut given, "b"), take(&mut given, "c"), take(&mut given, "e")],
            [Ok(None), Ok(None), Ok(None)]
        );
        assert_eq!(take(&mut given, "d"), Ok(Some("x".to_owned())));
        assert!(given.is_empty());
    }

    #[test]
    fn schemas_are_plain() {
        let path = TextArgument { name: "path", description: "A path.", is_required: true };
        let schema = Value::Object(schema::<Hearing>(&[path]));
        assert_eq!((&schema["required"], &schema["additionalProperties"]), (&json!(["path"]), &json!(false)));
        let kinds = schema["properties"].as_object().unwrap().iter();
        let kinds: Vec<_> = kinds.map(|(name, property)| format!("{name} {}", property["type"])).collect();
        let expected = ["keywords \"array\"", "language \"string\"", "model \"string\"", "path \"string\""];
        assert_eq!(kinds, [&expected[..], &["speakers \"boolean\"", "words \"boolean\""]].concat());
        assert_eq!(schema["properties"]["keywords"]["items"]["type"], "string");
    }

    #[test]
    fn answers_become_results() {
        let answer =
            json!({"text": "a b", "words": [{"word": "a"}], "segments": [{"speaker": "A"}], "usage": 1});
        let result = |given: Value| read::<Hearing>(object(given)).unwrap().result(answer.clone());
        assert_eq!(result(json!({})), text("a b"));
        let timed = result(json!({"words": true})).structured_content.unwrap();
        assert_eq!(timed, json!({"text": "a b", "words": [{"word": "a"}]}));
        let told = result(json!({"speakers": true})).structured_content.unwrap();
        assert_eq!(told, json!({"text": "a b", "segments": [{"speaker": "A"}]}));
        assert_eq!(refusal(br#"{"error":{"message":"input is empty","param":"input"}}"#), "text is empty");
        assert_eq!(refusal(br#"{"error":{"message":"no","param":null}}"#), "no");
        assert!(refusal(b"<html>").contains("without a reason"));
    }
}
