//! The accept loop and the graceful shutdown: readiness turns red, open requests finish, then the connections close.
//!
//! Every connection is accepted, so that none waits unseen; [`connections`](crate::connections) decides which may stay.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::ServerConfig;
use crate::connections::{Connections, Limits, Place};
use crate::dialect::{Dialects, TcpService};
use crate::held_body::HeldBody;
use crate::metrics::Recorder;
use crate::net::ServerStream;
use crate::peer::{Client, Peer};
use crate::registry::Registry;
use crate::routes::router;
use crate::state::AppState;
use crate::worker;

/// Interval of maintenance of the metrics recorder and of unused models.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a failed accept, e.g. without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long connections may take to close once no request is open.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
/// Bounds of the interval in which connections are checked for timeouts.
const SWEEP_INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Bytes of a connection's read buffer beyond the head of a request.
const READ_BUFFER: usize = 64 << 10;

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener has no address.
    #[error("the listener has no local address")]
    Listener(#[source] io::Error),
}

/// The ports of a server, and what it serves on them.
#[derive(Debug)]
pub struct Listeners {
    /// HTTP and WebSocket.
    pub http: TcpListener,
    /// Interfaces of other services on the same port.
    pub dialects: Dialects,
    /// Protocols with ports of their own.
    pub services: Vec<(TcpListener, Arc<dyn TcpService>)>,
}

/// Serves until `shutdown` completes or [`ServerConfig::exit_when_idle`] has passed, then drains: readiness is red and new
/// requests are refused at once, while open requests and current utterances continue for at most
/// [`ServerConfig::drain_timeout`]. Engines stop at the end.
///
/// # Errors
/// A listener has no local address.
pub async fn serve(
    listeners: Listeners,
    config: ServerConfig,
    registry: Registry,
    recorder: Recorder,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let address = listeners.http.local_addr().map_err(ServeError::Listener)?;
    let local_addr = |(listener, _): &(TcpListener, _)| listener.local_addr();
    let ports: Result<Vec<_>, _> = listeners.services.iter().map(local_addr).collect();
    let ports = ports.map_err(ServeError::Listener)?;
    let drain_timeout = config.drain_timeout;
    let state = AppState::new(config.clone(), registry, recorder, Some(address));
    let server = Server::new(&config, state, listeners.dialects);
    let state = server.state.clone();
    let limits = Limits::of(&config);
    tracing::info!(
        %address,
        connections = limits.ordinary,
        per_peer = limits.per_peer,
        open_files = config.max_open_files,
        "listening"
    );
    let announce = |((_, service), address): (&(_, Arc<dyn TcpService>), _)| {
        tracing::info!(%address, "listening for {}", service.name());
        service.announce(address)
    };
    let announcements: Vec<_> = listeners.services.iter().zip(ports).filter_map(announce).collect();
    let draining = async {
        shutdown.await;
        tracing::info!("shutting down");
        state.begin_drain();
        drop(announcements);
        if tokio::time::timeout(drain_timeout, state.drained()).await.is_err() {
            tracing::warn!(?drain_timeout, "requests were still open when the drain timeout elapsed");
        }
        // Requests that still wait for an engine get an error before their connection closes.
        state.registry().close();
    };
    let worker = config.jobs.is_some().then(|| tokio::spawn(worker::run(state.clone())));
    server.run(listeners, draining).await;
    if let Some(worker) = worker {
        worker.abort();
    }
    Ok(())
}

struct Server {
    state: AppState,
    router: Router,
    http: http1::Builder,
    send_timeout: Duration,
    places: Connections,
    sweep_interval: Duration,
    /// The time without a connection after which the server ends.
    exit_when_idle: Option<Duration>,
    /// Since when nobody is connected, as far as it was noticed.
    idle_since: Option<Instant>,
    closing: watch::Sender<bool>,
    connections: JoinSet<()>,
}

impl Server {
    fn new(config: &ServerConfig, state: AppState, dialects: Dialects) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // The places have the timeouts of heads and of idle connections.
            .header_read_timeout(None)
            .max_header_size(config.max_header_bytes)
            .max_buf_size(READ_BUFFER + config.max_header_bytes);
        Self {
            router: router(state.clone(), dialects),
            state,
            http,
            send_timeout: config.send_timeout,
            places: Connections::new(Limits::of(config)),
            sweep_interval: (config.header_timeout.min(config.keep_alive_timeout) / 4)
                .clamp(SWEEP_INTERVALS.0, SWEEP_INTERVALS.1),
            exit_when_idle: config.exit_when_idle,
            idle_since: None,
            closing: watch::Sender::new(false),
            connections: JoinSet::new(),
        }
    }

    /// Accepts until `until` completes or nobody has been connected for a while, then closes every connection.
    async fn run(mut self, listeners: Listeners, until: impl Future<Output = ()>) {
        let mut until = pin!(until);
        let mut maintenance = tokio::time::interval(MAINTENANCE_INTERVAL);
        let mut sweep = tokio::time::interval(self.sweep_interval);
        loop {
            tokio::select! {
                () = &mut until => break,
                _ = maintenance.tick() => {
                    self.state.recorder().run_upkeep();
                    self.state.registry().expire();
                    if self.has_been_idle() {
                        tracing::info!("ending: nobody is connected");
                        self.state.registry().close();
                        break;
                    }
                }
                _ = sweep.tick() => self.places.expire(),
                Some(_) = self.connections.join_next() => {}
                accepted = listeners.http.accept() => match accepted {
                    Ok((stream, address)) => self.open(stream, address.ip()),
                    Err(error) => self.relieve(&error).await,
                },
                accepted = accept(&listeners.services) => match accepted {
                    Ok((service, stream, address)) => self.open_service(service, stream, address.ip()),
                    Err(error) => self.relieve(&error).await,
                },
            }
        }
        drop(listeners);
        self.closing.send_replace(true);
        let closed = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSING_TIMEOUT, closed).await.is_err() {
            tracing::warn!(open = self.connections.len(), "connections are closed by force");
            self.connections.shutdown().await;
        }
    }

    /// Whether no connection was open and no model was pulled for the configured time.
    fn has_been_idle(&mut self) -> bool {
        let Some(limit) = self.exit_when_idle else { return false };
        if !self.connections.is_empty() || self.state.pulls().is_running() || self.state.jobs().is_active() {
            self.idle_since = None;
            return false;
        }
        self.idle_since.get_or_insert_with(Instant::now).elapsed() >= limit
    }

    /// Makes room after a failed accept.
    async fn relieve(&self, error: &io::Error) {
        tracing::warn!(%error, "accept failed");
        self.places.displace_oldest();
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    fn open_service(&mut self, service: &Arc<dyn TcpService>, stream: TcpStream, address: IpAddr) {
        let place = self.places.admit(Peer::of(address));
        let Some(place) = place.filter(|place| !place.is_probe) else {
            tracing::debug!(%address, "{} connection refused: every place serves a request", service.name());
            return;
        };
        // As in `open`.
        let _ = stream.set_nodelay(true);
        let (served, mut closing) =
            (service.serve(self.state.clone(), stream, place), self.closing.subscribe());
        self.connections.spawn(async move {
            tokio::select! {
                () = served => {}
                () = closed(&mut closing) => {}
            }
        });
    }

    fn open(&mut self, stream: TcpStream, address: IpAddr) {
        self.idle_since = None;
        let Some(place) = self.places.admit(Peer::of(address)) else {
            tracing::debug!(%address, "connection refused: every place serves a request");
            return;
        };
        // Chunks are small and must be sent at once; a socket that refuses the option still works.
        let _ = stream.set_nodelay(true);
        let place = Arc::new(place);
        let io = TokioIo::new(ServerStream::new(stream, self.send_timeout, Arc::clone(&place)));
        let mut http = self.http.clone();
        // A place for probes is free again after each.
        http.keep_alive(!place.is_probe);
        let service = service_fn(serving(self.router.clone(), Arc::clone(&place)));
        let connection = http.serve_connection(io, service).with_upgrades();
        let mut closing = self.closing.subscribe();
        self.connections.spawn(async move {
            let mut connection = pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = place.evicted() => return,
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

/// Serves the requests of one connection, and tells its place what it does.
fn serving(router: Router, place: Arc<Place>) -> impl Fn(Request<Incoming>) -> Answering + Send + 'static {
    let service = TowerToHyperService::new(router);
    let client = Client { peer: place.peer, only_probes: place.is_probe };
    move |mut request| {
        place.begin();
        request.extensions_mut().insert(client);
        let (answer, place) = (service.call(request), Arc::clone(&place));
        Box::pin(async move {
            let response = answer.await?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                place.upgrade();
                return Ok(response);
            }
            Ok(response.map(|body| Body::new(HeldBody::new(body, Served(place)))))
        })
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// A request that is served until the body of its response ends.
struct Served(Arc<Place>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The next connection to a service; waits for ever without one.
async fn accept(
    services: &[(TcpListener, Arc<dyn TcpService>)],
) -> io::Result<(&Arc<dyn TcpService>, TcpStream, SocketAddr)> {
    poll_fn(|context| {
        for (listener, service) in services {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                return Poll::Ready(accepted.map(|(stream, address)| (service, stream, address)));
            }
        }
        Poll::Pending
    })
    .await
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender is dropped only with the server, which closes too.
    let _ = closing.wait_for(|closing| *closing).await;
}
