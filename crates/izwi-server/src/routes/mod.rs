//! The route table, and the middleware of all routes.

mod catalogue;
mod docs;
mod models;
mod page;
mod paths;
mod speech;
mod streamed;
mod system;
mod tickets;
pub(crate) mod transcriptions;
pub(crate) mod voices;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use izwi_types::excerpt;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::openapi::{self, Published};
use crate::state::AppState;
use crate::{dialects, graceful_close, middleware, slow_body, ws};

/// The whole service, for [`crate::serve`] or anything else that runs an axum router.
pub fn router(state: AppState) -> Router {
    let (keyed, keyed_document) = keyed(state.config()).split_for_parts();
    let (open, open_document) = open().split_for_parts();
    let document = openapi::complete(&keyed_document, &open_document, state.config());
    let api = keyed
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(state.clone(), middleware::admit))
        .layer(from_fn_with_state(state.clone(), middleware::check_key));
    let open = open
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Extension(Arc::new(Published::new(&document))));
    let routes = api
        .merge(open)
        .fallback(unknown_route)
        .layer(DefaultBodyLimit::max(state.config().max_body_bytes))
        .layer(from_fn(middleware::keep_places_for_probes))
        .layer(from_fn_with_state(state.clone(), middleware::check_host_and_origin))
        .layer(from_fn(dialects::render_errors))
        .layer(from_fn_with_state(state.clone(), middleware::keep_record))
        .layer(from_fn_with_state(state.clone(), middleware::assign_request_id))
        .layer(from_fn(graceful_close::drain_refused_bodies))
        .layer(from_fn_with_state(state.clone(), slow_body::demand_progress))
        .with_state(state);
    paths::forgiving(routes)
}

/// The OpenAPI document of a server with default settings, as `docs/openapi.json` holds it.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&document(&ServerConfig::default()))? + "\n")
}

/// The OpenAPI document of a server with this configuration.
pub(crate) fn document(config: &ServerConfig) -> Value {
    openapi::complete(keyed(config).get_openapi(), open().get_openapi(), config)
}

/// Routes that need the key, where one is set.
fn keyed(config: &ServerConfig) -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(speech::create))
        .merge(ws::routes())
        .merge(dialects::routes(config))
        .merge(recordings(config))
        .routes(routes!(voices::show, voices::remove))
        .routes(routes!(models::list))
        .routes(routes!(models::list_speaking))
        .routes(routes!(models::show))
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

/// Routes whose bodies carry a recording, and may be larger than others.
fn recordings(config: &ServerConfig) -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(transcriptions::transcribe))
        .routes(routes!(transcriptions::translate))
        .routes(routes!(voices::list, voices::create))
        .layer(DefaultBodyLimit::max(config.max_request_bytes()))
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::UnknownRoute(format!("{} {}", request.method(), excerpt(request.uri().path())))
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().to_string(), path: excerpt(request.uri().path()) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    type Routes = BTreeMap<String, BTreeSet<String>>;

    /// The paths and methods that a router answers, from its `Debug` form: axum tells them nowhere else.
    fn answered(router: &Router<AppState>) -> Routes {
        let text = format!("{router:?}");
        let text = text.split("fallback_router").next().expect("the Debug form of axum");
        let entries = |text: &str| -> BTreeMap<String, String> {
            let entry =
                |part: &str| part.split_once("): ").map(|(id, rest)| (id.to_owned(), rest.to_owned()));
            text.split("RouteId(").skip(1).filter_map(entry).collect()
        };
        let (routers, rest) = text.split_once("node: Node { paths: {").expect("the Debug form of axum");
        let paths = entries(rest);
        let routers = entries(routers);
        let methods = |id: &String| {
            let allowed = routers[id].split("allow_header: Bytes(b\"").nth(1).expect("methods");
            let allowed = allowed.split('"').next().unwrap_or_default();
            allowed.split(',').filter(|method| *method != "HEAD").map(str::to_lowercase).collect()
        };
        let path = |text: &String| text.split('"').nth(1).unwrap_or_default().to_owned();
        paths
            .iter()
            .filter(|(id, _)| routers.contains_key(*id))
            .map(|(id, text)| (path(text), methods(id)))
            .collect()
    }

    #[test]
    fn every_route_is_in_the_document_and_nothing_else() {
        let config = ServerConfig::default();
        let mut found = answered(&keyed(&config).into());
        found.extend(answered(&open().into()));
        assert!(found.len() > 10 && found["/v1/audio/voices"].len() == 2, "{found:?}");
        let document = document(&config);
        let documented: Routes = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(path, item)| (path.clone(), item.as_object().unwrap().keys().cloned().collect()))
            .collect();
        assert_eq!(
            found, documented,
            "annotate the handler with #[utoipa::path] and add it with routes!(handler)"
        );
    }

    #[test]
    fn a_route_without_an_annotation_is_found() {
        let router = Router::new().route("/v1/plain", axum::routing::get(unknown_route).post(unknown_route));
        let methods = BTreeSet::from(["get".to_owned(), "post".to_owned()]);
        assert_eq!(answered(&router), BTreeMap::from([("/v1/plain".to_owned(), methods)]));
    }
}
