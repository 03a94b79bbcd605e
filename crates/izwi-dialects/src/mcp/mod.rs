//! The Model Context Protocol over HTTP (<https://modelcontextprotocol.io/specification>), so that agents speak and listen
//! through a server: one request per message, without sessions.
//!
//! A tool calls the server's own routes, within the request that carries the message. A client that leaves aborts it.

pub mod tools;

use std::error::Error as _;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::{Method, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::LengthLimitError;
use izwi_audio::wav;
use izwi_core::engine::{MemoryShare, RequestId};
use izwi_server::openapi::MessageRefusals;
use izwi_server::record::{self, RequestRecord};
use izwi_server::upload::{self, RawUpload};
use izwi_server::{ApiError, AppState, Dialect, Dialects, ServerConfig};
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, JsonObject,
    ListToolsResult, PaginatedRequestParams,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::Value;
use tower::ServiceExt as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::tools::{Call, Hearing, LISTS, Speech, TextArgument};

/// The most bytes of audio in an answer: almost three minutes at 24 kHz.
const MAX_SPEECH_BYTES: usize = 8 << 20;
/// The most bytes of a refusal or a list.
const MAX_JSON_BYTES: usize = 16 << 20;

const JSON: &str = "application/json";
const AUDIO: TextArgument =
    TextArgument { name: "audio", description: "The recording, as base64.", is_required: true };

const INSTRUCTIONS: &str =
    "Speech on this server. `speak` returns audio of a text, `transcribe` the text of a recording.";

#[derive(Debug)]
pub(crate) struct Mcp;

impl Dialect for Mcp {
    fn routes(&self, config: &ServerConfig) -> OpenApiRouter<AppState> {
        let none = Dialects::default();
        let api: Router<AppState> = izwi_server::routes(config, none).layer(Extension(none)).into();
        OpenApiRouter::new().routes(routes!(message)).layer(Extension(Api(api)))
    }
}

/// The routes that tools call.
#[derive(Debug, Clone)]
struct Api(Router<AppState>);

/// A message of the Model Context Protocol
///
/// The streamable HTTP transport without sessions: a JSON-RPC request is answered with JSON or a stream of events, a
/// notification with 202. The tools are `speak`, `transcribe` and `voices`.
#[utoipa::path(
    post,
    path = "/mcp",
    tag = "dialects",
    request_body(content = Value, content_type = "application/json", example = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/list"
    })),
    responses(
        (status = 200, description = "The answer.", content((Value = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The notification is taken."),
        MessageRefusals,
    ),
)]
async fn message(
    State(state): State<AppState>,
    Extension(Api(api)): Extension<Api>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, RawUpload { bytes, memory }) = upload::read_large_json(request, &state).await?;
    let max_bytes = bytes.len();
    let tools =
        Tools { api: api.with_state(state), id, record: record::current(), _memory: Arc::new(memory) };
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        // The server has checked the host and the origin.
        .disable_allowed_hosts()
        .with_max_request_body_bytes(max_bytes);
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    let response = service.handle(Request::from_parts(parts, Body::from(bytes))).await.map(Body::new);
    if !response.status().is_client_error() || is_json(&response) {
        return Ok(response);
    }
    let reason = to_bytes(response.into_body(), tools::MAX_REFUSAL_BYTES).await.unwrap_or_default();
    Err(ApiError::invalid("body", String::from_utf8_lossy(&reason)))
}

fn is_json(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json"))
}

/// The tools of one message.
#[derive(Debug, Clone)]
struct Tools {
    api: Router,
    id: RequestId,
    record: Option<RequestRecord>,
    /// The message's memory.
    _memory: Arc<MemoryShare>,
}

impl Tools {
    /// The answer to a call, with a body of at most `limit` bytes.
    async fn call(&self, call: Call, limit: usize) -> Result<Response<Bytes>, String> {
        let method = if call.body.is_some() { Method::POST } else { Method::GET };
        let body = call.body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder().method(method).uri(call.path).extension(self.id.clone());
        let request =
            request.header(header::CONTENT_TYPE, JSON).body(body).map_err(|error| error.to_string())?;
        let response = self.api.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        let (parts, body) = response.into_parts();
        let is_refused = !parts.status.is_success();
        match to_bytes(body, if is_refused { tools::MAX_REFUSAL_BYTES } else { limit }).await {
            Ok(body) if is_refused => Err(tools::refusal(&body)),
            Ok(body) => Ok(Response::from_parts(parts, body)),
            Err(error) if error.source().is_some_and(|source| source.is::<LengthLimitError>()) => {
                Err(format!("the answer has more than {limit} bytes; give less text"))
            }
            Err(_) => Err("the model failed; see the server's log".to_owned()),
        }
    }

    async fn json(&self, call: Call) -> Result<Value, String> {
        let answer = self.call(call, MAX_JSON_BYTES).await?;
        serde_json::from_slice(answer.body()).map_err(|error| error.to_string())
    }

    async fn work(&self, name: &str, mut arguments: JsonObject) -> Result<CallToolResult, String> {
        match name {
            "speak" => {
                let speech: Speech = tools::read(arguments)?;
                let answer = self.call(speech.call(false), MAX_SPEECH_BYTES).await?;
                let (rate_hz, samples) = (tools::sample_rate_hz(answer.headers())?, answer.body());
                // It is at most the limit.
                let audio = [&wav::header(rate_hz, samples.len() as u32)[..], samples].concat();
                Ok(CallToolResult::success(vec![ContentBlock::audio(STANDARD.encode(audio), "audio/wav")]))
            }
            "transcribe" => {
                let audio = tools::take(&mut arguments, AUDIO.name)?;
                let audio = audio.ok_or("audio is missing; give a recording as base64")?;
                let hearing: Hearing = tools::read(arguments)?;
                Ok(hearing.result(self.json(hearing.call(audio)?).await?))
            }
            "voices" => {
                let [voices, models] = LISTS;
                tools::read::<tools::Nothing>(arguments)?;
                Ok(tools::lists([self.json(voices).await?, self.json(models).await?]))
            }
            other => Err(tools::unknown(other)),
        }
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        tools::introduction(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let speak = "Speaks a text and returns the audio, a WAV of at most 8 MiB.";
        let transcribe = "Returns the text of a recording, of any common format.";
        Ok(ListToolsResult::with_all_items(vec![
            tools::tool::<Speech>("speak", speak, &[], true),
            tools::tool::<Hearing>("transcribe", transcribe, &[AUDIO], true),
            tools::voices(),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let work = self.work(&request.name, request.arguments.unwrap_or_default());
        // Progress makes the answer an event, and clients take no event as large as audio.
        let tells_progress = request.name != "speak";
        tools::run(record::within(self.record.clone(), work), &context, tells_progress).await
    }
}
