//! How many equal machines a number of listeners needs.
//!
//! Must not know what a stream costs.

use super::queue::{erlang_b, erlang_c};

/// The most machines that are counted.
const MAX_MACHINES: usize = 1 << 20;

/// What listeners ask for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Listeners at the busiest time.
    pub listeners: f64,
    /// Share of the time in which a listener hears speech.
    pub duty: f64,
    /// Utterances that begin together; 1 where listeners are independent.
    pub burst: f64,
    /// The largest share of utterances that is refused.
    pub refused: f64,
    /// The largest share of utterances that waits until another one has ended.
    pub waiting: f64,
    /// Share of the places that stays free.
    pub headroom: f64,
    /// Machines beyond those needed.
    pub spare: usize,
}

/// How utterances come to machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Each to the machine with the fewest streams: the places of all machines are one pool.
    LeastStreams,
    /// To any machine, or to that of the listener's session: each machine has its own places.
    Separate,
}

/// The machines that a demand needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Need {
    /// Machines, spare ones included.
    pub machines: usize,
    /// Share of utterances that is refused while the spare machines are down, if none waits.
    pub refused: f64,
    /// Share that waits then.
    pub waiting: f64,
    /// Streams of one machine on average while all machines are up.
    pub streams: f64,
}

/// More machines are needed than are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

impl Demand {
    /// Streams that play at once on average.
    pub fn streams(&self) -> f64 {
        self.listeners * self.duty
    }

    /// The least number of machines with `places` streams each that keeps the demand.
    ///
    /// # Errors
    /// More than a million machines are needed.
    pub fn machines(&self, places: usize, routing: Routing) -> Result<Need, TooMany> {
        let keeps = |machines: usize| {
            let (refused, waiting) = self.shares(machines, places, routing);
            refused <= self.refused && waiting <= self.waiting
        };
        let mut high = 1;
        while !keeps(high) {
            high *= 2;
            if high > MAX_MACHINES {
                return Err(TooMany);
            }
        }
        let mut low = high / 2;
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            if keeps(middle) { high = middle } else { low = middle }
        }
        let (refused, waiting) = self.shares(high, places, routing);
        let machines = high + self.spare;
        Ok(Need { machines, refused, waiting, streams: self.streams() / machines as f64 })
    }

    /// The shares of utterances that are refused, if none waits, and that wait, on so many machines.
    pub fn shares(&self, machines: usize, places: usize, routing: Routing) -> (f64, f64) {
        let (pools, machines) = match routing {
            Routing::LeastStreams => (1.0, machines),
            Routing::Separate => (machines as f64, 1),
        };
        // Hayward: bursts are like fewer places of which each takes several streams.
        let peakedness = 0.5 * (self.burst.max(1.0) + 1.0);
        let all = (1.0 - self.headroom) * (machines * places) as f64;
        if pools <= 1.0 && all >= self.listeners {
            return (0.0, 0.0);
        }
        let (places, offered) = ((all / peakedness).floor() as usize, self.streams() / pools / peakedness);
        (erlang_b(places, offered), erlang_c(places, offered))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(listeners: f64) -> Demand {
        Demand { listeners, duty: 0.2, burst: 1.0, refused: 0.001, waiting: 0.01, headroom: 0.0, spare: 0 }
    }

    #[test]
    fn a_pool_needs_what_erlang_says_and_separate_machines_more() {
        // 32.51 Erlang block 0.1 % of 50 places; 0.3 % would wait.
        let demand = demand(32.5 / 0.2);
        let pool = demand.machines(10, Routing::LeastStreams).unwrap();
        assert_eq!(pool.machines, 5);
        assert!(pool.refused <= 0.001 && pool.waiting <= 0.01, "{pool:?}");
        let separate = demand.machines(10, Routing::Separate).unwrap();
        // 3.09 Erlang block 0.1 % of 10 places.
        assert_eq!(separate.machines, 11);
    }

    #[test]
    fn a_place_for_each_listener_refuses_none() {
        let need = demand(3.0).machines(4, Routing::LeastStreams).unwrap();
        assert_eq!((need.machines, need.refused, need.waiting), (1, 0.0, 0.0));
        assert_eq!(Demand { refused: 0.0, ..demand(1e12) }.machines(1, Routing::Separate), Err(TooMany));
    }

    proptest! {
        #[test]
        fn more_demand_never_needs_fewer_machines(
            listeners in 1.0..50_000f64,
            more in 1.0..2f64,
            burst in 1.0..20f64,
            places in 1usize..100,
            routing in prop_oneof![Just(Routing::LeastStreams), Just(Routing::Separate)],
        ) {
            let demand = demand(listeners);
            let machines = |demand: Demand, places: usize| {
                demand.machines(places, routing).map_or(usize::MAX, |need| need.machines)
            };
            let few = machines(demand, places);
            prop_assert!(few < usize::MAX || places == 1);
            let more_of_them = [
                Demand { listeners: more * listeners, ..demand },
                Demand { burst, ..demand },
                Demand { headroom: 0.2, ..demand },
                Demand { refused: 0.000_1, ..demand },
            ];
            for demand in more_of_them {
                let many = machines(demand, places);
                prop_assert!(many >= few, "{:?}: {} and not {}", demand, many, few);
            }
            let spare = Demand { spare: 2, ..demand };
            prop_assert_eq!(machines(spare, places), few.saturating_add(2));
            prop_assert!(machines(demand, places + 1) <= few);
        }
    }
}
