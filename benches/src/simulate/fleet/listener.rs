//! Listeners of the fleet: each hears one utterance after another, with pauses, and comes back when its node dies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use izwi_core::engine::{EngineCoreRequest, FinishReason, RequestId, StreamingOutput};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::balancer::Balancer;
use super::node::Node;
use crate::client::{AHEAD, Player, params, text, told};
use crate::load::{TEXT, mean_length_s};
use crate::random::Random;

/// First pause before a listener whose node died connects again; it doubles, and varies by half.
const BACKOFF_S: f64 = 0.5;
/// The longest of these pauses.
const MAX_BACKOFF_S: f64 = 8.0;
/// How often the balancer takes another node instead of one that does not answer, or refuses.
const REDISPATCHES: usize = 3;
/// How often a refused utterance is asked for in all.
const ASKS: u32 = 4;

/// What listeners saw in the counted time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Utterances that were asked for.
    pub(crate) utterances: u64,
    /// Those that were refused at the first time.
    pub(crate) refused: u64,
    /// Those that were refused each time.
    pub(crate) given_up: u64,
    /// Streams that failed although their node lives.
    pub(crate) failed: u64,
    /// Streams with a gap whose node lives.
    pub(crate) gaps: u64,
    /// Silence in them.
    pub(crate) gap: Duration,
    /// Streams that were cut because their node died.
    pub(crate) cut: u64,
    /// Attempts to connect to a dead node.
    pub(crate) unreachable: u64,
    /// Seconds from asking to the first audio.
    pub(crate) first_audio_s: Vec<f64>,
    /// Seconds from the death of a node to the audio of the utterance that began again.
    pub(crate) back_s: Vec<f64>,
    /// Seconds of audio.
    pub(crate) audio_s: f64,
}

/// What the listeners of a run share.
#[derive(Debug)]
pub(crate) struct World {
    /// The balancer.
    pub(crate) balancer: Balancer,
    counted_from: Instant,
    ends_at: Instant,
    tally: Mutex<Tally>,
    ids: AtomicU64,
    /// Whether the balancer passes a refused request on, and tries no node twice.
    passes_on: bool,
}

impl World {
    /// A world without listeners.
    pub(crate) fn new(balancer: Balancer, counted_from: Instant, ends_at: Instant, passes_on: bool) -> Self {
        Self { balancer, counted_from, ends_at, tally: Mutex::default(), ids: AtomicU64::new(0), passes_on }
    }

    /// What the listeners saw.
    pub(crate) fn take_tally(&self) -> Tally {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the tally for an utterance that was asked for at `asked_at`, if that is counted.
    fn count(&self, asked_at: Instant, change: impl FnOnce(&mut Tally)) {
        if asked_at >= self.counted_from && asked_at < self.ends_at {
            change(&mut self.lock());
        }
    }
}

/// How a stream ended.
enum End {
    /// It was heard whole.
    Heard,
    /// Its node died.
    Cut,
    /// It failed.
    Failed,
}

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    random: Random,
    /// Mean seconds between two utterances.
    pause_s: f64,
    /// Whether it reads at playback speed, not at once.
    reads_in_real_time: bool,
    node: Option<Arc<Node>>,
}

impl Listener {
    /// A listener who hears speech for this share of the time.
    pub(crate) fn new(seed: u64, index: usize, duty: f64) -> Self {
        Self {
            random: Random::new(seed, 51),
            pause_s: mean_length_s() * (1.0 - duty) / duty,
            reads_in_real_time: index.is_multiple_of(2),
            node: None,
        }
    }

    /// Hears utterances until the end.
    pub(crate) async fn run(mut self, world: Arc<World>) {
        loop {
            let pause = Duration::from_secs_f64(self.random.exponential(self.pause_s));
            if Instant::now() + pause >= world.ends_at {
                return;
            }
            sleep(pause).await;
            self.hear(&world).await;
        }
    }

    /// Asks for one utterance until it was heard.
    async fn hear(&mut self, world: &World) {
        let asked_at = Instant::now();
        world.count(asked_at, |tally| tally.utterances += 1);
        let (seed, chars) = (self.random.next() >> 16, self.random.log_between(TEXT.0, TEXT.1) as usize);
        let (mut asks, mut backoff_s, mut cut_at) = (0, BACKOFF_S, None);
        let mut tried = Vec::new();
        loop {
            let Some(node) = self.reach(world, asked_at, &mut tried) else {
                tried.clear();
                self.back_off(&mut backoff_s).await;
                continue;
            };
            let id = format!("live-{}", world.ids.fetch_add(1, Ordering::Relaxed));
            let request = EngineCoreRequest::tts(text(seed, chars)).with_params(params(seed));
            let connection = node.connect();
            let asked = node.engine.generate_streaming(request.with_id(RequestId::from(id.as_str()))).await;
            match asked {
                Ok((_, chunks)) => match self.play(world, &node, chunks, asked_at, cut_at).await {
                    End::Heard => return,
                    End::Cut => {
                        drop(connection);
                        tried.clear();
                        world.count(asked_at, |tally| tally.cut += 1);
                        cut_at = cut_at.or(Some(Instant::now()));
                        self.back_off(&mut backoff_s).await;
                    }
                    End::Failed => return world.count(asked_at, |tally| tally.failed += 1),
                },
                Err(error) => {
                    drop(connection);
                    let Some(told) = told(&error) else {
                        // It drains or has just died: the balancer chooses another one.
                        self.back_off(&mut backoff_s).await;
                        continue;
                    };
                    if world.passes_on && tried.len() < REDISPATCHES {
                        tried.push(node);
                        continue;
                    }
                    tried.clear();
                    asks += 1;
                    world.count(asked_at, |tally| tally.refused += u64::from(asks == 1));
                    if asks >= ASKS {
                        return world.count(asked_at, |tally| tally.given_up += 1);
                    }
                    sleep(told).await;
                }
            }
        }
    }

    /// The node of the balancer's choice. If it is dead, the balancer takes another one, some times.
    fn reach(&mut self, world: &World, asked_at: Instant, tried: &mut Vec<Arc<Node>>) -> Option<Arc<Node>> {
        for _ in tried.len()..=REDISPATCHES {
            let node = world.balancer.choose(self.node.as_ref(), tried)?;
            self.node = Some(Arc::clone(&node));
            if !node.is_killed() {
                return Some(node);
            }
            world.count(asked_at, |tally| tally.unreachable += 1);
            if world.passes_on {
                tried.push(node);
            }
        }
        None
    }

    async fn back_off(&mut self, backoff_s: &mut f64) {
        sleep(Duration::from_secs_f64(*backoff_s * self.random.between(0.5, 1.5))).await;
        *backoff_s = (2.0 * *backoff_s).min(MAX_BACKOFF_S);
    }

    /// Plays one stream to its end.
    async fn play(
        &self,
        world: &World,
        node: &Node,
        mut chunks: mpsc::Receiver<StreamingOutput>,
        asked_at: Instant,
        cut_at: Option<Instant>,
    ) -> End {
        let mut player = Player::default();
        let end = loop {
            let next = async {
                if self.reads_in_real_time {
                    player.wait(AHEAD).await;
                }
                chunks.recv().await
            };
            let chunk = tokio::select! {
                biased;
                () = node.dies() => break End::Cut,
                chunk = next => chunk,
            };
            let Some(chunk) = chunk else { break End::Failed };
            player.take(&chunk, asked_at);
            if let Some(stats) = &chunk.stats {
                break if stats.finish_reason == FinishReason::Stop { End::Heard } else { End::Failed };
            }
        };
        let (first_audio, gap) = (player.first_audio, player.underrun);
        world.count(asked_at, |tally| {
            tally.audio_s += player.received_s();
            match (first_audio, cut_at) {
                (Some(first), None) => tally.first_audio_s.push(first.as_secs_f64()),
                (Some(first), Some(cut_at)) => {
                    let back = (asked_at + first).saturating_duration_since(cut_at);
                    tally.back_s.push(back.as_secs_f64());
                }
                (None, _) => {}
            }
            if !gap.is_zero() && !node.is_killed() {
                tally.gaps += 1;
                tally.gap += gap;
            }
        });
        if let (End::Heard, Some(at)) = (&end, player.started_at) {
            sleep_until(at + player.received).await;
        }
        end
    }
}
