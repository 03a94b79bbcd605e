//! Client secrets: short-lived keys for browsers. Each opens the routes of one interface until it expires, and has settings
//! that sessions begin with. Knows no route.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use super::key::{digest, random_digits};

/// Of every secret, as OpenAI has it: its clients for browsers send no other key.
const PREFIX: &str = "ek_";
/// Hexadecimal digits after the prefix.
const DIGITS: usize = 64;
/// The most valid secrets.
const MAX_SECRETS: usize = 1_024;

/// Whether a key has the form of a client secret, valid or not.
pub(crate) fn is_client_secret(key: &str) -> bool {
    let digits = key.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What a secret allows.
#[derive(Debug)]
struct Grant {
    /// Routes that it opens.
    routes: &'static [&'static str],
    settings: Arc<Value>,
    expires_at: Instant,
}

/// The settings of the secret that opened a route, as an extension of the request.
#[derive(Debug, Clone)]
pub struct Granted(pub Arc<Value>);

/// The valid secrets by their digests, so that the time of a look-up tells nothing about a secret.
#[derive(Debug, Default)]
pub struct ClientSecrets(Mutex<HashMap<[u8; 32], Grant>>);

impl ClientSecrets {
    /// A new secret that opens `routes` until it expires; `None` if too many are valid.
    pub fn issue(
        &self,
        routes: &'static [&'static str],
        settings: Value,
        now: Instant,
        expires_at: Instant,
    ) -> Option<String> {
        let mut valid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        valid.retain(|_, grant| grant.expires_at > now);
        if valid.len() >= MAX_SECRETS {
            return None;
        }
        let secret = format!("{PREFIX}{}", random_digits());
        valid.insert(digest(secret.as_bytes()), Grant { routes, settings: Arc::new(settings), expires_at });
        Some(secret)
    }

    /// The settings of a secret that opens `route` now.
    pub(crate) fn find(&self, secret: &str, route: &str, now: Instant) -> Option<Granted> {
        let valid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grant = valid.get(&digest(secret.as_bytes()))?;
        (grant.expires_at > now && grant.routes.contains(&route))
            .then(|| Granted(Arc::clone(&grant.settings)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ROUTES: &[&str] = &["/a", "/b"];

    #[test]
    fn a_secret_opens_its_routes_until_it_expires() {
        let secrets = ClientSecrets::default();
        let now = Instant::now();
        let until = now + Duration::from_secs(10);
        let secret = secrets.issue(ROUTES, "settings".into(), now, until).unwrap();
        assert!(
            is_client_secret(&secret) && !is_client_secret(&secret[1..]) && !is_client_secret("ek_local")
        );
        for _ in 0..2 {
            assert_eq!(secrets.find(&secret, "/b", now).unwrap().0.as_str(), Some("settings"));
        }
        assert!(secrets.find(&secret, "/c", now).is_none());
        assert!(secrets.find(&secret[1..], "/a", now).is_none());
        assert!(secrets.find(&secret, "/a", until).is_none());
    }

    #[test]
    fn a_limited_number_of_secrets_is_valid() {
        let secrets = ClientSecrets::default();
        let now = Instant::now();
        let until = now + Duration::from_secs(10);
        let issue = |now: Instant| secrets.issue(ROUTES, Value::Null, now, until + Duration::from_secs(10));
        assert!((0..MAX_SECRETS).all(|_| secrets.issue(ROUTES, Value::Null, now, until).is_some()));
        assert_eq!(issue(now), None);
        assert!(issue(until).is_some(), "expired ones make room");
    }
}
