//! Tickets: short-lived secrets that open one WebSocket each, for browsers, which cannot send the key in a header. Knows no
//! route.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::key::{digest, random_digits};

/// How long a ticket is valid.
pub(crate) const LIFETIME: Duration = Duration::from_secs(60);
/// The most valid tickets.
const MAX_TICKETS: usize = 1_024;

/// The valid tickets: their digests, so that the time of a look-up tells nothing about a ticket, and when each ends.
#[derive(Default)]
pub(crate) struct Tickets(Mutex<HashMap<[u8; 32], Instant>>);

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

impl Tickets {
    /// A new ticket; `None` if too many are valid.
    pub(crate) fn issue(&self, now: Instant) -> Option<String> {
        let mut valid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        valid.retain(|_, until| *until > now);
        if valid.len() >= MAX_TICKETS {
            return None;
        }
        let ticket = random_digits();
        valid.insert(digest(ticket.as_bytes()), now + LIFETIME);
        Some(ticket)
    }

    /// Whether a ticket is valid. It is not from then on.
    pub(crate) fn redeem(&self, ticket: &str, now: Instant) -> bool {
        let mut valid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        valid.remove(&digest(ticket.as_bytes())).is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_valid_once_and_for_a_minute() {
        let tickets = Tickets::default();
        let now = Instant::now();
        let [one, other] = [(); 2].map(|()| tickets.issue(now).unwrap());
        assert!(one != other && one.len() == 64);
        assert!(!tickets.redeem("", now) && !tickets.redeem(&one[1..], now));
        assert!(tickets.redeem(&one, now));
        assert!(!tickets.redeem(&one, now), "used");
        assert!(!tickets.redeem(&other, now + LIFETIME), "expired");
        assert!(!tickets.redeem(&other, now), "tried");
    }

    #[test]
    fn a_limited_number_of_tickets_is_valid() {
        let tickets = Tickets::default();
        let now = Instant::now();
        assert!((0..MAX_TICKETS).all(|_| tickets.issue(now).is_some()));
        assert_eq!(tickets.issue(now), None);
        assert!(tickets.issue(now + LIFETIME).is_some(), "expired ones make room");
        assert_eq!(tickets.0.lock().unwrap().len(), 1);
    }
}
