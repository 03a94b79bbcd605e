//! The Realtime API over WebRTC: `POST /v1/realtime/calls` takes the offer of a client and answers it.

use axum::Extension;
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use izwi_core::engine::RequestId;
use izwi_server::extract::{ApiQuery, ContentType, parse_json};
use izwi_server::openapi::SessionRefusals;
use izwi_server::ws::SessionCall;
use izwi_server::{ApiError, AppState, Granted, upload};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::events::new_id;
use super::opening::Opening;
use super::session::Session;
use super::webrtc::{self, Peer, PeerError};

const SDP: &str = "application/sdp";
const SUPPORTED: &str = "application/sdp, or multipart/form-data with the fields sdp and session";

/// The offer of a client, and the settings that its session begins with.
#[derive(Debug, Default)]
struct Call {
    sdp: String,
    session: Option<Value>,
}

/// The form of a call, for the description of the interface.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes a form")]
pub(super) struct CallForm {
    /// The offer.
    sdp: String,
    /// The session as in `session.update`, with its `model`; JSON.
    session: Option<String>,
}

/// The Realtime API of OpenAI over WebRTC
///
/// Takes an offer, as SDP or with a session in a form, and answers it. Audio is Opus, events go over the data channel; what
/// is supported stands in docs/compatibility.md.
#[utoipa::path(
    post,
    path = "/v1/realtime/calls",
    tag = "dialects",
    params(Opening),
    request_body(content = CallForm, content_type = "multipart/form-data"),
    responses(
        (status = 201, description = "The answer. `Location` is the call.", body = String, content_type = "application/sdp"),
        SessionRefusals,
    ),
)]
pub(super) async fn call(
    State(state): State<AppState>,
    ApiQuery(opening): ApiQuery<Opening>,
    granted: Option<Extension<Granted>>,
    session: SessionCall,
    request: Request,
) -> Result<Response, ApiError> {
    let call = Call::read(request, &state).await?;
    let model = call.session.as_ref().and_then(|session| session["model"].as_str());
    let opening = Opening {
        model: opening.model.or_else(|| model.map(str::to_owned)),
        intent: opening.intent,
        is_beta: false,
        session: granted.map(|Extension(Granted(session))| session),
    };
    let (peer, answer) = Peer::answer(&call.sdp).await.map_err(|error| match error {
        PeerError::Offer => {
            let message =
                "sdp is no offer that can be answered; send localDescription.sdp of an RTCPeerConnection";
            ApiError::invalid("sdp", message)
        }
        PeerError::Machine(what) => ApiError::internal(&what, &RequestId::random()),
    })?;
    let serve = session.admit::<Session>("realtime-webrtc", opening)?;
    let update = call.session.map(|session| json!({"type": "session.update", "session": session}));
    tokio::spawn(async move {
        let (socket, channel) = webrtc::session_channel();
        tokio::join!(peer.run(channel, update), serve(socket));
    });
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(SDP));
    let location = format!("/v1/realtime/calls/{}", new_id("rtc"));
    headers.extend(HeaderValue::from_str(&location).map(|location| (header::LOCATION, location)));
    Ok((StatusCode::CREATED, headers, answer).into_response())
}

impl Call {
    async fn read(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let content_type = ContentType::of(&request);
        if content_type.is_form() {
            let form = Multipart::from_request(request, state).await;
            return Self::read_form(form.map_err(|error| ApiError::MalformedForm(error.body_text()))?).await;
        }
        if !content_type.is(SDP) {
            return Err(content_type.refused(SUPPORTED));
        }
        let body = upload::read_plain(request, state).await?;
        let sdp = String::from_utf8(body.into());
        let sdp = sdp.map_err(|_| ApiError::invalid("sdp", "sdp is not UTF-8; send the offer as text"))?;
        Ok(Self { sdp, session: None })
    }

    async fn read_form(mut form: Multipart) -> Result<Self, ApiError> {
        let broken =
            |error: &axum::extract::multipart::MultipartError| ApiError::MalformedForm(error.to_string());
        let mut call = Self::default();
        while let Some(field) = form.next_field().await.map_err(|error| broken(&error))? {
            let name = field.name().unwrap_or_default().to_owned();
            let text = field.text().await.map_err(|error| broken(&error))?;
            match name.as_str() {
                "sdp" => call.sdp = text,
                "session" => call.session = Some(parse_json(text.as_bytes())?),
                _ => {}
            }
        }
        Ok(call)
    }
}
