//! The address of a server: what a host resolves to, whether it may be bound, and its URL.
//!
//! Knows no socket and no request.

use std::net::{SocketAddr, ToSocketAddrs as _};

use anyhow::Result;
use izwi_server::check_bind;

use crate::failure;
use crate::settings::ServerSettings;

/// The addresses of a host. Blocks.
///
/// # Errors
/// The host does not resolve.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        failure::with_help(
            format!("the host '{host}' does not resolve: {error}"),
            "use 127.0.0.1 for this machine, 0.0.0.0 for every interface",
        )
    })?;
    Ok(addresses.collect())
}

/// Refuses addresses that other machines can reach, unless the settings have a key or allow it; `help` is the remedy.
///
/// # Errors
/// An address is refused.
pub(crate) fn check(addresses: &[SocketAddr], server: &ServerSettings, help: &str) -> Result<()> {
    for address in addresses {
        check_bind(*address, server.config.api_key.is_some(), server.insecure)
            .map_err(|error| failure::with_help(error.to_string(), help))?;
    }
    Ok(())
}

/// The base URL for clients on this machine.
pub(crate) fn url(address: SocketAddr) -> String {
    let port = address.port();
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => format!("http://127.0.0.1:{port}"),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => format!("http://[::1]:{port}"),
        address => format!("http://{address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_has_a_reachable_host() {
        for (address, expected) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("0.0.0.0:1", "http://127.0.0.1:1"),
            ("[::]:1", "http://[::1]:1"),
            ("[::1]:2", "http://[::1]:2"),
        ] {
            assert_eq!(url(address.parse().unwrap()), expected);
        }
    }

    #[test]
    fn an_open_address_needs_a_key_or_consent() {
        let open = ["0.0.0.0:80".parse().unwrap()];
        let server = ServerSettings::default();
        assert!(failure::render(&check(&open, &server, "do this").unwrap_err()).contains("help: do this"));
        assert!(check(&["127.0.0.1:80".parse().unwrap()], &server, "").is_ok());
        assert!(check(&open, &ServerSettings { insecure: true, ..server }, "").is_ok());
    }
}
