//! Access rules: the bind address, `Host`, `Origin`, requests of foreign pages, and the API key. Knows no state of the
//! server.

mod authority;
mod client_secrets;
mod key;
mod tickets;

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use izwi_types::excerpt;

use self::authority::{configured_host, host_of, origin_parts};
pub(crate) use self::client_secrets::is_client_secret;
pub use self::client_secrets::{ClientSecrets, Granted};
pub(crate) use self::key::{ApiKey, KeyThrottle, Presented, given_keys};
pub use self::key::{KeyError, check_key};
pub(crate) use self::tickets::{LIFETIME as TICKET_LIFETIME, Tickets};
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

/// A host of the configuration that no request can name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no name or address of a host like speech.example.com; list each host, without a scheme and a pattern"
)]
pub struct HostError(String);

/// Checks a host that requests may name.
///
/// # Errors
/// It is no name and no address, so that no request would match it.
pub fn check_allowed_host(host: &str) -> Result<(), HostError> {
    configured_host(host).map(drop).ok_or_else(|| HostError(excerpt(host)))
}

/// An origin of the configuration that no page can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no origin like https://app.example.com; list each origin, without a path and a pattern")]
pub struct OriginError(String);

/// Checks an origin whose pages may send requests. Browsers send `null` for pages without one.
///
/// # Errors
/// It is no scheme with a host, so that no request would match it.
pub fn check_allowed_origin(origin: &str) -> Result<(), OriginError> {
    let comparable = comparable_origin(origin);
    let is_one = comparable == "null" || origin_parts(&comparable).is_some();
    if is_one { Ok(()) } else { Err(OriginError(excerpt(origin))) }
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
        let mut hosts: Vec<String> =
            config.allowed_hosts.iter().filter_map(|host| configured_host(host)).collect();
        hosts.extend(bound.map(|address| address.ip().to_string()));
        let origins = config.allowed_origins.iter().map(|origin| comparable_origin(origin)).collect();
        Self { hosts, origins, any_literal: bound.is_some_and(|address| address.ip().is_unspecified()) }
    }

    fn admits_host(&self, host: &str) -> bool {
        let Some(host) = host_of(host) else { return false };
        let literal = self.any_literal && host.parse::<IpAddr>().is_ok();
        is_loopback_name(&host) || literal || self.hosts.contains(&host)
    }

    fn admits_origin(&self, origin: &str) -> bool {
        if self.origins.contains(&comparable_origin(origin)) {
            return true;
        }
        let parts = origin_parts(origin);
        parts.is_some_and(|(scheme, host)| matches!(scheme, "http" | "https") && is_loopback_name(&host))
    }

    /// Checks `Host`, `Origin` and `Sec-Fetch-Site` of a request.
    pub(crate) fn check(&self, request: &Request) -> Result<(), ApiError> {
        let headers = request.headers();
        let target = request.uri().authority().map(|authority| authority.as_str());
        let named = single(headers, header::HOST).map_err(ApiError::ForbiddenHost)?;
        let hosts = target.into_iter().chain(named);
        let is_missing = target.is_none() && named.is_none();
        if let Some(host) = hosts.chain(is_missing.then_some("")).find(|host| !self.admits_host(host)) {
            return Err(ApiError::ForbiddenHost(excerpt(host)));
        }
        match single(headers, header::ORIGIN).map_err(ApiError::ForbiddenOrigin)? {
            Some(origin) if !self.admits_origin(origin) => Err(ApiError::ForbiddenOrigin(excerpt(origin))),
            Some(_) => Ok(()),
            None if is_cross_site(headers) && !is_visit(request) => Err(ApiError::CrossSite),
            None => Ok(()),
        }
    }
}

/// Whether a page of another site, or of another port or subdomain of this one, sent the request
/// (<https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header>). Browsers send no `Origin` with images, scripts and
/// the like. Unknown values are ignored, as that standard asks.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all("sec-fetch-site").iter();
    values.any(|value| {
        let is = |site: &str| value.as_bytes().eq_ignore_ascii_case(site.as_bytes());
        is("cross-site") || is("same-site")
    })
}

/// Whether the user follows a link to a page of this server. What follows a link loads no model.
fn is_visit(request: &Request) -> bool {
    let is = |name: &str, expected: &str| {
        request.headers().get(name).is_some_and(|value| value.as_bytes() == expected.as_bytes())
    };
    request.method() == Method::GET
        && !request.uri().path().starts_with("/v1/")
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document")
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

fn comparable_origin(origin: &str) -> String {
    origin.trim().trim_end_matches('/').to_ascii_lowercase()
}

fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok_and(is_loopback)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_request_can_name_is_refused() {
        for host in ["speech.example.com", "Speech.Example.com:8080", "10.0.0.1", "::1", "[::1]", "my_host"] {
            assert_eq!(check_allowed_host(host), Ok(()), "{host}");
        }
        for host in ["*", "*.example.com", "", " ", "https://a", "a/b", "a b", "\0", "a,b"] {
            assert!(check_allowed_host(host).is_err(), "{host:?}");
        }
        for origin in ["https://app.example.com/", "http://10.0.0.1:3000", "null", "app://localhost"] {
            assert_eq!(check_allowed_origin(origin), Ok(()), "{origin}");
        }
        for origin in ["*", "https://*", "https://*.example.com", "app.example.com", "https://a/b", ""] {
            assert!(check_allowed_origin(origin).is_err(), "{origin:?}");
        }
    }

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
        let good =
            ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "app.localhost", "192.168.1.5:8080"];
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
            "[::1]evil.com",
            "::1",
            "localhost@evil.com",
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
            "http://[::1]evil.com",
            "http://localhost/path",
            "http://localhost:80:80",
        ];
        for origin in bad.into_iter().chain([
            "http://app.example.com",
            "http://evil.com@localhost",
            "chrome-extension://localhost",
        ]) {
            assert!(!rules.admits_origin(origin), "{origin}");
        }
    }

    type Headers<'a> = &'a [(&'a str, &'a str)];

    fn request(method: Method, path: &str, headers: Headers<'_>) -> Request {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(axum::body::Body::empty()).unwrap()
    }

    #[test]
    fn pages_of_other_sites_are_refused_unless_their_origin_is_allowed() {
        let rules = rules("127.0.0.1:8080");
        let voices = "/v1/audio/voices?model=large";
        let image =
            |site| [("sec-fetch-site", site), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")];
        let link = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let frame = [link[0], link[1], ("sec-fetch-dest", "iframe")];
        let page = ("origin", "http://localhost:3000");
        let cases: [(Method, &str, Headers<'_>, bool); 14] = [
            (Method::GET, voices, &[], true),
            (Method::GET, voices, &image("none"), true),
            (Method::GET, voices, &image("same-origin"), true),
            (Method::GET, voices, &image("future-value"), true),
            (Method::GET, voices, &image("cross-site"), false),
            (Method::GET, voices, &image("same-site"), false),
            (Method::GET, "/metrics", &image("cross-site"), false),
            (Method::GET, voices, &[link[0], page], true),
            (Method::POST, "/v1/audio/speech", &[link[0], page], true),
            (Method::POST, "/v1/audio/speech", &[link[0]], false),
            (Method::GET, "/", &link, true),
            (Method::GET, voices, &link, false),
            (Method::GET, "/", &frame, false),
            (Method::POST, "/", &link, false),
        ];
        for (method, path, headers, expected) in cases {
            let checked = rules.check(&request(method.clone(), path, headers));
            assert_eq!(checked.is_ok(), expected, "{method} {path} {headers:?}");
            if let Err(error) = checked {
                assert_eq!(error.code(), "cross_site");
            }
        }
    }

    #[test]
    fn the_target_and_the_host_header_are_both_checked() {
        let rules = rules("127.0.0.1:8080");
        for (target, host, expected) in [
            ("http://localhost/livez", "localhost", true),
            ("http://localhost/livez", "evil.com", false),
            ("http://evil.com/livez", "localhost", false),
            ("/livez", "evil.com", false),
        ] {
            let request = Request::builder().uri(target).header("host", host);
            let request = request.body(axum::body::Body::empty()).unwrap();
            assert_eq!(rules.check(&request).is_ok(), expected, "{target} {host}");
        }
        let without = Request::builder().uri("/livez").body(axum::body::Body::empty()).unwrap();
        assert!(rules.check(&without).is_err());
    }
}
