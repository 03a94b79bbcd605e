//! What an interface of another service adds to the server. Knows none of them: who starts a server lists them in
//! [`Listeners`](crate::Listeners).

use std::any::Any;
use std::fmt::Debug;
use std::net::SocketAddr;

use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use futures::future::BoxFuture;
use izwi_core::engine::RequestId;
use tokio::net::TcpStream;
use utoipa_axum::router::OpenApiRouter;

use crate::config::ServerConfig;
use crate::connections::Place;
use crate::error::ApiError;
use crate::state::AppState;

/// An interface of another service over HTTP and WebSockets, so that its clients work with a changed address.
pub trait Dialect: Debug + Send + Sync {
    /// Its routes. They need the key, where one is set, and their annotations are part of the OpenAPI document.
    fn routes(&self, config: &ServerConfig) -> OpenApiRouter<AppState>;

    /// Whether answers of this path have its shape.
    fn owns(&self, _path: &str) -> bool {
        false
    }

    /// Gives an answer of a path that it [owns](Self::owns) the shape that its clients know. An `error` is in the answer
    /// already, in the ordinary envelope.
    fn render(&self, _error: Option<&ApiError>, response: Response, _id: Option<&RequestId>) -> Response {
        response
    }

    /// Whether a request to this path may bring its key in a message, as a [`LateKey`](crate::late_key::LateKey).
    fn takes_late_key(&self, _path: &str) -> bool {
        false
    }

    /// The answer to `GET /v1/models` for its clients; `None` for all others.
    fn models(&self, _state: &AppState, _headers: &HeaderMap) -> Option<Response> {
        None
    }
}

/// The dialects of a server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dialects(&'static [&'static dyn Dialect]);

impl Dialects {
    /// The dialects of a list.
    pub const fn new(all: &'static [&'static dyn Dialect]) -> Self {
        Self(all)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = &'static dyn Dialect> {
        self.0.iter().copied()
    }

    /// Whether one of them takes a late key on this path.
    pub(crate) fn take_late_key(self, path: &str) -> bool {
        self.iter().any(|dialect| dialect.takes_late_key(path))
    }

    /// The routes of all of them.
    pub(crate) fn routes(self, config: &ServerConfig) -> OpenApiRouter<AppState> {
        self.iter().fold(OpenApiRouter::new(), |routes, dialect| routes.merge(dialect.routes(config)))
    }
}

/// A protocol over TCP that has a port of its own.
pub trait TcpService: Debug + Send + Sync {
    /// What the log calls it.
    fn name(&self) -> &'static str;

    /// Tells the network that it is served at `address`, until what is returned is dropped.
    fn announce(&self, _address: SocketAddr) -> Option<Box<dyn Any + Send>> {
        None
    }

    /// Serves a connection until it ends.
    fn serve(&self, state: AppState, stream: TcpStream, place: Place) -> BoxFuture<'static, ()>;
}

/// Middleware: gives answers of a dialect's routes the shape that its clients know.
pub(crate) async fn render(State(dialects): State<Dialects>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let Some(owner) = dialects.iter().find(|dialect| dialect.owns(path)) else {
        return next.run(request).await;
    };
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    let error = response.extensions_mut().remove::<ApiError>();
    owner.render(error.as_ref(), response, id.as_ref())
}
