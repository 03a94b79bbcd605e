//! Access rules: the bind address, `Host`, `Origin` and the API key. Knows no route and no state of the server.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use izwi_types::excerpt;
use subtle::ConstantTimeEq;

use crate::config::ServerConfig;
use crate::error::ApiError;

/// An address that must not be bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached from other machines and no api key is set; set a key, bind 127.0.0.1, or allow it explicitly"
)]
pub struct BindError(pub SocketAddr);

/// Refuses to bind an address other than loopback without a key, unless `insecure` is set.
///
/// # Errors
/// The address is not loopback, there is no key, and `insecure` is not set.
pub fn check_bind(address: SocketAddr, has_key: bool, insecure: bool) -> Result<(), BindError> {
    if is_loopback(address.ip()) || has_key || insecure { Ok(()) } else { Err(BindError(address)) }
}

/// Allowed hosts and origins, normalised for comparison.
#[derive(Debug)]
pub(crate) struct AccessRules {
    hosts: Vec<String>,
    origins: Vec<String>,
    /// Whether the server listens on every address: then any literal address is allowed. DNS rebinding needs a name.
    any_literal: bool,
}

impl AccessRules {
    pub(crate) fn new(config: &ServerConfig, bound: Option<SocketAddr>) -> Self {
        let mut hosts: Vec<String> = config.allowed_hosts.iter().map(|host| comparable_host(host)).collect();
        hosts.extend(bound.map(|address| address.ip().to_string()));
        let origins = config.allowed_origins.iter().map(|origin| comparable_origin(origin)).collect();
        Self { hosts, origins, any_literal: bound.is_some_and(|address| address.ip().is_unspecified()) }
    }

    fn admits_host(&self, host: &str) -> bool {
        let host = comparable_host(host);
        let literal = self.any_literal && host.parse::<IpAddr>().is_ok();
        is_loopback_name(&host) || literal || self.hosts.contains(&host)
    }

    fn admits_origin(&self, origin: &str) -> bool {
        let origin = comparable_origin(origin);
        if self.origins.contains(&origin) {
            return true;
        }
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        matches!(scheme, "http" | "https")
            && authority.parse::<Authority>().is_ok_and(|authority| {
                !authority.as_str().contains('@') && is_loopback_name(&comparable_host(authority.as_str()))
            })
    }

    /// Checks `Host` and `Origin` of a request.
    pub(crate) fn check(&self, request: &Request) -> Result<(), ApiError> {
        let headers = request.headers();
        let host = match request.uri().authority() {
            Some(authority) => authority.as_str(),
            None => single(headers, header::HOST).map_err(ApiError::ForbiddenHost)?.unwrap_or_default(),
        };
        if !self.admits_host(host) {
            return Err(ApiError::ForbiddenHost(excerpt(host)));
        }
        match single(headers, header::ORIGIN).map_err(ApiError::ForbiddenOrigin)? {
            Some(origin) if !self.admits_origin(origin) => Err(ApiError::ForbiddenOrigin(excerpt(origin))),
            _ => Ok(()),
        }
    }
}

/// The only value of a header. Several values, or bytes that are not text, are an error.
fn single(headers: &HeaderMap, name: header::HeaderName) -> Result<Option<&str>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| "(not text)".to_owned()),
        (Some(_), Some(_)) => Err("(several)".to_owned()),
    }
}

/// Lower case, without port, brackets and the final dot.
fn comparable_host(host: &str) -> String {
    let host = host.trim();
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        // A bare IPv6 address has several colons and no port.
        None if host.matches(':').count() == 1 => host.split(':').next().unwrap_or_default(),
        None => host,
    };
    bare.trim_end_matches('.').to_ascii_lowercase()
}

fn comparable_origin(origin: &str) -> String {
    origin.trim().trim_end_matches('/').to_ascii_lowercase()
}

fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok_and(is_loopback)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether a request carries the key, compared in constant time.
pub(crate) fn has_key(headers: &HeaderMap, key: &str) -> bool {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer.into_iter().chain(plain).any(|given| given.as_bytes().ct_eq(key.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(bound: &str) -> AccessRules {
        let config = ServerConfig {
            allowed_hosts: vec!["Speech.Example.com".to_owned()],
            allowed_origins: vec!["https://app.example.com/".to_owned()],
            ..Default::default()
        };
        AccessRules::new(&config, Some(bound.parse().unwrap()))
    }

    #[test]
    fn only_loopback_is_bound_without_a_key() {
        let check =
            |address: &str, key, insecure| check_bind(address.parse().unwrap(), key, insecure).is_ok();
        assert!(check("127.0.0.1:8080", false, false));
        assert!(check("[::1]:8080", false, false));
        assert!(check("[::ffff:127.0.0.1]:8080", false, false));
        assert!(!check("0.0.0.0:8080", false, false));
        assert!(!check("192.168.1.5:8080", false, false));
        assert!(check("0.0.0.0:8080", true, false));
        assert!(check("0.0.0.0:8080", false, true));
    }

    #[test]
    fn hosts_are_compared_without_port_and_case() {
        let rules = rules("192.168.1.5:8080");
        let good = [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "[::1]:8080",
            "::1",
            "app.localhost",
            "192.168.1.5:8080",
        ];
        for host in good.into_iter().chain(["speech.example.com.", "speech.example.com:443"]) {
            assert!(rules.admits_host(host), "{host}");
        }
        for host in [
            "",
            "evil.com",
            "localhost.evil.com",
            "evil.com:8080",
            "192.168.1.6",
            "127.0.0.1.evil.com",
            "[",
            ":",
        ] {
            assert!(!rules.admits_host(host), "{host}");
        }
    }

    #[test]
    fn a_server_on_every_address_accepts_every_literal_address() {
        let rules = rules("0.0.0.0:8080");
        assert!(rules.admits_host("192.168.7.7:8080"));
        assert!(!rules.admits_host("rebound.example.net:8080"));
    }

    #[test]
    fn origins_are_loopback_or_listed() {
        let rules = rules("127.0.0.1:8080");
        for origin in
            ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:9", "https://APP.example.com"]
        {
            assert!(rules.admits_origin(origin), "{origin}");
        }
        let bad = [
            "null",
            "",
            "http://evil.com",
            "https://app.example.com.evil.com",
            "file://",
            "http://localhost@evil.com",
        ];
        for origin in bad.into_iter().chain([
            "http://app.example.com",
            "http://evil.com@localhost",
            "chrome-extension://localhost",
        ]) {
            assert!(!rules.admits_origin(origin), "{origin}");
        }
    }
}
