//! Accepting connections, and ending well: readiness turns red, what is under way is finished, then the server ends.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::config::ServerConfig;
use crate::metrics::Recorder;
use crate::net::ImpatientStream;
use crate::registry::Registry;
use crate::routes::router;
use crate::state::AppState;

/// Between two rounds of upkeep of the recorder and of unused models.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// After a failed accept, e.g. for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long connections may take to close once nothing is under way.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a connection's read buffer beyond the head of a request.
const READ_BUFFER: usize = 64 << 10;

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener has no address.
    #[error("the listener has no local address")]
    Listener(#[source] io::Error),
}

/// Serves until `shutdown` completes, then drains: readiness is red and new requests are refused at once, while
/// requests and utterances under way go on, for at most [`ServerConfig::drain_timeout`]. Engines are stopped at the
/// end.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    config: ServerConfig,
    registry: Registry,
    recorder: Recorder,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    let drain_timeout = config.drain_timeout;
    let server = Server::new(&config, AppState::new(config.clone(), registry, recorder, Some(address)));
    let state = server.state.clone();
    tracing::info!(%address, "listening");
    let draining = async {
        shutdown.await;
        tracing::info!("shutting down");
        state.begin_drain();
        if tokio::time::timeout(drain_timeout, state.drained()).await.is_err() {
            tracing::warn!(?drain_timeout, "not everything was finished in time");
        }
        // What still waits for an engine is told so before its connection is closed.
        state.registry().close();
    };
    server.run(listener, draining).await;
    Ok(())
}

struct Server {
    state: AppState,
    router: Router,
    http: http1::Builder,
    send_timeout: Duration,
    places: Arc<Semaphore>,
    closing: watch::Sender<bool>,
    connections: JoinSet<()>,
}

impl Server {
    fn new(config: &ServerConfig, state: AppState) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_header_size(config.max_header_bytes)
            .max_buf_size(READ_BUFFER + config.max_header_bytes);
        Self {
            router: router(state.clone()),
            state,
            http,
            send_timeout: config.send_timeout,
            places: Arc::new(Semaphore::new(config.max_connections)),
            closing: watch::Sender::new(false),
            connections: JoinSet::new(),
        }
    }

    /// Accepts until `until` completes, then closes every connection.
    async fn run(mut self, listener: TcpListener, until: impl Future<Output = ()>) {
        let mut until = pin!(until);
        let mut upkeep = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            tokio::select! {
                () = &mut until => break,
                _ = upkeep.tick() => {
                    self.state.recorder().upkeep();
                    self.state.registry().expire();
                }
                Some(_) = self.connections.join_next() => {}
                accepted = accept(&listener, &self.places) => match accepted {
                    Ok((stream, place)) => self.open(stream, place),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        self.closing.send_replace(true);
        let closed = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSING_TIMEOUT, closed).await.is_err() {
            tracing::warn!(open = self.connections.len(), "connections are cut");
            self.connections.shutdown().await;
        }
    }

    fn open(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Chunks are small and must leave at once; a socket that refuses the option still works.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(ImpatientStream::new(stream, self.send_timeout));
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.http.serve_connection(io, service).with_upgrades();
        let mut closing = self.closing.subscribe();
        self.connections.spawn(async move {
            let _place = place;
            let mut connection = pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = closed(&mut closing) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender is gone only when the server is, which closes as well.
    let _ = closing.wait_for(|closing| *closing).await;
}
