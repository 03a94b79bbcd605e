//! The balancer: which node an utterance goes to.
//!
//! Must not know listeners.

use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum;
use serde::Serialize;

use super::node::Node;
use crate::random::Random;

/// How a node is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The one with fewer streams of two.
    TwoChoices,
    /// The one with the fewest streams.
    LeastStreams,
    /// The one that would accept and had the fewest streams when the nodes were read last, as a scraper reads metrics.
    Scraped,
    /// A listener stays with the first node, as a WebSocket session does.
    Sessions,
}

impl Policy {
    /// Whether the plan takes all nodes as one pool of places.
    pub(crate) fn pools(self) -> bool {
        matches!(self, Self::LeastStreams | Self::TwoChoices)
    }
}

/// The balancer.
#[derive(Debug)]
pub(crate) struct Balancer {
    nodes: Arc<[Arc<Node>]>,
    policy: Policy,
    state: Mutex<(Random, usize)>,
}

impl Balancer {
    /// A balancer of these nodes.
    pub(crate) fn new(nodes: Arc<[Arc<Node>]>, policy: Policy, seed: u64) -> Self {
        Self { nodes, policy, state: Mutex::new((Random::new(seed, 41), 0)) }
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Reads the state of all nodes.
    pub(crate) fn read(&self) {
        if self.policy == Policy::Scraped {
            self.nodes.iter().for_each(|node| node.read());
        }
    }

    /// The node for an utterance of a listener whose last node was `last`, which is not chosen again if it is dead, nor are
    /// those that were `tried`; `None` if no other node takes streams.
    pub(crate) fn choose(&self, last: Option<&Arc<Node>>, tried: &[Arc<Node>]) -> Option<Arc<Node>> {
        let is_open = |node: &Arc<Node>| {
            let is = |other: &Arc<Node>| Arc::ptr_eq(other, node);
            node.takes_streams()
                && last.is_none_or(|last| !(last.is_killed() && is(last)))
                && !tried.iter().any(is)
        };
        let stays = last.filter(|node| self.policy == Policy::Sessions && is_open(node));
        if let Some(node) = stays {
            return Some(Arc::clone(node));
        }
        let open: Vec<&Arc<Node>> = self.nodes.iter().filter(|node| is_open(node)).collect();
        if open.is_empty() {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (random, turn) = &mut *state;
        *turn += 1;
        let any = |random: &mut Random| (random.next() % open.len() as u64) as usize;
        let chosen = match self.policy {
            Policy::RoundRobin => *turn % open.len(),
            Policy::Random | Policy::Sessions => any(random),
            Policy::TwoChoices => {
                let (one, other) = (any(random), any(random));
                if open[other].streams() < open[one].streams() { other } else { one }
            }
            Policy::LeastStreams => least(&open, any(random), |node| (false, node.streams())),
            Policy::Scraped => least(&open, any(random), |node| node.was()),
        };
        Some(Arc::clone(open[chosen]))
    }
}

/// The index of the least node; the first from `from` on among equals.
fn least<K: Ord>(nodes: &[&Arc<Node>], from: usize, key: impl Fn(&Node) -> K) -> usize {
    let order = (0..nodes.len()).map(|offset| (from + offset) % nodes.len());
    order.min_by_key(|index| key(nodes[*index])).unwrap_or(from)
}
