//! `izwi serve`: the HTTP and WebSocket service, its models loaded in the background.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_server::{Recorder, Registry, Slot, check_bind};
use tokio::net::TcpListener;

use crate::failure::{self, Failure};
use crate::interrupt::Interrupt;
use crate::settings::{Resolved, ServerSettings};
use crate::{logging, models, output, speech};

/// Serve speech over HTTP and WebSocket
///
/// Listens at once and loads the models in the background: /readyz is red until the default model is warm. SIGTERM or
/// Ctrl-C finishes what is under way and ends; a second one ends at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail if a model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "info");
    let config = speech::engine_config(resolved);
    speech::start_threads(config.num_threads);
    let runtime = speech::runtime()?;
    let served = runtime.block_on(serve(args, resolved, config));
    // A model that still loads is not waited for.
    runtime.shutdown_background();
    served
}

async fn serve(args: &Args, resolved: &Resolved, config: EngineCoreConfig) -> Result<()> {
    let server = &resolved.settings.server;
    let mut interrupt = Interrupt::listen()?;
    let listener = listen(server).await?;
    let address = listener.local_addr().context("the listener has no address")?;
    let store = models::open(&resolved.settings.home)?;
    let mut names = vec![config.model.clone()];
    names.extend(server.extra_models.iter().filter(|name| **name != config.model).cloned());
    // A slip in a name is told now, not when the model would be loaded.
    for name in &names {
        store.manifest(name)?;
    }

    output::say(&format!("izwi serves on {}", url(address)));
    let recorder = Recorder::install()?;
    let registry = Registry::new(config.model.clone());
    let load =
        Load { registry: registry.clone(), home: resolved.settings.home.clone(), may_pull: !args.no_pull };
    for name in names {
        registry.set(name.clone(), Slot::Loading);
        let (load, config) = (load.clone(), EngineCoreConfig { model: name, ..config.clone() });
        tokio::task::spawn_blocking(move || load.run(config));
    }

    let shutdown = async move {
        interrupt.requested().await;
        output::say("finishing what is under way; ask again to end at once");
        tokio::spawn(async move {
            interrupt.requested().await;
            output::complain(&failure::render(&Failure::Interrupted.into()));
            end_now();
        });
    };
    izwi_server::serve(listener, server.config.clone(), registry, recorder, shutdown).await?;
    Ok(())
}

/// Ends the process without waiting for anything, as a second signal asks for.
fn end_now() -> ! {
    const INTERRUPTED: i32 = 130;
    std::process::exit(INTERRUPTED)
}

/// Binds the address, if that is safe.
async fn listen(server: &ServerSettings) -> Result<TcpListener> {
    let place = format!("{}:{}", server.host, server.port);
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((server.host.as_str(), server.port))
        .await
        .map_err(|error| {
            failure::with_help(
                format!("the host '{}' means no address: {error}", server.host),
                "use 127.0.0.1 for this machine, 0.0.0.0 for every interface",
            )
        })?
        .collect();
    for address in &addresses {
        check_bind(*address, server.config.api_key.is_some(), server.insecure).map_err(|error| {
            failure::with_help(error.to_string(), "set IZWI_API_KEY, use --host 127.0.0.1, or add --insecure")
        })?;
    }
    TcpListener::bind(addresses.as_slice()).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => failure::with_help(
            format!("{place} is in use"),
            "another izwi may be running; take another port with --port, or --port 0 for a free one",
        ),
        std::io::ErrorKind::PermissionDenied => failure::with_help(
            format!("{place} may not be bound by this user"),
            "take a port above 1023 with --port",
        ),
        std::io::ErrorKind::AddrNotAvailable => failure::with_help(
            format!("{place} is no address of this machine"),
            "use 127.0.0.1 for this machine, 0.0.0.0 for every interface",
        ),
        _ => anyhow::Error::new(error).context(format!("cannot listen on {place}")),
    })
}

/// The base URL that a client on this machine uses.
fn url(address: SocketAddr) -> String {
    let port = address.port();
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => format!("http://127.0.0.1:{port}"),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => format!("http://[::1]:{port}"),
        address => format!("http://{address}"),
    }
}

/// Loading one model into the registry.
#[derive(Debug, Clone)]
struct Load {
    registry: Registry,
    home: std::path::PathBuf,
    may_pull: bool,
}

impl Load {
    fn run(&self, config: EngineCoreConfig) {
        let model = config.model.clone();
        let slot = match self.engine(config) {
            Ok(engine) => {
                tracing::info!(%model, device = engine.profile().device, "model is loaded");
                Slot::Ready(engine)
            }
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::error!(%model, reason, "model failed to load");
                Slot::Failed(reason)
            }
        };
        self.registry.set(model, slot);
    }

    fn engine(&self, config: EngineCoreConfig) -> Result<Engine> {
        let store = models::open(&self.home)?;
        models::ensure(&store, &config.model, self.may_pull)?;
        Ok(Engine::new(config)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_can_be_opened() {
        for (address, expected) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("0.0.0.0:1", "http://127.0.0.1:1"),
            ("[::]:1", "http://[::1]:1"),
            ("[::1]:2", "http://[::1]:2"),
        ] {
            assert_eq!(url(address.parse().unwrap()), expected);
        }
    }
}
