//! Middleware of the routes: request ids, access rules, the refusal while draining, and the limit of concurrent requests.
//!
//! The key is required on `/v1/*` only: `/livez`, `/readyz`, `/health`, `/version` and `/metrics` stay open to probes
//! and scrapers, the documentation to readers; they carry no text, audio or key. `Host` and `Origin` are checked on every route.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use izwi_core::engine::RequestId;

use crate::access::{Presented, given_keys, is_client_secret};
use crate::dialect::Dialects;
use crate::dto::ticket::{InstanceQuery, TicketQuery};
use crate::error::ApiError;
use crate::held_body::HeldBody;
use crate::late_key::LateKey;
use crate::peer::Client;
use crate::record::{self, RequestRecord};
use crate::state::AppState;
use crate::ws;

/// Header with the id of a request, which the log uses too.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// Header with the name of the server among its replicas.
pub(crate) const INSTANCE: &str = "x-izwi-instance";
/// The route that makes tickets.
const TICKETS: &str = "/v1/tickets";
/// Routes that are answered on the places kept for probes.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Middleware: keeps the record of a request, for the access log and the traces.
pub(crate) async fn keep_record(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let record = RequestRecord::of_request(state.config(), &request, is_probe(&request));
    record::keep(record, request, next).await
}

/// Whether it is what probes and scrapers fetch.
fn is_probe(request: &Request) -> bool {
    PROBES.contains(&request.uri().path())
}

/// Middleware: gives the request an id for engine, log and response, names the server in the response, and forbids browsers
/// to take the response for another type than it states.
pub(crate) async fn assign_request_id(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = RequestId::random();
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let instance = state.config().instance.as_deref().and_then(|name| HeaderValue::from_str(name).ok());
    if let Some(instance) = instance {
        response.headers_mut().insert(INSTANCE, instance);
    }
    response
}

/// Middleware: refuses foreign hosts and origins, and lets pages of allowed origins read responses (CORS,
/// <https://fetch.spec.whatwg.org/#http-cors-protocol>).
pub(crate) async fn check_host_and_origin(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(error) = state.access().check(&request) {
        return error.into_response();
    }
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else { return next.run(request).await };
    let is_preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response =
        if is_preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    if is_preflight {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        let allowed = HeaderValue::from_static(
            "authorization, content-type, mcp-method, mcp-name, mcp-protocol-version, x-api-key, xi-api-key",
        );
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    } else {
        let exposed = HeaderValue::from_static(
            "x-request-id, x-sample-rate, x-prebuffer-ms, x-predicted-rtf, x-ignored-fields, x-unspoken-characters, x-ignored-markup, x-foreign-languages, x-suggested-model, x-izwi-instance, retry-after",
        );
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}

/// Middleware: requires the key, a client secret or, for a WebSocket, a ticket, if a key is set. Without one a client secret
/// must be valid too, since its session would lack its settings. A peer that has sent too many wrong keys is refused for a while.
pub(crate) async fn check_key(
    State((state, dialects)): State<(AppState, Dialects)>,
    request: Request,
    next: Next,
) -> Response {
    let now = Instant::now();
    let route = request.uri().path();
    let secrets: Vec<&str> = given_keys(request.headers()).filter(|key| is_client_secret(key)).collect();
    let has_secret = !secrets.is_empty();
    if let Some(granted) = secrets.iter().find_map(|secret| state.client_secrets().find(secret, route, now)) {
        let mut request = request;
        request.extensions_mut().insert(granted);
        return next.run(request).await;
    }
    let Some(key) = state.api_key() else {
        return if has_secret {
            ApiError::ClientSecretRefused.into_response()
        } else {
            next.run(request).await
        };
    };
    let peer = request.extensions().get::<Client>().map(|client| client.peer);
    let presented = key.check(request.headers());
    let ticket = ticket(&request).filter(|_| presented == Presented::Nothing);
    let may_be_late = presented == Presented::Nothing && ticket.is_none();
    if may_be_late && dialects.take_late_key(request.uri().path()) {
        let mut request = request;
        request.extensions_mut().insert(LateKey::new(peer));
        return next.run(request).await;
    }
    if let Some(peer) = peer.filter(|_| ticket.is_some() || presented != Presented::Nothing)
        && let Err(retry_after) = state.key_throttle().check(peer, now)
    {
        return ApiError::TooManyWrongKeys { retry_after }.into_response();
    }
    let presented = match ticket {
        Some(ticket) if state.tickets().redeem(&ticket, now) => Presented::Right,
        Some(_) => Presented::Wrong,
        None => presented,
    };
    if let (Some(peer), Presented::Wrong) = (peer, presented) {
        state.key_throttle().failed(peer, now);
    }
    match presented {
        Presented::Right => next.run(request).await,
        _ if has_secret => ApiError::ClientSecretRefused.into_response(),
        _ => ApiError::Unauthorized.into_response(),
    }
}

/// The ticket in the query of a WebSocket's upgrade.
fn ticket(request: &Request) -> Option<String> {
    let upgrade = request.headers().get(header::UPGRADE)?.as_bytes();
    if !upgrade.eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    Query::<TicketQuery>::try_from_uri(request.uri()).ok()?.0.ticket
}

/// Middleware: answers nothing but probes on the places that are kept for them.
pub(crate) async fn keep_places_for_probes(request: Request, next: Next) -> Response {
    let only_probes = request.extensions().get::<Client>().is_some_and(|client| client.only_probes);
    if only_probes && !is_probe(&request) {
        let message = "all connections are in use; try again later, or close some";
        return ApiError::overloaded(message).into_response();
    }
    next.run(request).await
}

/// Middleware: refuses new requests while draining, and beyond the limit. A request counts until its body has ended.
pub(crate) async fn admit(State(state): State<AppState>, request: Request, next: Next) -> Response {
    if state.is_draining() {
        // It does not count: what is counted is waited for.
        return if returns_here(&state, &request) {
            next.run(request).await
        } else {
            ApiError::Draining.into_response()
        };
    }
    match state.admit_request() {
        Ok(permit) => next.run(request).await.map(|body| Body::new(HeldBody::new(body, permit))),
        Err(error) => error.into_response(),
    }
}

/// Whether a client comes back to a session of this server: it names the server in the query of the WebSocket, or of the
/// request for a ticket to it.
fn returns_here(state: &AppState, request: &Request) -> bool {
    let Some(instance) = state.config().instance.as_deref() else { return false };
    let named = Query::<InstanceQuery>::try_from_uri(request.uri());
    (ws::is_resumable(request.uri().path()) || request.uri().path() == TICKETS)
        && named.is_ok_and(|query| query.0.instance.as_deref() == Some(instance))
}
