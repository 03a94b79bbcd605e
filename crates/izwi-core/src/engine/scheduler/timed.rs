//! Decisions where the time of a step counts: what fits alongside the streams that play.
//!
//! Must not know blocks.

use super::decide::{Grant, Round, Running};
use super::sequence::{Demand, Sequence};
use super::{DecidedItem, ScheduleResult, Scheduler};
use crate::engine::qos::budget::{Class, Playing, StepLimits, TimeBudget, can_leave_one, is_late};
use crate::engine::qos::cost::{StepShape, safety};
use crate::engine::qos::demand;
use crate::engine::qos::playback::Playback;
use crate::engine::types::SequenceId;

/// Seconds owed to bulk work from which on it has a place that streams would take.
const OWED_PLACE_S: f64 = 0.2;

/// How urgent an item of a sequence is. A stream that plays and computes its prompt again starts again; one whose first audio
/// is late starts although streams that play may run out of audio.
fn class(sequence: &Sequence, is_prefill: bool, now_us: u64) -> Class {
    let is_late = || sequence.promised_us().is_some_and(|at_us| is_late(at_us, now_us));
    match sequence.class() {
        Class::Playing if is_prefill => Class::Starting,
        Class::Starting if is_late() => Class::Late,
        class => class,
    }
}

impl Scheduler {
    /// Sets when the first audio of a live stream is due, and its chunks: the playback that begins there.
    pub(in crate::engine) fn set_first_audio(&mut self, id: SequenceId, expected: Playback) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.due_us = expected.end_us;
            sequence.expected = Some(expected);
        }
    }

    /// A live stream pauses and begins anew: it has no audio, as before its first.
    pub(in crate::engine) fn end_playback(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.playback = None;
        }
    }

    /// A live stream could not start before `at_us`: its first audio is not late before either.
    pub(in crate::engine) fn starts_from(&mut self, id: SequenceId, at_us: u64) {
        if let Some(expected) = self.sequences.get_mut(&id).and_then(|sequence| sequence.expected.as_mut()) {
            expected.end_us = expected.end_us.max(at_us);
        }
    }

    /// When the first audio of a live stream was promised; `None` once it plays.
    pub(in crate::engine) fn promised_us(&self, id: SequenceId) -> Option<u64> {
        self.sequences.get(&id)?.promised_us()
    }
}

impl<'a> Round<'a> {
    /// Fills the step as far as the streams that play stay ahead of their players. Returns whether that is a decision: not
    /// where time does not count, or what has time lacks memory, which other work may free.
    pub(super) fn fill_in_time(&mut self, in_flight: Option<&ScheduleResult>) -> bool {
        let Some(limits) = self.scheduler.limits.as_ref().filter(|limits| self.counts_time(limits)) else {
            return false;
        };
        self.fill_playing(limits, in_flight);
        self.fill_running_prefills();
        self.admit_waiting();
        self.fill_decodes();
        if let Some(time) = &self.time {
            let bulk_left_us = (time.bulk_left_s() * 1e6) as u64;
            (self.decision.pays_all, self.decision.bulk_left_us) = (time.pays_all(), bulk_left_us);
        }
        if self.decision.is_empty() {
            self.time = None;
        }
        self.time.is_some()
    }

    /// Whether the time of the step matters: somebody listens.
    fn counts_time(&self, limits: &StepLimits) -> bool {
        let is_active = |s: &Sequence| s.live && !s.is_held();
        !limits.others.is_empty()
            || self.running.iter().any(|s| is_active(s))
            || self.waiting().any(is_active)
    }

    /// Adds the streams that play, the most urgent first, and computes what else the step has time for.
    fn fill_playing(&mut self, limits: &'a StepLimits, in_flight: Option<&ScheduleResult>) {
        let in_flight_us = in_flight.map_or(0, |step| limits.costs.longest_us(step.shape));
        let begins_us = self.scheduler.now_us + in_flight_us;
        let left_s = |at_us: u64| (at_us as f64 - begins_us as f64) / 1e6;
        let mut ready: Vec<(u64, usize, Grant, Playing)> = Vec::new();
        for (index, sequence) in self.running.iter().enumerate() {
            let Some(grant) = sequence.decode() else { continue };
            let (left_s, steps) = match (sequence.class(), sequence.playback) {
                (Class::Bulk, _) => continue,
                (_, Some(playback)) => (left_s(playback.end_us), f64::from(playback.steps())),
                // It generates its first audio alongside those that play.
                (_, None) => (f64::INFINITY, 1.0),
            };
            let shape = sequence.shape(grant.demand.start, grant.tokens, false, false);
            ready.push((sequence.due_us, index, grant, Playing { left_s, steps, shape }));
        }
        ready.sort_by_key(|(end_us, index, ..)| (*end_us, self.running[*index].id));
        let playing: Vec<Playing> = ready.iter().map(|(.., playing)| *playing).collect();
        let owes_a_place = limits.bulk_credit_s > OWED_PLACE_S && self.scheduler.has_bulk();
        let starts = |s: &Sequence| s.class() == Class::Starting && !s.is_held();
        let has_starting = self.running.iter().any(|s| starts(s)) || self.waiting().any(starts);
        // Those whose prompt may be done with this step: the steps after it have them too.
        let joining = self.running.iter().filter(|s| starts(s) && s.decode().is_none()).count()
            + self.waiting().filter(|s| starts(s)).count();
        let places = self.places - usize::from(owes_a_place && self.places > 1);
        // The stream that is farthest ahead gives its place to one that starts, if all can wait for it.
        let gives_a_place = has_starting && can_leave_one(limits, &playing, places);
        let places = places - usize::from(gives_a_place);
        let (mut time, taken) = TimeBudget::beside(limits, &playing, joining, places);
        if let Some(at_us) = self.latest_end_us(limits, playing.len() + joining) {
            // Between its pieces others continue, while no stream of its own plays.
            let plays = self.running.iter().any(|s| s.playback.is_some());
            let longest_piece = if plays { 1.0 } else { limits.longest_piece };
            time.limit(left_s(at_us) / longest_piece);
        }
        if in_flight.is_some() {
            self.limit_to_beginning(limits, &mut time, playing.len());
        }
        self.limit_to_other_groups(limits, &mut time, left_s);
        time.set_demand(limits.bulk_credit_s, has_starting);
        for (_, index, grant, _) in ready.into_iter().take(taken) {
            self.place(index, grant);
        }
        self.playing_tokens = self.decision.total_tokens();
        self.time = Some(time);
    }

    /// When the step must have ended at the latest, so that the streams of other engines and those that play continue in time
    /// after it; `None` without other engines.
    fn latest_end_us(&self, limits: &StepLimits, playing: usize) -> Option<u64> {
        if limits.others.is_empty() {
            return None;
        }
        let own = self.running.iter().filter(|s| s.decode().is_some()).filter_map(|s| s.playback);
        let times = limits.costs.step_time(StepShape::decode(playing));
        let mut deadlines = demand::of_playbacks(own.map(Playback::after_a_step), times);
        deadlines.extend(&limits.others);
        demand::latest_start_us(&mut deadlines)
    }

    /// Limits the step for streams that play and that only steps of another group continue.
    fn limit_to_other_groups(
        &self,
        limits: &StepLimits,
        time: &mut TimeBudget<'_>,
        left_s: impl Fn(u64) -> f64,
    ) {
        let is_other = |s: &&Running| !s.is_held() && self.scheduler.group_of(s.id) != self.group;
        let others: Vec<Playback> = self.running.iter().filter(is_other).filter_map(|s| s.playback).collect();
        let step_s = safety(&limits.costs) * limits.costs.seconds(StepShape::decode(others.len()));
        for playback in others {
            time.limit(left_s(playback.end_us) - f64::from(playback.steps()) * step_s);
        }
    }

    /// Limits the step for streams whose playback may begin with the step in flight.
    fn limit_to_beginning(&self, limits: &StepLimits, time: &mut TimeBudget<'_>, playing: usize) {
        let generates = |s: &&Running| s.class() == Class::Starting && s.decode().is_some();
        let beginning: Vec<Playback> =
            self.running.iter().filter(generates).filter_map(|s| s.expected).collect();
        let step_s =
            safety(&limits.costs) * limits.costs.seconds(StepShape::decode(playing + beginning.len()));
        for playback in beginning {
            let later_s = f64::from(playback.chunk_steps().saturating_sub(1)) * step_s;
            // A step of all that generate is always taken: they are among them.
            time.limit((playback.chunk_us as f64 / 1e6 - later_s).max(step_s));
        }
    }

    /// The tokens of the running sequence at `index` that the step has time for, which it takes.
    pub(super) fn take_time(&mut self, index: usize, demand: &Demand, tokens: usize) -> Option<usize> {
        let Some(time) = &mut self.time else { return Some(tokens) };
        let sequence = &self.running[index];
        let is_divisible = demand.divisible && self.scheduler.config.chunked_prefill;
        let shape = |tokens| sequence.shape(demand.start, tokens, demand.is_prefill, false);
        let class = class(sequence, demand.is_prefill, self.scheduler.now_us);
        let tokens = if is_divisible { time.tokens(class, tokens, shape(0)) } else { tokens };
        (tokens > 0 && time.take(class, shape(tokens))).then_some(tokens)
    }

    /// How many of the first `tokens` tokens of an admission the step has time for.
    pub(super) fn time_to_begin(&self, sequence: &Sequence, demand: &Demand, tokens: usize) -> usize {
        let is_divisible = demand.divisible && self.scheduler.config.chunked_prefill;
        self.time.as_ref().filter(|_| is_divisible).map_or(tokens, |time| {
            let shape = sequence.shape(demand.start, 0, true, true);
            time.tokens(class(sequence, true, self.scheduler.now_us), tokens, shape)
        })
    }

    /// Whether the step has time for the first item of an admission, which takes it then.
    pub(super) fn take_time_to_begin(&mut self, sequence: &Sequence, item: &DecidedItem) -> bool {
        let shape = sequence.shape(item.start, item.num_tokens, true, true);
        let class = class(sequence, true, self.scheduler.now_us);
        self.time.as_mut().is_none_or(|time| time.take(class, shape))
    }
}
