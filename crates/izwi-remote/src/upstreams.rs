//! The servers of one model: which is asked next, and which is not asked after its failures.
//!
//! It counts requests and failures. It knows no protocol.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use izwi_core::engine::{UpstreamStatus, metrics};
use reqwest::Url;
use tokio::time::Instant;

/// How soon a server is asked about again while one request tries it.
const TRIED: Duration = Duration::from_secs(1);

/// The servers of one model.
#[derive(Debug)]
pub(crate) struct Upstreams {
    model: String,
    urls: Vec<Url>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    servers: Vec<Server>,
    /// Where the search among equals begins.
    turn: usize,
}

#[derive(Debug)]
struct Server {
    outstanding: usize,
    breaker: Breaker,
}

/// Stops asking a server after failures in a row. After a pause one request tries it.
#[derive(Debug, Clone)]
struct Breaker {
    limit: u32,
    pause: Duration,
    failures: u32,
    circuit: Circuit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Circuit {
    Closed,
    Open { until: Instant },
    HalfOpen,
}

impl Breaker {
    /// When the server may be asked.
    fn admits_at(&self, now: Instant) -> Instant {
        match self.circuit {
            Circuit::Closed => now,
            Circuit::Open { until } => until.max(now),
            Circuit::HalfOpen => now + TRIED,
        }
    }

    fn begin(&mut self) {
        if let Circuit::Open { .. } = self.circuit {
            self.circuit = Circuit::HalfOpen;
        }
    }

    /// An answer began. One that is cut opens the circuit again.
    fn answered(&mut self) {
        if self.circuit != Circuit::Closed {
            self.circuit = Circuit::Closed;
            self.failures = self.limit - 1;
        }
    }

    fn succeeded(&mut self) {
        self.circuit = Circuit::Closed;
        self.failures = 0;
    }

    fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.circuit == Circuit::HalfOpen || self.failures >= self.limit {
            self.circuit = Circuit::Open { until: now + self.pause };
        }
    }

    /// Nothing is known of the request: another may try the server.
    fn abandoned(&mut self, now: Instant) {
        if self.circuit == Circuit::HalfOpen {
            self.circuit = Circuit::Open { until: now };
        }
    }
}

/// How a request to a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It answered whole.
    Answered,
    /// It refused the request, which says nothing against it.
    Refused,
    /// It has no place for the request.
    Busy,
    /// It failed before the first byte.
    Failed,
    /// It failed within its answer.
    Cut,
    /// The client left.
    Abandoned,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::Cut => "cut",
            Self::Abandoned => "abandoned",
        }
    }
}

impl Upstreams {
    pub(crate) fn new(model: &str, urls: Vec<Url>, failures: u32, pause: Duration) -> Self {
        let breaker = Breaker { limit: failures, pause, failures: 0, circuit: Circuit::Closed };
        let server = || Server { outstanding: 0, breaker: breaker.clone() };
        let servers: Vec<Server> = urls.iter().map(|_| server()).collect();
        let all = Self { model: model.to_owned(), urls, state: Mutex::new(State { servers, turn: 0 }) };
        for index in 0..all.urls.len() {
            all.publish(index, &all.lock());
        }
        all
    }

    /// Begins a request at the server with the fewest open ones, of those that may be asked and are not in `tried`.
    ///
    /// # Errors
    /// There is none; the time until one may be asked.
    pub(crate) fn pick(self: &Arc<Self>, tried: &[usize]) -> Result<Attempt, Duration> {
        let now = Instant::now();
        let mut state = self.lock();
        let count = state.servers.len();
        let order =
            (0..count).map(|offset| (state.turn + offset) % count).filter(|index| !tried.contains(index));
        let order: Vec<usize> = order.collect();
        let admitted = |index: &&usize| state.servers[**index].breaker.admits_at(now) <= now;
        let Some(&index) =
            order.iter().filter(admitted).min_by_key(|index| state.servers[**index].outstanding)
        else {
            let waits = state.servers.iter().map(|server| server.breaker.admits_at(now) - now);
            return Err(waits.min().unwrap_or(TRIED));
        };
        state.turn = index + 1;
        state.servers[index].breaker.begin();
        state.servers[index].outstanding += 1;
        self.publish(index, &state);
        Ok(Attempt { upstreams: Arc::clone(self), index, outcome: Outcome::Abandoned })
    }

    /// Whether a server may be asked that is not in `tried`.
    pub(crate) fn has_other(&self, tried: &[usize]) -> bool {
        let now = Instant::now();
        let state = self.lock();
        let admits = |(index, server): (usize, &Server)| {
            !tried.contains(&index) && server.breaker.admits_at(now) <= now
        };
        state.servers.iter().enumerate().any(admits)
    }

    /// The servers and their state.
    pub(crate) fn statuses(&self) -> Vec<UpstreamStatus> {
        let state = self.lock();
        let status = |(url, server): (&Url, &Server)| UpstreamStatus {
            url: url.to_string(),
            circuit: match server.breaker.circuit {
                Circuit::Closed => "closed",
                Circuit::Open { .. } => "open",
                Circuit::HalfOpen => "half_open",
            },
            outstanding: server.outstanding,
            failures: server.breaker.failures,
        };
        self.urls.iter().zip(&state.servers).map(status).collect()
    }

    pub(crate) fn urls(&self) -> &[Url] {
        &self.urls
    }

    fn publish(&self, index: usize, state: &State) {
        let server = &state.servers[index];
        let is_closed = server.breaker.circuit == Circuit::Closed;
        // By number: anybody may read the metrics, and an address is the operator's.
        metrics::set_upstream(&self.model, index, server.outstanding, is_closed);
    }

    /// Ignores poisoning: every statement leaves the state consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request at one server. Dropped without an outcome it counts as abandoned.
#[derive(Debug)]
pub(crate) struct Attempt {
    upstreams: Arc<Upstreams>,
    pub(crate) index: usize,
    outcome: Outcome,
}

impl Attempt {
    pub(crate) fn url(&self) -> &Url {
        &self.upstreams.urls[self.index]
    }

    /// The first byte arrived.
    pub(crate) fn answered(&mut self) {
        let mut state = self.upstreams.lock();
        state.servers[self.index].breaker.answered();
        self.upstreams.publish(self.index, &state);
    }

    /// Ends the request.
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.upstreams.lock();
        let server = &mut state.servers[self.index];
        server.outstanding = server.outstanding.saturating_sub(1);
        match self.outcome {
            Outcome::Answered | Outcome::Refused => server.breaker.succeeded(),
            Outcome::Failed | Outcome::Cut => server.breaker.failed(now),
            Outcome::Busy | Outcome::Abandoned => server.breaker.abandoned(now),
        }
        self.upstreams.publish(self.index, &state);
        metrics::count_upstream_request(&self.upstreams.model, self.index, self.outcome.label());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);

    fn servers(count: usize) -> Arc<Upstreams> {
        let url = |index| Url::parse(&format!("http://s{index}/v1")).unwrap();
        Arc::new(Upstreams::new("far", (0..count).map(url).collect(), 3, PAUSE))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_goes_to_the_server_with_the_fewest_open_ones() {
        let all = servers(3);
        let first: Vec<Attempt> = (0..3).map(|_| all.pick(&[]).unwrap()).collect();
        assert_eq!(first.iter().map(|attempt| attempt.index).collect::<Vec<_>>(), [0, 1, 2]);
        let mut first = first.into_iter();
        let (_a, b, _c) = (first.next(), first.next(), first.next());
        drop(b);
        assert_eq!(all.pick(&[]).unwrap().index, 1);
        assert_eq!(all.pick(&[1]).unwrap().index, 2, "another than the one that was tried");
        assert_eq!(all.statuses().iter().map(|one| one.outstanding).collect::<Vec<_>>(), [1, 0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_rests_and_one_request_tries_it() {
        let all = servers(1);
        for _ in 0..3 {
            all.pick(&[]).unwrap().end(Outcome::Failed);
        }
        assert_eq!(all.statuses()[0].circuit, "open");
        assert_eq!(all.pick(&[]).unwrap_err(), PAUSE);
        tokio::time::advance(PAUSE).await;
        let probe = all.pick(&[]).unwrap();
        assert_eq!((all.statuses()[0].circuit, all.pick(&[]).unwrap_err()), ("half_open", TRIED));
        drop(probe);
        let probe = all.pick(&[]).unwrap();
        probe.end(Outcome::Failed);
        assert_eq!(all.pick(&[]).unwrap_err(), PAUSE, "one failure is enough now");
        tokio::time::advance(PAUSE).await;
        let mut probe = all.pick(&[]).unwrap();
        probe.answered();
        assert_eq!(all.statuses()[0].circuit, "closed", "others need not wait for the end of the answer");
        probe.end(Outcome::Cut);
        assert_eq!(all.statuses()[0].circuit, "open", "the answer was cut");
        tokio::time::advance(PAUSE).await;
        all.pick(&[]).unwrap().end(Outcome::Answered);
        assert_eq!((all.statuses()[0].circuit, all.statuses()[0].failures), ("closed", 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_or_a_full_server_is_no_failure() {
        let all = servers(1);
        for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Busy, Outcome::Abandoned, Outcome::Refused]
        {
            all.pick(&[]).unwrap().end(outcome);
        }
        assert_eq!((all.statuses()[0].circuit, all.statuses()[0].failures), ("closed", 0));
    }
}
