//! `izwi serve`: the HTTP and WebSocket service; models load in the background.

use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use izwi_core::engine::EngineCoreConfig;
use izwi_dialects::Wyoming;
use izwi_server::{Listeners, Recorder, ServerConfig, TcpService, Traces, check_bind};
use tokio::net::TcpListener;

use crate::failure::{self, Failure};
use crate::interrupt::Interrupt;
use crate::served::Served;
use crate::service::activation;
use crate::settings::{Resolved, ServerSettings};
use crate::{address, engine, logging, machine, models, output};

/// The remedy for an address that other machines can reach.
const OPEN_ADDRESS: &str = "set IZWI_API_KEY, use --host 127.0.0.1, or add --insecure";

/// What is reported of a Wyoming port that other machines can reach.
const OPEN_WYOMING: &str = "warning: the Wyoming port has no key: every machine that reaches it can speak and transcribe here; let a \
    firewall pass Home Assistant alone";

/// How long the last traces may take to leave at shutdown.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);

/// Serve speech over HTTP and WebSocket
///
/// Listens at once and loads the default models in the background: /readyz fails until they are warm. Every other
/// installed model is offered as well and loads when a request first names it. SIGTERM or Ctrl-C finishes the open
/// requests and stops; a second one stops at once. A socket that a service manager passes (LISTEN_FDS) takes the place of
/// host and port.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail if a model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the decoder are reported to the client that sent the recording.
    logging::begin(&resolved.settings, "info,symphonia=off,rmcp=warn");
    // The variables of a passed socket are removed while there is one thread.
    let passed = activation::listener()?;
    machine::check_address_space()?;
    let config = engine::config(resolved);
    engine::start_threads(config.num_threads);
    let runtime = engine::runtime()?;
    let traces = Traces::from_environment()?;
    let served = runtime.block_on(serve(args, resolved, config, passed, traces.clone()));
    // Loading models are not waited for.
    runtime.shutdown_background();
    if let Some(traces) = traces {
        traces.shutdown(TRACES_TIMEOUT);
    }
    served
}

async fn serve(
    args: &Args,
    resolved: &Resolved,
    config: EngineCoreConfig,
    passed: Option<net::TcpListener>,
    traces: Option<Traces>,
) -> Result<()> {
    let server = &resolved.settings.server;
    let mut interrupt = Interrupt::listen()?;
    let exit_when_idle = passed.as_ref().and_then(|_| server.exit_when_idle());
    let http = match passed {
        Some(listener) => adopt(listener, server)?,
        None => listen(server).await?,
    };
    let wyoming = listen_wyoming(server).await?;
    let max_open_files = open_files(&server.config)?;
    let address = http.local_addr().context("the listener has no address")?;
    let store = models::open(&resolved.settings)?;
    let registry_config = server.registry(config.model.clone());
    let served = Served::new(&resolved.settings, registry_config, config, &store, !args.no_pull)?;

    output::status(&format!("izwi serves on {}", address::url(address)));
    if let Some((wyoming, _)) = &wyoming {
        announce_wyoming(wyoming.local_addr().context("the listener has no address")?);
    }
    let recorder = Recorder::install()?;
    let registry = served.load();

    let shutdown = async move {
        interrupt.requested().await;
        activation::stopping();
        output::status("finishing open requests; a second signal stops at once");
        tokio::spawn(async move {
            interrupt.requested().await;
            output::stderr(&failure::render(&Failure::Interrupted.into()));
            exit_now();
        });
    };
    let config = ServerConfig {
        jobs: Some(store.jobs()),
        voices: Some(store.voices().clone()),
        lexicons: Some(store.lexicons().clone()),
        speakers: server.saved_speakers.then(|| store.speakers().clone()),
        vad_weights: Some(store.vad_weights()),
        store: Some(store),
        max_open_files,
        traces,
        exit_when_idle,
        ..server.config.clone()
    };
    let listeners =
        Listeners { http, dialects: izwi_dialects::all(), services: wyoming.into_iter().collect() };
    activation::ready(&address::url(address));
    izwi_server::serve(listeners, config, registry, recorder, shutdown).await?;
    Ok(())
}

fn announce_wyoming(address: SocketAddr) {
    output::status(&format!("izwi serves wyoming on tcp://{address}"));
    if !address.ip().is_loopback() {
        output::status(OPEN_WYOMING);
    }
}

/// Exits at once, at the second signal.
fn exit_now() -> ! {
    const INTERRUPTED: i32 = 130;
    std::process::exit(INTERRUPTED)
}

/// Binds the address, if it is loopback, protected by a key, or allowed by `insecure`.
async fn listen(server: &ServerSettings) -> Result<TcpListener> {
    let addresses = address::resolve(&server.host, server.port)?;
    address::check(&addresses, server, OPEN_ADDRESS)?;
    bind(&addresses, &format!("{}:{}", server.host, server.port), "--port").await
}

/// Listens on a passed socket, if its address is loopback, protected by a key, or allowed by `insecure`.
fn adopt(listener: net::TcpListener, server: &ServerSettings) -> Result<TcpListener> {
    let address = listener.local_addr().context("the passed socket has no address")?;
    address::check(&[address], server, OPEN_ADDRESS)?;
    if server.port != address.port() {
        tracing::warn!(%address, configured = server.port, "the passed socket has another port than the settings");
    }
    listener.set_nonblocking(true).context("the passed socket cannot be used")?;
    TcpListener::from_std(listener).context("the passed socket cannot be used")
}

/// Binds the port of the Wyoming protocol, which has no key, if it is loopback or allowed by `wyoming_open` or `insecure`.
async fn listen_wyoming(server: &ServerSettings) -> Result<Option<(TcpListener, Arc<dyn TcpService>)>> {
    let Some((host, port)) = &server.wyoming.0 else { return Ok(None) };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = address::resolve(host, *port)?;
    for address in &addresses {
        check_bind(*address, false, server.wyoming_open || server.insecure).map_err(|_| {
            failure::with_help(
                format!("{address} can be reached from other machines, and wyoming has no key"),
                "use --wyoming 127.0.0.1:10200, or add --wyoming-open in a network that you trust",
            )
        })?;
    }
    let listener = bind(&addresses, &server.wyoming.to_string(), "--wyoming").await?;
    Ok(Some((listener, Arc::new(Wyoming { zeroconf: server.wyoming_zeroconf }))))
}

/// Binds the first of the addresses that can be. `flag` sets them.
async fn bind(addresses: &[SocketAddr], place: &str, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(addresses).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => failure::with_help(
            format!("{place} is in use"),
            format!("another izwi may be running; choose another port with {flag}, or port 0 for a free one"),
        ),
        std::io::ErrorKind::PermissionDenied => failure::with_help(
            format!("this user may not bind {place}"),
            format!("choose a port above 1023 with {flag}"),
        ),
        std::io::ErrorKind::AddrNotAvailable => failure::with_help(
            format!("{place} is not an address of this machine"),
            "use 127.0.0.1 for this machine, 0.0.0.0 for every interface",
        ),
        _ => anyhow::Error::new(error).context(format!("cannot listen on {place}")),
    })
}

/// Raises the limit of open files for all connections, and returns it.
fn open_files(config: &ServerConfig) -> Result<Option<u64>> {
    let max_open_files = machine::raise_open_files(config.wanted_files());
    let config = ServerConfig { max_open_files, ..config.clone() };
    config.check_files().map_err(|error| {
        failure::with_help(error.to_string(), "raise the limit with `ulimit -n`, or LimitNOFILE= of systemd")
    })?;
    if config.connection_limit() < config.max_connections {
        tracing::warn!(
            max_open_files,
            connections = config.connection_limit(),
            configured = config.max_connections,
            "the limit of open files allows fewer connections than max_connections"
        );
    }
    Ok(max_open_files)
}
