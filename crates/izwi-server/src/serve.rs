//! The accept loop and the graceful shutdown: readiness turns red, open requests finish, then the connections close.

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
use crate::net::WriteTimeoutStream;
use crate::registry::Registry;
use crate::routes::router;
use crate::state::AppState;

/// Interval of maintenance of the metrics recorder and of unused models.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a failed accept, e.g. without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long connections may take to close once no request is open.
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

/// Serves until `shutdown` completes, then drains: readiness is red and new requests are refused at once, while open
/// requests and current utterances continue for at most [`ServerConfig::drain_timeout`]. Engines stop at the end.
///
/// # Errors
/// The listener has no local address.
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
            tracing::warn!(?drain_timeout, "requests were still open when the drain timeout elapsed");
        }
        // Requests that still wait for an engine get an error before their connection closes.
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
    connection_permits: Arc<Semaphore>,
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
            connection_permits: Arc::new(Semaphore::new(config.max_connections)),
            closing: watch::Sender::new(false),
            connections: JoinSet::new(),
        }
    }

    /// Accepts until `until` completes, then closes every connection.
    async fn run(mut self, listener: TcpListener, until: impl Future<Output = ()>) {
        let mut until = pin!(until);
        let mut maintenance = tokio::time::interval(MAINTENANCE_INTERVAL);
        loop {
            tokio::select! {
                () = &mut until => break,
                _ = maintenance.tick() => {
                    self.state.recorder().run_upkeep();
                    self.state.registry().expire();
                }
                Some(_) = self.connections.join_next() => {}
                accepted = accept(&listener, &self.connection_permits) => match accepted {
                    Ok((stream, permit)) => self.open(stream, permit),
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        self.closing.send_replace(true);
        let closed = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSING_TIMEOUT, closed).await.is_err() {
            tracing::warn!(open = self.connections.len(), "connections are closed by force");
            self.connections.shutdown().await;
        }
    }

    fn open(&mut self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        // Chunks are small and must be sent at once; a socket that refuses the option still works.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(WriteTimeoutStream::new(stream, self.send_timeout));
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.http.serve_connection(io, service).with_upgrades();
        let mut closing = self.closing.subscribe();
        self.connections.spawn(async move {
            let _permit = permit;
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

/// The next connection, once fewer than the limit are open.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender is dropped only with the server, which closes too.
    let _ = closing.wait_for(|closing| *closing).await;
}
