//! Erlang's formulas: how often all of a number of places are taken.
//!
//! Must not know machines.

/// The share of arrivals that find all `places` taken and leave, if arrivals are independent and `offered` places would be taken
/// on average. 1 without places.
pub fn erlang_b(places: usize, offered: f64) -> f64 {
    (1..=places).fold(1.0, |blocked, place| offered * blocked / (place as f64 + offered * blocked))
}

/// The share of arrivals that find all `places` taken, if they wait. 1 where more is offered than places can take.
pub fn erlang_c(places: usize, offered: f64) -> f64 {
    waiting(places as f64, offered, erlang_b(places, offered))
}

/// The share that waits, where `blocked` would be refused.
fn waiting(places: f64, offered: f64, blocked: f64) -> f64 {
    if offered >= places { 1.0 } else { blocked / (1.0 - offered / places * (1.0 - blocked)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn published_tables_are_met() {
        // Offered traffic for a blocking of 1 %, 0.1 % and 5 %, of tables of Erlang's B formula.
        for (places, blocked, offered) in [
            (1, 0.01, 0.0101),
            (5, 0.01, 1.36),
            (10, 0.01, 4.46),
            (10, 0.001, 3.09),
            (20, 0.01, 12.03),
            (50, 0.001, 32.51),
            (100, 0.01, 84.06),
            (10, 0.05, 6.22),
        ] {
            let found = erlang_b(places, offered);
            assert!((found / blocked - 1.0).abs() < 0.02, "{places} places, {offered} Erlang: {found}");
        }
        // 10 agents and 8 Erlang: 40.9 % of the calls wait.
        assert!((erlang_c(10, 8.0) - 0.409).abs() < 0.001, "{}", erlang_c(10, 8.0));
        assert!((erlang_c(1, 0.5) - 0.5).abs() < 1e-9);
        assert_eq!((erlang_b(0, 2.0), erlang_c(2, 2.5), erlang_b(3, 0.0)), (1.0, 1.0, 0.0));
    }

    proptest! {
        #[test]
        fn more_places_and_less_traffic_never_block_more(places in 1usize..400, offered in 0.01..400f64) {
            let (b, c) = (erlang_b(places, offered), erlang_c(places, offered));
            prop_assert!((0.0..=1.0).contains(&b) && (b..=1.0).contains(&c));
            prop_assert!(erlang_b(places + 1, offered) <= b && erlang_c(places + 1, offered) <= c);
            prop_assert!(erlang_b(places, 1.1 * offered) >= b && erlang_c(places, 1.1 * offered) >= c);
        }
    }
}
