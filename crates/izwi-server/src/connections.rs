//! The places of connections: who has one, what the connection does, and which one is closed in favour of another.
//!
//! A connection that waits for a request may be closed for a new one, so that idle connections keep nobody out. Where every
//! ordinary place serves a request, a few places remain for probes. Knows no socket and no request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::config::{PROBE_PLACES, ServerConfig};
use crate::metrics;
use crate::peer::Peer;

/// Loopback may take this multiple of another peer's places: a proxy on this machine serves many clients.
const LOOPBACK_FACTOR: usize = 4;

/// Limits of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) ordinary: usize,
    pub(crate) probes: usize,
    pub(crate) per_peer: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) keep_alive_timeout: Duration,
}

impl Limits {
    pub(crate) fn of(config: &ServerConfig) -> Self {
        Self {
            ordinary: config.connection_limit(),
            probes: PROBE_PLACES,
            per_peer: config.max_connections_per_peer,
            header_timeout: config.header_timeout,
            keep_alive_timeout: config.keep_alive_timeout,
        }
    }

    fn of_peer(&self, peer: Peer) -> usize {
        if peer.is_loopback() { self.per_peer.saturating_mul(LOOPBACK_FACTOR) } else { self.per_peer }
    }
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It waits for the head of a request: from its start, or since the first byte after a response.
    Head,
    /// It waits for the first byte of the next request.
    KeepAlive,
    /// It serves a request.
    Busy,
    /// It carries a WebSocket session, which has timeouts of its own.
    Session,
}

struct Entry {
    peer: Peer,
    is_probe: bool,
    phase: Phase,
    since: Instant,
    evicted: Arc<Notify>,
}

impl Entry {
    fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Head | Phase::KeepAlive)
    }
}

/// All open connections.
struct Table {
    limits: Limits,
    entries: HashMap<u64, Entry>,
    next: u64,
    probes: usize,
    /// Ordinary connections of each peer.
    peers: HashMap<Peer, usize>,
}

/// A granted place.
struct Granted {
    id: u64,
    is_probe: bool,
    evicted: Arc<Notify>,
}

impl Table {
    fn new(limits: Limits) -> Self {
        Self { limits, entries: HashMap::new(), next: 0, probes: 0, peers: HashMap::new() }
    }

    fn ordinary(&self) -> usize {
        self.entries.len() - self.probes
    }

    /// Grants a place: an ordinary one, if necessary that of an idle connection, or else one for probes. `None` if every
    /// place serves a request.
    fn admit(&mut self, peer: Peer, now: Instant) -> Option<Granted> {
        let of_peer = self.peers.get(&peer).copied().unwrap_or(0);
        let victim = if of_peer >= self.limits.of_peer(peer) {
            Some(self.oldest_idle(|entry| !entry.is_probe && entry.peer == peer))
        } else if self.ordinary() >= self.limits.ordinary {
            Some(self.oldest_idle(|entry| !entry.is_probe))
        } else {
            None
        };
        let is_probe = match victim {
            None => false,
            Some(Some(id)) => {
                self.evict(id);
                false
            }
            Some(None) if self.probes < self.limits.probes => true,
            Some(None) => {
                let id = self.oldest_idle(|entry| entry.is_probe)?;
                self.evict(id);
                true
            }
        };
        Some(self.insert(peer, is_probe, now))
    }

    fn insert(&mut self, peer: Peer, is_probe: bool, now: Instant) -> Granted {
        let id = self.next;
        self.next += 1;
        let evicted = Arc::new(Notify::new());
        let entry = Entry { peer, is_probe, phase: Phase::Head, since: now, evicted: Arc::clone(&evicted) };
        self.entries.insert(id, entry);
        if is_probe {
            self.probes += 1;
        } else {
            *self.peers.entry(peer).or_default() += 1;
        }
        Granted { id, is_probe, evicted }
    }

    fn oldest_idle(&self, is_candidate: impl Fn(&Entry) -> bool) -> Option<u64> {
        let idle = self.entries.iter().filter(|(_, entry)| entry.is_idle() && is_candidate(entry));
        idle.min_by_key(|(id, entry)| (entry.since, **id)).map(|(id, _)| *id)
    }

    /// Frees a place, if it is not free already.
    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if entry.is_probe {
            self.probes -= 1;
        } else if let Some(count) = self.peers.get_mut(&entry.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&entry.peer);
            }
        }
        Some(entry)
    }

    /// Frees the place of a connection and has it closed.
    fn evict(&mut self, id: u64) {
        if let Some(entry) = self.remove(id) {
            entry.evicted.notify_one();
        }
    }

    /// Closes connections whose request does not come. Returns how many.
    fn expire(&mut self, now: Instant) -> usize {
        let limits = self.limits;
        let is_overdue = |entry: &Entry| {
            let limit = match entry.phase {
                Phase::Head => limits.header_timeout,
                Phase::KeepAlive => limits.keep_alive_timeout,
                Phase::Busy | Phase::Session => return false,
            };
            now.duration_since(entry.since) >= limit
        };
        let overdue: Vec<u64> =
            self.entries.iter().filter(|(_, entry)| is_overdue(entry)).map(|(id, _)| *id).collect();
        for id in &overdue {
            self.evict(*id);
        }
        overdue.len()
    }

    fn set_phase(&mut self, id: u64, phase: Phase, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.phase, entry.since) = (phase, now);
        }
    }
}

/// The places of a server. Clones address the same places.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Mutex<Table>>);

impl Connections {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Table::new(limits))))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection of `peer`; `None` if the connection must be closed.
    pub(crate) fn admit(&self, peer: Peer) -> Option<Place> {
        let mut table = self.table();
        let before = table.entries.len();
        let granted = table.admit(peer, Instant::now());
        match &granted {
            None => metrics::count_closed_connections("refused", 1),
            Some(_) if table.entries.len() <= before => metrics::count_closed_connections("displaced", 1),
            Some(_) => {}
        }
        show(&table);
        drop(table);
        let Granted { id, is_probe, evicted } = granted?;
        Some(Place { connections: self.clone(), id, is_probe, peer, evicted })
    }

    /// Closes connections whose request does not come.
    pub(crate) fn expire(&self) {
        let mut table = self.table();
        metrics::count_closed_connections("timeout", table.expire(Instant::now()));
        show(&table);
    }

    /// Closes the connection that has waited longest for a request: the process is out of files.
    pub(crate) fn displace_oldest(&self) {
        let mut table = self.table();
        if let Some(id) = table.oldest_idle(|_| true) {
            table.evict(id);
            metrics::count_closed_connections("displaced", 1);
        }
    }
}

fn show(table: &Table) {
    metrics::set_connections("ordinary", table.ordinary());
    metrics::set_connections("probes", table.probes);
}

/// The place of one connection, until it is dropped.
pub struct Place {
    connections: Connections,
    id: u64,
    /// Whether it is kept for probes.
    pub(crate) is_probe: bool,
    /// Who has it.
    pub peer: Peer,
    evicted: Arc<Notify>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Place {
    /// Waits until another connection gets the place. Cancel-safe.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Bytes arrived.
    pub(crate) fn received(&self) {
        let mut table = self.connections.table();
        if table.entries.get(&self.id).is_some_and(|entry| entry.phase == Phase::KeepAlive) {
            table.set_phase(self.id, Phase::Head, Instant::now());
        }
    }

    /// A request begins.
    pub(crate) fn begin(&self) {
        self.set_phase(Phase::Busy);
    }

    /// The response has ended.
    pub fn end(&self) {
        self.set_phase(Phase::KeepAlive);
    }

    /// The connection becomes a session.
    pub fn upgrade(&self) {
        self.set_phase(Phase::Session);
    }

    fn set_phase(&self, phase: Phase) {
        self.connections.table().set_phase(self.id, phase, Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.remove(self.id);
        show(&table);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        ordinary: 4,
        probes: 2,
        per_peer: 3,
        header_timeout: Duration::from_secs(10),
        keep_alive_timeout: Duration::from_secs(60),
    };

    fn peer(number: u8) -> Peer {
        Peer::of([192, 0, 2, number].into())
    }

    /// Whether a place is for probes; `None` if there was none.
    fn admit(table: &mut Table, number: u8, now: Instant) -> Option<(u64, bool)> {
        table.admit(peer(number), now).map(|granted| (granted.id, granted.is_probe))
    }

    #[test]
    fn idle_connections_give_way_and_busy_ones_leave_places_for_probes() {
        let mut table = Table::new(LIMITS);
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        for id in 0..4 {
            assert_eq!(admit(&mut table, id as u8, later(id)), Some((id, false)));
        }
        // All wait for their request: the oldest goes.
        assert_eq!(admit(&mut table, 9, later(4)), Some((4, false)));
        assert!(!table.entries.contains_key(&0));
        for id in 1..=4 {
            table.set_phase(id, Phase::Busy, later(5));
        }
        assert_eq!(admit(&mut table, 9, later(6)), Some((5, true)));
        assert_eq!(admit(&mut table, 9, later(7)), Some((6, true)));
        // A probe that does not send its request gives way too.
        assert_eq!(admit(&mut table, 9, later(8)), Some((7, true)));
        assert!(!table.entries.contains_key(&5));
        table.set_phase(6, Phase::Busy, later(8));
        table.set_phase(7, Phase::Busy, later(8));
        assert_eq!(admit(&mut table, 9, later(9)), None);
        assert_eq!(table.entries.len(), 6);
        // Sessions are never closed, connections that are kept alive are.
        table.set_phase(1, Phase::Session, later(9));
        table.set_phase(2, Phase::KeepAlive, later(9));
        assert_eq!(admit(&mut table, 9, later(9)), Some((8, false)));
        assert!(!table.entries.contains_key(&2) && table.entries.contains_key(&1));
    }

    #[test]
    fn a_peer_displaces_its_own_connections_only() {
        let mut table = Table::new(LIMITS);
        let now = Instant::now();
        assert_eq!(admit(&mut table, 1, now), Some((0, false)));
        for id in 1..=3 {
            assert_eq!(admit(&mut table, 2, now), Some((id, false)));
        }
        assert_eq!(admit(&mut table, 2, now), Some((4, false)));
        assert!(table.entries.contains_key(&0) && !table.entries.contains_key(&1));
        for id in 2..=4 {
            table.set_phase(id, Phase::Busy, now);
        }
        assert_eq!(admit(&mut table, 2, now), Some((5, true)), "probes of a peer at its limit are answered");
        assert!(table.entries.contains_key(&0));
        // Loopback has more places.
        let mut table = Table::new(Limits { ordinary: 100, ..LIMITS });
        let loopback = Peer::of([127, 0, 0, 1].into());
        for _ in 0..LIMITS.per_peer * LOOPBACK_FACTOR + 1 {
            let granted = table.admit(loopback, now).unwrap();
            table.set_phase(granted.id, Phase::Busy, now);
        }
        assert_eq!((table.ordinary(), table.probes), (LIMITS.per_peer * LOOPBACK_FACTOR, 1));
    }

    #[test]
    fn heads_and_kept_connections_have_timeouts() {
        let mut table = Table::new(LIMITS);
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        for id in 0..3 {
            admit(&mut table, id, now);
        }
        table.set_phase(1, Phase::KeepAlive, now);
        table.set_phase(2, Phase::Busy, now);
        assert_eq!(table.expire(later(9)), 0);
        assert_eq!(table.expire(later(10)), 1, "the head");
        assert_eq!(table.expire(later(59)), 0);
        assert_eq!(table.expire(later(60)), 1, "the kept connection");
        assert_eq!(table.expire(later(86_400)), 0, "a request has timeouts of its own");
    }

    proptest! {
        #[test]
        fn limits_hold_and_counts_agree(steps in prop::collection::vec((0u8..4, 0u8..5, 0u64..12), 1..200)) {
            let mut table = Table::new(LIMITS);
            let mut now = Instant::now();
            for (action, number, id) in steps {
                now += Duration::from_millis(500);
                match action {
                    0 | 1 => drop(table.admit(peer(number), now)),
                    2 => drop(table.remove(id)),
                    _ => {
                        let phases = [Phase::Head, Phase::KeepAlive, Phase::Busy, Phase::Session];
                        table.set_phase(id, phases[usize::from(number) % phases.len()], now);
                    }
                }
                let ordinary = table.entries.values().filter(|entry| !entry.is_probe);
                prop_assert_eq!(ordinary.clone().count(), table.ordinary());
                prop_assert!(table.ordinary() <= LIMITS.ordinary && table.probes <= LIMITS.probes);
                for (peer, count) in &table.peers {
                    prop_assert_eq!(ordinary.clone().filter(|entry| entry.peer == *peer).count(), *count);
                    prop_assert!((1..=LIMITS.per_peer).contains(count));
                }
            }
        }
    }
}
