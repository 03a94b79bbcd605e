//! The time of a step: what may run alongside the streams that play, so that none of them runs out of audio.
//!
//! Must not know queues or blocks.

use std::sync::Arc;

use super::arbiter::{MAX_LATE, is_forced};
use super::cost::{CostModel, StepShape, safety};
use super::playback::Deadline;

/// The fewest tokens of a prompt that are worth a piece, and that a step without other work computes.
const MIN_PIECE: usize = 16;

/// What limits the time of the next step, alongside the engine's own streams.
#[derive(Debug, Clone)]
pub struct StepLimits {
    /// Time of steps, of which some is known.
    pub costs: Arc<CostModel>,
    /// Seconds that playing streams must stay ahead of their players.
    pub reserve_s: f64,
    /// Seconds of the device that are owed to bulk work.
    pub bulk_credit_s: f64,
    /// The deadlines of the live streams of other engines on the device.
    pub(in crate::engine) others: Vec<Deadline>,
    /// Share of the device that they use.
    pub others_share: f64,
    /// The longest part of a step with a prompt or an encoder for which it keeps the device, 1 for all of it.
    pub longest_piece: f64,
    /// Seconds of a piece of theirs that waits until all streams are ahead enough for it.
    pub others_piece_s: f64,
}

impl StepLimits {
    /// Time of a step of these streams on the share of the device that other engines leave.
    fn step_s(&self, playing: &[Playing]) -> f64 {
        self.step_with_s(playing, StepShape::default())
    }

    /// As above, with more work.
    fn step_with_s(&self, playing: &[Playing], more: StepShape) -> f64 {
        self.costs.seconds(sum(playing).plus(more)) / (1.0 - self.others_share).max(0.1)
    }
}

/// How urgent a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Class {
    /// A live stream that plays.
    Playing,
    /// A live stream without audio that is late.
    Late,
    /// A live stream without audio.
    Starting,
    /// Work that nobody listens to.
    Bulk,
}

/// A stream that plays, as a step sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) struct Playing {
    /// Seconds until it runs out of audio.
    pub(in crate::engine) left_s: f64,
    /// Steps until its next chunk leaves.
    pub(in crate::engine) steps: f64,
    /// Work of its next step.
    pub(in crate::engine) shape: StepShape,
}

/// What a step may still take.
#[derive(Debug, Clone)]
pub(in crate::engine) struct TimeBudget<'a> {
    costs: &'a CostModel,
    /// The longest time of a step over its predicted time.
    margin: f64,
    /// Work of the step so far.
    shape: StepShape,
    /// Longest time of the step, in seconds.
    limit_s: f64,
    /// Seconds less for streams that start.
    piece_s: f64,
    /// Seconds less for bulk work, beyond those.
    reserve_s: f64,
    /// Seconds owed to bulk work.
    credit_s: f64,
    /// Whether a live stream waits for its first audio.
    has_starting: bool,
    /// Whether it has bulk work for which streams that play wait.
    pays_all: bool,
    /// The longest time of bulk work that was left out, in seconds.
    bulk_left_s: f64,
}

impl<'a> TimeBudget<'a> {
    /// A step alongside streams that play, the most urgent first, and how many of them take part: all, or fewer if a step of
    /// all is too long for one of them. Steps after it have `joining` streams more.
    pub(in crate::engine) fn beside(
        limits: &'a StepLimits,
        playing: &[Playing],
        joining: usize,
        places: usize,
    ) -> (Self, usize) {
        let (costs, reserve_s, piece_s) = (&*limits.costs, limits.reserve_s, limits.others_piece_s);
        let margin = safety(costs);
        let time = |count: usize| limits.step_s(&playing[..count]);
        let most = playing.len().min(places);
        let taken = (1..=most).rev().find(|count| keeps_all(playing, *count, time(*count), time(most)));
        // If nothing keeps all of them, most audio comes of the largest step.
        let taken = taken.unwrap_or(most);
        // Those beyond the places take turns.
        let later = playing.len() + joining;
        let turns = later as f64 / later.min(places).max(1) as f64;
        let joined = StepShape::decode(later.min(places).saturating_sub(most));
        let all_s = limits.step_with_s(&playing[..most], joined) * turns.max(1.0);
        let limits = playing.iter().enumerate().map(|(index, stream)| {
            let steps_after = if index < taken { stream.steps - 1.0 } else { stream.steps };
            let later_s = steps_after * all_s;
            stream.left_s - margin * later_s
        });
        let limit_s = limits.fold(f64::INFINITY, f64::min);
        let shape = sum(&playing[..taken]);
        let (credit_s, bulk_left_s) = (0.0, 0.0);
        let (has_starting, pays_all) = (false, false);
        let budget = Self {
            costs,
            margin,
            shape,
            limit_s,
            piece_s,
            reserve_s,
            credit_s,
            has_starting,
            pays_all,
            bulk_left_s,
        };
        (budget, taken)
    }

    /// Limits the step to `limit_s` seconds also.
    pub(in crate::engine) fn limit(&mut self, limit_s: f64) {
        self.limit_s = self.limit_s.min(limit_s);
    }

    /// Sets the seconds owed to bulk work, and whether a live stream waits for its first audio.
    pub(in crate::engine) fn set_demand(&mut self, credit_s: f64, has_starting: bool) {
        (self.credit_s, self.has_starting) = (credit_s, has_starting);
    }

    /// Whether it has bulk work for which streams that play wait: bulk work is owed nothing more then.
    pub(in crate::engine) fn pays_all(&self) -> bool {
        self.pays_all
    }

    /// The longest time of bulk work that was left out, in seconds.
    pub(in crate::engine) fn bulk_left_s(&self) -> f64 {
        self.bulk_left_s
    }

    /// Whether the work may be added, which it is then.
    pub(in crate::engine) fn take(&mut self, class: Class, work: StepShape) -> bool {
        let after = self.shape.plus(work);
        let (after_s, before_s) = (self.costs.seconds(after), self.costs.seconds(self.shape));
        let extra_s = after_s - if self.is_empty() { 0.0 } else { before_s };
        let reserve_s = self.reserve_s(class);
        let fits = self.margin * after_s <= self.limit_s - reserve_s || self.is_empty();
        let may = match class {
            Class::Playing | Class::Late => true,
            Class::Starting => fits,
            Class::Bulk if self.limit_s.is_infinite() && !self.has_starting => true,
            Class::Bulk => {
                let is_owed = self.credit_s > 0.0 && self.credit_s >= extra_s;
                let may = fits && (!self.has_starting || is_owed);
                let is_forced = !may && is_forced(self.credit_s, extra_s);
                if is_forced {
                    (self.credit_s, self.pays_all) = (0.0, true);
                } else if may && self.has_starting {
                    self.credit_s -= extra_s;
                } else if !may {
                    self.bulk_left_s = self.bulk_left_s.max(extra_s);
                }
                may || is_forced
            }
        };
        if may {
            self.shape = after;
        }
        may
    }

    /// How many of `wanted` tokens of a prompt fit, alongside the rest of their item's work.
    pub(in crate::engine) fn tokens(&self, class: Class, wanted: usize, rest: StepShape) -> usize {
        let reserve_s = self.reserve_s(class);
        let of = |tokens: usize| StepShape { prefill_tokens: rest.prefill_tokens + tokens, ..rest };
        let base_s = self.costs.seconds(self.shape.plus(of(0)));
        let token_s = (self.costs.seconds(self.shape.plus(of(1_000))) - base_s) / 1_000.0;
        let fitting = ((self.limit_s - reserve_s) / self.margin - base_s) / token_s;
        // All of them if their time is unknown, or has no limit.
        let fitting = if fitting.is_nan() { wanted } else { (fitting.max(0.0) as usize).min(wanted) };
        match fitting {
            _ if self.is_empty() || class == Class::Late => fitting.max(MIN_PIECE.min(wanted)),
            few if few < MIN_PIECE.min(wanted) => 0,
            enough => enough,
        }
    }

    /// Seconds that work of a class leaves.
    fn reserve_s(&self, class: Class) -> f64 {
        match class {
            Class::Playing | Class::Late => 0.0,
            Class::Starting => self.piece_s,
            Class::Bulk => self.piece_s + self.reserve_s,
        }
    }

    fn is_empty(&self) -> bool {
        self.shape == StepShape::default()
    }
}

/// Whether a stream whose first audio was promised at `promised_us` is so late that it starts at any time.
pub(in crate::engine) fn is_late(promised_us: u64, now_us: u64) -> bool {
    now_us >= promised_us + MAX_LATE.as_micros() as u64
}

/// Whether all streams stay ahead of their players, if the first `count` of them have steps of `step_s` until their chunks
/// leave, and then all have steps of `all_s`.
fn keeps_all(playing: &[Playing], count: usize, step_s: f64, all_s: f64) -> bool {
    let (taken, waiting) = playing.split_at(count);
    let is_finite = |stream: &&Playing| stream.left_s.is_finite();
    let steps = taken.iter().filter(is_finite).map(|stream| stream.steps).fold(0.0, f64::max);
    taken.iter().all(|stream| stream.left_s >= stream.steps * step_s)
        && waiting.iter().all(|stream| stream.left_s >= steps * step_s + stream.steps * all_s)
}

/// Whether streams that play fill all `places` and stay ahead with one less.
pub(in crate::engine) fn can_leave_one(limits: &StepLimits, playing: &[Playing], places: usize) -> bool {
    let time = |count: usize| limits.step_s(&playing[..count]);
    let fills = places > 1 && playing.len() >= places;
    fills && keeps_all(playing, places - 1, time(places - 1), time(places))
}

fn sum(playing: &[Playing]) -> StepShape {
    playing.iter().fold(StepShape::default(), |sum, stream| sum.plus(stream.shape))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// 20 ms and 10 ms for each sequence that generates, 1 ms for a token.
    fn costs() -> CostModel {
        let mut costs = CostModel::default();
        for step in 0..400usize {
            let shape = StepShape {
                decodes: 1 + step % 8,
                prefill_tokens: if step % 2 == 0 { step % 90 } else { 0 },
                ..StepShape::default()
            };
            let ms = 20 + 10 * shape.decodes + shape.prefill_tokens;
            costs.observe(shape, Duration::from_millis(ms as u64));
        }
        costs
    }

    fn limits(costs: CostModel, reserve_s: f64) -> StepLimits {
        let costs = Arc::new(costs);
        StepLimits {
            costs,
            reserve_s,
            bulk_credit_s: 0.0,
            others: Vec::new(),
            others_share: 0.0,
            longest_piece: 1.0,
            others_piece_s: 0.0,
        }
    }

    fn playing(left_s: f64) -> Playing {
        Playing { left_s, steps: 2.0, shape: StepShape::decode(1) }
    }

    #[test]
    fn a_step_takes_all_streams_or_those_that_are_due_if_all_are_too_many() {
        let limits = limits(costs(), 0.0);
        let taken = |streams: &[Playing]| TimeBudget::beside(&limits, streams, 0, 8).1;
        assert_eq!(taken(&[playing(0.2), playing(0.3), playing(0.4)]), 3);
        // Two steps of three take 100 ms, of two 80 ms.
        assert_eq!(taken(&[playing(0.09), playing(0.3), playing(0.4)]), 2);
        // One that is late already makes no others late.
        assert_eq!(taken(&[playing(0.001), playing(0.3), playing(0.4)]), 3);
        assert_eq!(TimeBudget::beside(&limits, &[playing(1.0); 9], 0, 4).1, 4);
    }

    #[test]
    fn a_full_step_leaves_a_place_only_if_the_last_stream_can_wait() {
        let limits = limits(costs(), 0.0);
        let leaves = |streams: &[Playing], places| can_leave_one(&limits, streams, places);
        assert!(leaves(&[playing(0.5), playing(1.0)], 2));
        // Its two steps after one of the other take 30 + 2 · 40 ms.
        assert!(!leaves(&[playing(0.5), playing(0.1)], 2));
        assert!(!leaves(&[playing(0.5), playing(1.0)], 3), "a place is free");
        assert!(!leaves(&[playing(5.0)], 1), "one place is never left");
    }

    #[test]
    fn prompts_are_split_to_what_fits_before_the_first_stream_runs_out() {
        let limits = limits(costs(), 0.02);
        let (mut budget, taken) = TimeBudget::beside(&limits, &[playing(0.2), playing(0.3)], 0, 8);
        assert_eq!(taken, 2);
        // 200 ms less a later step of 40, the reserve of 20 and the streams' own 40.
        let tokens = budget.tokens(Class::Starting, 256, StepShape::default());
        assert!((80..=110).contains(&tokens), "{tokens}");
        let prompt = |prefill_tokens| StepShape { prefill_tokens, ..StepShape::default() };
        assert!(!budget.take(Class::Bulk, prompt(120)));
        assert!(budget.take(Class::Starting, prompt(tokens)));
        assert_eq!(budget.tokens(Class::Starting, 256, StepShape::default()), 0);
        assert!(!budget.take(Class::Bulk, StepShape::decode(1)));
        assert!(budget.take(Class::Playing, StepShape::decode(1)));
    }

    #[test]
    fn streams_that_start_leave_time_for_a_piece_of_another_engine() {
        let limits = StepLimits { others_piece_s: 0.05, ..limits(costs(), 0.02) };
        let tokens = |class| {
            let (budget, _) = TimeBudget::beside(&limits, &[playing(0.2), playing(0.3)], 0, 8);
            budget.tokens(class, 256, StepShape::default())
        };
        assert!((40..=60).contains(&tokens(Class::Starting)), "{}", tokens(Class::Starting));
        assert!((20..=40).contains(&tokens(Class::Bulk)), "{}", tokens(Class::Bulk));
        assert!((80..=110).contains(&tokens(Class::Late)), "{}", tokens(Class::Late));
    }

    #[test]
    fn bulk_work_waits_for_a_stream_that_starts_unless_time_is_owed_to_it() {
        let limits = limits(costs(), 0.0);
        let (mut budget, _) = TimeBudget::beside(&limits, &[playing(5.0)], 0, 8);
        budget.set_demand(0.0, true);
        assert!(!budget.take(Class::Bulk, StepShape::decode(1)));
        budget.set_demand(0.015, true);
        assert!(budget.take(Class::Bulk, StepShape::decode(1)));
        assert!(!budget.take(Class::Bulk, StepShape::decode(1)), "the time was given");
        let (mut late, _) = TimeBudget::beside(&limits, &[playing(0.01)], 0, 8);
        late.set_demand(0.015, false);
        assert!(!late.take(Class::Bulk, StepShape::decode(1)));
        assert!((0.009..0.011).contains(&late.bulk_left_s()), "{late:?}");
        late.set_demand(2.1, false);
        assert!(late.take(Class::Bulk, StepShape::decode(1)) && late.pays_all());
        assert!(!late.take(Class::Bulk, StepShape::decode(1)), "nothing more is owed");
        let prompt = StepShape { prefill_tokens: 2_000, ..StepShape::default() };
        assert!(!late.take(Class::Starting, prompt) && late.take(Class::Late, prompt));
    }

    #[test]
    fn a_step_without_other_work_is_never_empty() {
        let limits = limits(costs(), 0.0);
        let mut budget = TimeBudget::beside(&limits, &[], 0, 8).0;
        budget.limit(-1.0);
        assert_eq!(budget.tokens(Class::Starting, 256, StepShape::default()), MIN_PIECE);
        assert!(budget.take(Class::Starting, StepShape { prefill_tokens: 16, ..StepShape::default() }));
        let unknown = StepLimits { costs: Arc::default(), ..limits };
        assert_eq!(
            TimeBudget::beside(&unknown, &[], 0, 8).0.tokens(Class::Starting, 256, StepShape::default()),
            256
        );
    }
}
