//! The API key: its least length, its comparison, and the throttle of wrong keys. Knows no route.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::peer::Peer;

/// The fewest characters of a key.
const MIN_KEY_CHARS: usize = 16;
/// Subprotocols of a WebSocket whose rest is the key: Izwi's, and that of the `openai` package for browsers.
const SUBPROTOCOL_KEYS: [&str; 2] = ["izwi-api-key.", "openai-insecure-api-key."];
/// Wrong keys that a peer may send at once.
const BURST: u32 = 20;
/// Time after which a peer may send another wrong key.
const INTERVAL: Duration = Duration::from_secs(1);
/// The most peers that the throttle remembers.
const MAX_PEERS: usize = 4_096;

/// A key that is too easy to guess, or cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has too few characters.
    #[error(
        "the key has {0} characters; it needs at least {MIN_KEY_CHARS}, as `openssl rand -hex 16` makes them"
    )]
    TooShort(usize),
    /// It has characters that do not fit in a header.
    #[error("the key must be printable ASCII without blanks")]
    NotPrintable,
}

/// Refuses a key that is too easy to guess or cannot be sent in a header.
///
/// # Errors
/// The key is too short, or not printable ASCII without blanks.
pub fn check_key(key: &str) -> Result<(), KeyError> {
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(KeyError::NotPrintable);
    }
    if key.len() < MIN_KEY_CHARS { Err(KeyError::TooShort(key.len())) } else { Ok(()) }
}

/// What a request carries in place of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presented {
    Right,
    Wrong,
    Nothing,
}

/// The digest of the key. Digests have one length, so that their comparison tells nothing about the key's.
pub(crate) struct ApiKey([u8; 32]);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKey").finish_non_exhaustive()
    }
}

impl ApiKey {
    pub(crate) fn new(key: &str) -> Self {
        Self(digest(key.as_bytes()))
    }

    /// Whether `key` is the key. Compares in constant time.
    pub(crate) fn is(&self, key: &str) -> bool {
        digest(key.as_bytes()).ct_eq(&self.0).into()
    }

    /// Compares the keys of a request in constant time.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Presented {
        given_keys(headers).fold(Presented::Nothing, |known, key| {
            if self.is(key) || known == Presented::Right { Presented::Right } else { Presented::Wrong }
        })
    }
}

/// The keys of a request: one of each kind, or a request would be many guesses.
pub(crate) fn given_keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        // Deepgram's clients send the second.
        let is_known = ["bearer", "token"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        is_known.then(|| token.trim())
    });
    // The second is the name of ElevenLabs.
    let mut plain = ["x-api-key", "xi-api-key"].into_iter();
    let plain = plain.find_map(|name| headers.get(name)?.to_str().ok());
    bearer.into_iter().chain(plain).chain(subprotocol_key(headers))
}

/// The first key among the subprotocols of a WebSocket: browsers can set no other header of it.
fn subprotocol_key(headers: &HeaderMap) -> Option<&str> {
    let values =
        headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut names = values.flat_map(|value| value.split(',')).map(str::trim);
    names.find_map(|name| SUBPROTOCOL_KEYS.iter().find_map(|prefix| name.strip_prefix(prefix)))
}

/// 64 hexadecimal digits that nobody guesses.
pub(super) fn random_digits() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

pub(super) fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Wrong keys per peer: [`BURST`] at once, then one per [`INTERVAL`]. A peer beyond that is refused whatever it sends, or
/// the answer would tell it the right key.
#[derive(Debug, Default)]
pub(crate) struct KeyThrottle {
    /// When each peer may send [`BURST`] wrong keys again.
    clear_at: Mutex<HashMap<Peer, Instant>>,
}

impl KeyThrottle {
    /// Refuses a peer that has sent too many wrong keys, with the time until it may try again.
    pub(crate) fn check(&self, peer: Peer, now: Instant) -> Result<(), Duration> {
        let peers = self.clear_at.lock().unwrap_or_else(PoisonError::into_inner);
        let clear_in = peers.get(&peer).map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        match (clear_in + INTERVAL).saturating_sub(INTERVAL * BURST) {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        }
    }

    /// Counts a wrong key.
    pub(crate) fn failed(&self, peer: Peer, now: Instant) {
        let mut peers = self.clear_at.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= MAX_PEERS && !peers.contains_key(&peer) {
            peers.retain(|_, at| *at > now);
            // The peer with the fewest recent failures.
            if peers.len() >= MAX_PEERS
                && let Some(mildest) = peers.iter().min_by_key(|(_, at)| **at).map(|(peer, _)| *peer)
            {
                peers.remove(&mildest);
            }
        }
        let at = peers.entry(peer).or_insert(now);
        *at = (*at).max(now) + INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn peer(number: u32) -> Peer {
        Peer::of(std::net::IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn short_and_unprintable_keys_are_refused() {
        assert_eq!(check_key("x"), Err(KeyError::TooShort(1)));
        assert_eq!(check_key(""), Err(KeyError::TooShort(0)));
        assert_eq!(check_key("0123456789abcde"), Err(KeyError::TooShort(15)));
        assert_eq!(check_key("0123456789abcdef"), Ok(()));
        assert_eq!(check_key("0123456789abcde f"), Err(KeyError::NotPrintable));
        assert_eq!(check_key("0123456789abcdeé"), Err(KeyError::NotPrintable));
        assert!(check_key("x").unwrap_err().to_string().contains("openssl rand"));
    }

    #[test]
    fn only_the_whole_key_is_right() {
        let key = ApiKey::new("0123456789abcdef");
        let presented = |name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(
                header::HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )]);
            key.check(&headers)
        };
        for value in ["0123456789abcdef", " 0123456789abcdef "] {
            assert_eq!(presented("authorization", &format!("Bearer {value}")), Presented::Right);
        }
        assert_eq!(presented("x-api-key", "0123456789abcdef"), Presented::Right);
        assert_eq!(presented("authorization", "Token 0123456789abcdef"), Presented::Right);
        assert_eq!(presented("xi-api-key", "0123456789abcdef"), Presented::Right);
        for value in ["", "0", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF"] {
            assert_eq!(presented("x-api-key", value), Presented::Wrong, "{value}");
        }
        let subprotocols = |value: &str| presented("sec-websocket-protocol", value);
        for prefix in SUBPROTOCOL_KEYS {
            assert_eq!(subprotocols(&format!("izwi, {prefix}0123456789abcdef")), Presented::Right);
            assert_eq!(subprotocols(&format!("{prefix}0123456789abcdef,izwi")), Presented::Right);
            assert_eq!(
                subprotocols(&format!("{prefix}0123456789abcde, {prefix}0123456789abcdef")),
                Presented::Wrong
            );
        }
        assert_eq!(subprotocols("izwi, realtime"), Presented::Nothing);
        assert_eq!(presented("authorization", "Basic 0123456789abcdef"), Presented::Nothing);
        assert_eq!(key.check(&HeaderMap::new()), Presented::Nothing);
    }

    #[test]
    fn wrong_keys_are_throttled_per_peer() {
        let throttle = KeyThrottle::default();
        let now = Instant::now();
        for _ in 0..BURST {
            assert_eq!(throttle.check(peer(1), now), Ok(()));
            throttle.failed(peer(1), now);
        }
        assert_eq!(throttle.check(peer(1), now), Err(INTERVAL));
        assert_eq!(throttle.check(peer(2), now), Ok(()), "another peer");
        assert_eq!(throttle.check(peer(1), now + INTERVAL), Ok(()), "one more");
        throttle.failed(peer(1), now + INTERVAL);
        assert_eq!(throttle.check(peer(1), now + INTERVAL), Err(INTERVAL));
        assert_eq!(throttle.check(peer(1), now + INTERVAL * (BURST + 1)), Ok(()));
    }

    #[test]
    fn the_throttle_remembers_a_bounded_number_of_peers() {
        let throttle = KeyThrottle::default();
        let now = Instant::now();
        for _ in 0..BURST {
            throttle.failed(peer(0), now);
        }
        for number in 1..3 * MAX_PEERS as u32 {
            throttle.failed(peer(number), now);
        }
        assert_eq!(throttle.clear_at.lock().unwrap().len(), MAX_PEERS);
        assert!(throttle.check(peer(0), now).is_err(), "the worst peer is kept");
    }
}
