//! The route table, and the middleware of all routes.

mod models;
mod speech;
mod streamed;
mod system;
mod transcriptions;
pub(crate) mod voices;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use izwi_types::excerpt;

use crate::error::ApiError;
use crate::state::AppState;
use crate::{dialects, graceful_close, middleware, slow_body, ws};

/// The whole service, for [`crate::serve`] or anything else that runs an axum router.
pub fn router(state: AppState) -> Router {
    let api = Router::new()
        .route("/v1/audio/speech", post(speech::create))
        .merge(ws::routes())
        .merge(dialects::routes())
        .merge(recordings(&state))
        .route("/v1/audio/voices/{id}", get(voices::show).delete(voices::remove))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::show))
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(state.clone(), middleware::admit))
        .layer(from_fn_with_state(state.clone(), middleware::check_key));
    let open = Router::new()
        .route("/livez", get(system::livez))
        .route("/readyz", get(system::readyz))
        .route("/health", get(system::health))
        .route("/version", get(system::version))
        .route("/metrics", get(system::metrics))
        .method_not_allowed_fallback(method_not_allowed);
    api.merge(open)
        .fallback(unknown_route)
        .layer(DefaultBodyLimit::max(state.config().max_body_bytes))
        .layer(from_fn(middleware::keep_places_for_probes))
        .layer(from_fn_with_state(state.clone(), middleware::check_host_and_origin))
        .layer(from_fn(dialects::render_errors))
        .layer(from_fn(middleware::assign_request_id))
        .layer(from_fn(graceful_close::drain_refused_bodies))
        .layer(from_fn_with_state(state.clone(), slow_body::demand_progress))
        .with_state(state)
}

/// Routes whose bodies carry a recording, and may be larger than others.
fn recordings(state: &AppState) -> Router<AppState> {
    Router::new()
        .route("/v1/audio/transcriptions", post(transcriptions::transcribe))
        .route("/v1/audio/translations", post(transcriptions::translate))
        .route("/v1/audio/voices", get(voices::list).post(voices::create))
        .layer(DefaultBodyLimit::max(state.config().max_request_bytes()))
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::UnknownRoute(format!("{} {}", request.method(), excerpt(request.uri().path())))
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().to_string(), path: excerpt(request.uri().path()) }
}
