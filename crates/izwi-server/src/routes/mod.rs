//! The route table, and the middleware of all routes.

mod alignments;
mod catalogue;
mod diarized;
mod docs;
mod encodings;
mod jobs;
mod lexicons;
mod models;
mod page;
mod paths;
mod speech;
mod streamed;
mod system;
mod tickets;
pub mod transcriptions;
pub mod voices;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use izwi_types::excerpt;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::config::ServerConfig;
use crate::dialect::Dialects;
use crate::error::ApiError;
use crate::openapi::{self, Published};
use crate::state::AppState;
use crate::{dialect, graceful_close, middleware, slow_body, ws};

/// The whole service with these dialects, for [`crate::serve`] or anything else that runs an axum router.
pub fn router(state: AppState, dialects: Dialects) -> Router {
    let (keyed, keyed_document) = keyed(state.config(), dialects).split_for_parts();
    let (open, open_document) = open().split_for_parts();
    let document = openapi::complete(&keyed_document, &open_document, state.config());
    let api = keyed
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(state.clone(), middleware::admit))
        .layer(from_fn_with_state((state.clone(), dialects), middleware::check_key))
        .layer(Extension(dialects));
    let open = open
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Extension(Arc::new(Published::new(&document))));
    let routes = api
        .merge(open)
        .fallback(unknown_route)
        .layer(DefaultBodyLimit::max(state.config().max_body_bytes))
        .layer(from_fn(middleware::keep_places_for_probes))
        .layer(from_fn_with_state(state.clone(), middleware::check_host_and_origin))
        .layer(from_fn_with_state(dialects, dialect::render))
        .layer(from_fn_with_state(state.clone(), middleware::keep_record))
        .layer(from_fn_with_state(state.clone(), middleware::assign_request_id))
        .layer(from_fn(graceful_close::drain_refused_bodies))
        .layer(from_fn_with_state(state.clone(), slow_body::demand_progress))
        .with_state(state);
    paths::forgiving(routes)
}

/// The OpenAPI document of a server with this configuration, as a file holds it.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn openapi_json(config: &ServerConfig, dialects: Dialects) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&document(config, dialects))? + "\n")
}

/// The OpenAPI document of a server with this configuration.
pub(crate) fn document(config: &ServerConfig, dialects: Dialects) -> Value {
    openapi::complete(keyed(config, dialects).get_openapi(), open().get_openapi(), config)
}

/// All routes of a server with this configuration, without its middleware.
pub fn routes(config: &ServerConfig, dialects: Dialects) -> OpenApiRouter<AppState> {
    keyed(config, dialects).merge(open())
}

/// Routes that need the key, where one is set.
fn keyed(config: &ServerConfig, dialects: Dialects) -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(speech::create))
        .merge(ws::routes())
        .merge(dialects.routes(config))
        .merge(recordings(config))
        .merge(uploads())
        .routes(routes!(voices::show, voices::remove))
        .routes(routes!(lexicons::list, lexicons::create))
        .routes(routes!(lexicons::show, lexicons::remove))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show, jobs::remove))
        .routes(routes!(jobs::events))
        .routes(routes!(jobs::result))
        .routes(routes!(models::list))
        .routes(routes!(models::list_speaking))
        .routes(routes!(models::show, models::remove))
        .routes(routes!(models::load))
        .routes(routes!(models::unload))
        .routes(routes!(catalogue::list))
        .routes(routes!(catalogue::pull))
        .routes(routes!(tickets::create))
}

/// Routes for anybody.
fn open() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(system::livez))
        .routes(routes!(system::readyz))
        .routes(routes!(system::health))
        .routes(routes!(system::version))
        .routes(routes!(system::metrics))
        .routes(routes!(docs::document))
        .routes(routes!(docs::page))
        .routes(routes!(docs::protocol))
        .routes(routes!(page::index))
        .routes(routes!(page::file))
}

/// The route whose body goes to the disk as it comes, within limits of its own.
fn uploads() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(jobs::create)).layer(DefaultBodyLimit::disable())
}

/// Routes whose bodies carry a recording, and may be larger than others.
fn recordings(config: &ServerConfig) -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(transcriptions::transcribe))
        .routes(routes!(transcriptions::translate))
        .routes(routes!(alignments::create))
        .routes(routes!(encodings::create))
        .routes(routes!(voices::list, voices::create))
        .layer(DefaultBodyLimit::max(config.max_request_bytes()))
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::UnknownRoute(format!("{} {}", request.method(), excerpt(request.uri().path())))
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().to_string(), path: excerpt(request.uri().path()) }
}
