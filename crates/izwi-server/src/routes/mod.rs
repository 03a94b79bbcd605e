//! The routes, and the middleware each of them passes.

mod models;
mod speech;
mod system;
mod transcriptions;
mod voices;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use crate::error::ApiError;
use crate::state::AppState;
use crate::{limits, linger, security, upload, ws};

/// The whole service. It can be served by [`crate::serve`], or by anything else that runs an axum router.
pub fn router(state: AppState) -> Router {
    let api = Router::new()
        .route("/v1/audio/speech", post(speech::create))
        .merge(ws::routes())
        .merge(recording(&state))
        .route("/v1/audio/voices/{id}", get(voices::show).delete(voices::remove))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::show))
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(state.clone(), limits::admit))
        .layer(from_fn_with_state(state.clone(), security::check_key));
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
        .layer(from_fn_with_state(state.clone(), security::check_host_and_origin))
        .layer(from_fn(limits::name_request))
        .layer(from_fn(linger::linger))
        .with_state(state)
}

/// The routes that take recordings, which are larger than other bodies.
fn recording(state: &AppState) -> Router<AppState> {
    Router::new()
        .route("/v1/audio/transcriptions", post(transcriptions::transcribe))
        .route("/v1/audio/translations", post(transcriptions::translate))
        .route("/v1/audio/voices", get(voices::list).post(voices::create))
        .layer(DefaultBodyLimit::max(upload::max_request_bytes(state.config())))
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::UnknownRoute(format!("{} {}", request.method(), crate::near::shown(request.uri().path())))
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed {
        method: request.method().to_string(),
        path: crate::near::shown(request.uri().path()),
    }
}
