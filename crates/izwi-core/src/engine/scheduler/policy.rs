//! Scheduling policies: in which order sequences get blocks, admission and places in a step.
//!
//! A policy is one `impl Policy` and one line of the table below. Must not know blocks or budgets.

use super::DUE_SOON_US;
use super::sequence::Sequence;
use crate::engine::types;

/// A scheduling policy. Among equally urgent sequences the request's priority decides, then arrival.
trait Policy {
    /// Urgency at `now_us`: sequences with smaller values are admitted and get blocks first; those with larger values are
    /// preempted first.
    fn urgency(&self, sequence: &Sequence, now_us: u64) -> u64;

    /// Decodes with smaller keys get a place in a step first; among equals, the one that waited longest. Streams whose
    /// playback ends before `soon_us` are due.
    fn decode_rank(&self, sequence: &Sequence, soon_us: u64) -> (u64, u64);

    /// Whether the waiting sequence may preempt the running one to be admitted.
    fn displaces(&self, waiting: &Sequence, running: &Sequence) -> bool;
}

macro_rules! policies {
    ($($(#[$attribute:meta])* $name:ident = $label:literal,)+) => {
        /// The order in which sequences are scheduled.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum SchedulingPolicy {
            $($(#[$attribute])* $name,)+
        }

        impl SchedulingPolicy {
            /// All policies.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
            /// Their names in settings.
            pub const LABELS: &'static [&'static str] = &[$($label),+];

            /// The name in settings.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }

            fn policy(self) -> &'static dyn Policy {
                match self {
                    $(Self::$name => &$name,)+
                }
            }
        }

        $(struct $name;)+
    };
}

policies! {
    /// Of one priority, first come, first served; running sequences take turns.
    #[default]
    Fcfs = "fcfs",
    /// As `fcfs`, and a higher priority goes first in every step and preempts a lower one to be admitted.
    Priority = "priority",
    /// The stream whose audio runs out first.
    Deadline = "deadline",
}

impl Policy for Fcfs {
    fn urgency(&self, _sequence: &Sequence, _now_us: u64) -> u64 {
        0
    }

    fn decode_rank(&self, sequence: &Sequence, soon_us: u64) -> (u64, u64) {
        (0, not_due(sequence, soon_us))
    }

    fn displaces(&self, _waiting: &Sequence, _running: &Sequence) -> bool {
        false
    }
}

impl Policy for Priority {
    fn urgency(&self, _sequence: &Sequence, _now_us: u64) -> u64 {
        0
    }

    fn decode_rank(&self, sequence: &Sequence, soon_us: u64) -> (u64, u64) {
        (priority_rank(sequence), not_due(sequence, soon_us))
    }

    fn displaces(&self, waiting: &Sequence, running: &Sequence) -> bool {
        running.priority < waiting.priority
    }
}

// example: policy
impl Policy for Deadline {
    fn urgency(&self, sequence: &Sequence, now_us: u64) -> u64 {
        // In steps, so that streams with nearly the same deadline are equally urgent. All that are late are.
        sequence.due_us.saturating_sub(now_us) / DUE_SOON_US
    }

    fn decode_rank(&self, sequence: &Sequence, _soon_us: u64) -> (u64, u64) {
        (0, sequence.due_us)
    }

    fn displaces(&self, _waiting: &Sequence, _running: &Sequence) -> bool {
        false
    }
}
// end of example

/// 0 for the highest priority.
fn priority_rank(sequence: &Sequence) -> u64 {
    types::Priority::High as u64 - sequence.priority as u64
}

/// 0 for streams that are due, 1 for those with enough audio ahead.
fn not_due(sequence: &Sequence, soon_us: u64) -> u64 {
    u64::from(!sequence.is_due(soon_us))
}

/// Sort key of admission and block reservation.
pub(super) type Rank = (bool, u64, u64, u64);
/// Sort key of decodes.
pub(super) type DecodeRank = (bool, u64, u64, u64, u64);

impl SchedulingPolicy {
    pub(super) fn rank(self, sequence: &Sequence, now_us: u64) -> Rank {
        let urgency = self.policy().urgency(sequence, now_us);
        (!sequence.live, urgency, priority_rank(sequence), sequence.arrival)
    }

    pub(super) fn decode_rank(self, sequence: &Sequence, soon_us: u64) -> DecodeRank {
        let (first, second) = self.policy().decode_rank(sequence, soon_us);
        (!sequence.live, first, second, sequence.last_scheduled, sequence.arrival)
    }

    pub(super) fn displaces(self, waiting: &Sequence, running: &Sequence) -> bool {
        (waiting.live && !running.live) || self.policy().displaces(waiting, running)
    }
}

impl std::str::FromStr for SchedulingPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|policy| policy.label() == text);
        found.copied().ok_or_else(|| {
            format!("scheduling policy '{text}' is unknown; use one of {}", Self::LABELS.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_parse_back() {
        for policy in SchedulingPolicy::ALL {
            assert_eq!(policy.label().parse(), Ok(*policy));
        }
        let error = "fifo".parse::<SchedulingPolicy>().unwrap_err();
        assert!(error.contains("'fifo'") && error.contains("fcfs, priority, deadline"), "{error}");
    }
}
