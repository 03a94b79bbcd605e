//! Simulated clients: what they send, when they read, and what they measure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use izwi_core::engine::{
    Engine, EngineCoreRequest, EngineError, FinishReason, GenerationParams, Prediction, RequestId,
    StreamingOutput,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

use crate::load::{Client, Kind, Reader};
use crate::machines::{BULK, Engines, RATE_HZ};
use crate::random::Random;
use crate::tally::Tally;

/// Audio that a reader in real time keeps ahead of its player.
pub(crate) const AHEAD: Duration = Duration::from_millis(500);
/// How long a client that stopped reading stays.
const STOPPED: Duration = Duration::from_secs(60);
/// How often a refused client asks to find the true time at which it would be accepted.
const PROBE_EVERY: Duration = Duration::from_millis(50);
/// How long it asks.
const PROBE_FOR: Duration = Duration::from_secs(180);
/// The least time that an error of `Retry-After` is relative to: its unit on the wire.
const RETRY_UNIT_S: f64 = 1.0;

/// What the clients of a run share.
#[derive(Debug)]
pub(crate) struct World {
    /// The engines.
    pub(crate) engines: Engines,
    /// Live streams at once; `None` where the engine decides.
    pub(crate) gate: Option<Arc<Semaphore>>,
    /// When no client comes any more.
    pub(crate) ends_at: Instant,
    tally: Mutex<Tally>,
    /// When a live stream was last accepted, by kind.
    accepted_at: Mutex<[Option<Instant>; 3]>,
    /// One client at a time asks for the true time.
    probe: Semaphore,
    probes_left: AtomicU64,
    ids: AtomicU64,
}

impl World {
    /// A world without clients.
    pub(crate) fn new(engines: Engines, gate: Option<usize>, ends_at: Instant, probes: u64) -> Self {
        Self {
            engines,
            gate: gate.map(|streams| Arc::new(Semaphore::new(streams))),
            ends_at,
            tally: Mutex::default(),
            accepted_at: Mutex::default(),
            probe: Semaphore::new(1),
            probes_left: AtomicU64::new(probes),
            ids: AtomicU64::new(0),
        }
    }

    /// What the clients saw so far.
    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_id(&self, prefix: &str) -> RequestId {
        format!("{prefix}{}", self.ids.fetch_add(1, Ordering::Relaxed)).as_str().into()
    }

    fn accept(&self, kind: Kind) {
        self.tally().accepted += 1;
        self.accepted_at.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize] = Some(Instant::now());
    }

    fn accepted_since(&self, kind: Kind, since: Instant) -> bool {
        let accepted_at = self.accepted_at.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize];
        accepted_at.is_some_and(|at| at > since)
    }
}

/// A text of random letters, so that prompts share no prefix.
pub(crate) fn text(seed: u64, chars: usize) -> String {
    let mut random = Random::new(seed, 5);
    (0..chars).map(|_| char::from(b'a' + (random.next() % 26) as u8)).collect()
}

/// Parameters with a seed.
pub(crate) fn params(seed: u64) -> GenerationParams {
    GenerationParams { seed: Some(seed), ..GenerationParams::default() }
}

/// The time that a refusal tells; `None` for other errors.
pub(crate) fn told(error: &EngineError) -> Option<Duration> {
    match error {
        EngineError::Saturated { retry_after } | EngineError::Overloaded { retry_after, .. } => {
            Some(*retry_after)
        }
        _ => None,
    }
}

type Accepted = (RequestId, mpsc::Receiver<StreamingOutput>, Instant);

impl Client {
    fn engine<'a>(&self, world: &'a World) -> &'a Engine {
        let engines = &world.engines;
        match self.kind {
            Kind::Speech => &engines.speech,
            Kind::Small => &engines.small,
            Kind::Chat => engines.chat.as_ref().unwrap_or(&engines.speech),
        }
    }

    async fn ask(&self, world: &World) -> Result<Accepted, EngineError> {
        let text = text(self.seed, self.chars);
        let request = match self.kind {
            Kind::Chat => EngineCoreRequest::audio_chat(None, Some(text)),
            Kind::Speech | Kind::Small => EngineCoreRequest::tts(text),
        };
        let request = request.with_params(params(self.seed)).with_id(world.next_id("live-"));
        let asked_at = Instant::now();
        let (id, chunks) = self.engine(world).generate_streaming(request).await?;
        world.accept(self.kind);
        Ok((id, chunks, asked_at))
    }

    /// Comes, and comes back after refusals.
    pub(crate) async fn run(self, world: Arc<World>) {
        let _place = match world.gate.clone().map(Semaphore::try_acquire_owned) {
            Some(Err(_)) => {
                world.tally().refused += 1;
                return;
            }
            Some(Ok(place)) => Some(place),
            None => None,
        };
        let mut returned = 0;
        loop {
            let error = match self.ask(&world).await {
                Ok(accepted) => {
                    world.tally().retries_accepted += u64::from(returned == 1);
                    return self.play(&world, accepted).await;
                }
                Err(error) => error,
            };
            let Some(told) = told(&error) else {
                world.tally().failed += 1;
                return;
            };
            world.tally().refused += 1;
            if returned == 0 && self.kind != Kind::Small && self.probe(&world, told).await {
                return;
            }
            if returned >= self.returns || Instant::now() + told >= world.ends_at {
                return;
            }
            world.tally().retries += u64::from(returned == 0);
            returned += 1;
            sleep(told).await;
        }
    }

    /// Asks until it, or another client of its model, is accepted. Returns whether it did ask.
    async fn probe(&self, world: &Arc<World>, told: Duration) -> bool {
        let refused_at = Instant::now();
        if refused_at + PROBE_FOR >= world.ends_at || world.probes_left.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let Ok(_probe) = world.probe.try_acquire() else { return false };
        world.probes_left.fetch_sub(1, Ordering::Relaxed);
        let mut accepted = None;
        while refused_at.elapsed() < PROBE_FOR
            && accepted.is_none()
            && !world.accepted_since(self.kind, refused_at)
        {
            sleep(PROBE_EVERY).await;
            if !world.accepted_since(self.kind, refused_at) {
                accepted = self.ask(world).await.ok();
            }
        }
        let truth_s = refused_at.elapsed().as_secs_f64();
        let error = (told.as_secs_f64() - truth_s).abs() / truth_s.max(RETRY_UNIT_S);
        world.tally().retry_after_errors.push(error);
        if let Some(accepted) = accepted {
            let (world, client) = (Arc::clone(world), self.clone());
            // In a task of its own, so that the next client may ask.
            tokio::spawn(async move { client.play(&world, accepted).await });
        }
        true
    }

    /// Reads a stream and measures it.
    async fn play(&self, world: &World, (id, mut chunks, asked_at): Accepted) {
        // Without admission nothing is predicted.
        let mut player = Player { waits: world.gate.is_none(), ..Player::default() };
        let mut ended = false;
        loop {
            match self.reader {
                Reader::RealTime => player.wait(AHEAD).await,
                Reader::Stopping(after_s) if player.received_s() >= after_s => {
                    sleep(STOPPED).await;
                    ended = true;
                }
                Reader::Stalling { after_s, for_s } if player.counts && player.received_s() >= after_s => {
                    player.counts = false;
                    sleep(Duration::from_secs_f64(for_s)).await;
                }
                Reader::Vanishing(after_s) if player.received_s() >= after_s => ended = true,
                Reader::Cancelling(after_s) if player.received_s() >= after_s => {
                    let _ = self.engine(world).abort_request(&id).await;
                    ended = true;
                }
                _ => {}
            }
            if ended {
                break;
            }
            let Some(chunk) = chunks.recv().await else { break };
            ended = chunk.is_final;
            let failed = chunk.stats.as_ref().is_some_and(|stats| stats.finish_reason == FinishReason::Error);
            world.tally().failed += u64::from(failed);
            player.take(&chunk, asked_at);
        }
        let mut tally = world.tally();
        // A stream of a reader that keeps up may not be cut.
        tally.failed += u64::from(!ended && player.counts);
        player.report(&mut tally);
    }
}

/// Playback of one stream.
#[derive(Debug)]
pub(crate) struct Player {
    /// Playback of the first sample, moved by every gap; `None` before the first audio.
    pub(crate) started_at: Option<Instant>,
    /// Audio that has arrived.
    pub(crate) received: Duration,
    /// What the first chunk told, which may have text alone.
    prediction: Option<Prediction>,
    /// Whether it waits for the announced time before playback.
    waits: bool,
    prebuffer: Duration,
    /// Silence between chunks.
    pub(crate) underrun: Duration,
    /// Silence that the stream told of, and whether it is told of now.
    pub(crate) paused: Duration,
    is_paused: bool,
    /// Audio before the first gap.
    in_time: Duration,
    /// From asking to the first audio.
    pub(crate) first_audio: Option<Duration>,
    /// Whether its reader keeps up so far.
    counts: bool,
}

impl Default for Player {
    fn default() -> Self {
        Self {
            started_at: None,
            received: Duration::ZERO,
            prediction: None,
            waits: true,
            prebuffer: Duration::ZERO,
            underrun: Duration::ZERO,
            paused: Duration::ZERO,
            is_paused: false,
            in_time: Duration::ZERO,
            first_audio: None,
            counts: true,
        }
    }
}

impl Player {
    /// Seconds of audio that have arrived.
    pub(crate) fn received_s(&self) -> f64 {
        self.received.as_secs_f64()
    }

    /// Waits until less than `ahead` of audio, and the announced silence, is ahead of playback.
    pub(crate) async fn wait(&self, ahead: Duration) {
        if let Some(at) =
            self.started_at.and_then(|at| (at + self.received).checked_sub(ahead + self.prebuffer))
        {
            sleep_until(at).await;
        }
    }

    /// Takes a chunk that arrives now.
    pub(crate) fn take(&mut self, chunk: &StreamingOutput, asked_at: Instant) {
        self.prediction = self.prediction.or(chunk.prediction);
        if let Some(started_at) = self.started_at.as_mut().filter(|_| chunk.pauses.is_some()) {
            // What it was silent before it was told is a gap.
            let late = Instant::now().saturating_duration_since(*started_at + self.received);
            *started_at += late;
            self.underrun += if self.counts { late } else { Duration::ZERO };
            self.is_paused = true;
        }
        if chunk.samples.is_empty() {
            return;
        }
        let now = Instant::now();
        let length = Duration::from_secs_f64(chunk.samples.len() as f64 / f64::from(RATE_HZ));
        if self.started_at.is_none() {
            let told = self.prediction.filter(|_| self.waits);
            self.prebuffer = told.map_or(Duration::ZERO, |told| told.prebuffer);
            self.first_audio = Some(now - asked_at);
        }
        let started_at = *self.started_at.get_or_insert(now + self.prebuffer);
        let late = now.saturating_duration_since(started_at + self.received);
        self.received += length;
        if !late.is_zero() {
            self.started_at = Some(started_at + late);
        }
        let told = std::mem::take(&mut self.is_paused);
        self.paused += if told && self.counts { late } else { Duration::ZERO };
        let late = if told { Duration::ZERO } else { late };
        if self.counts && self.underrun.is_zero() && late.is_zero() {
            self.in_time += length;
        }
        if self.counts {
            self.underrun += late;
        }
    }

    fn report(&self, tally: &mut Tally) {
        tally.underrun += self.underrun;
        tally.underrun_streams += u64::from(!self.underrun.is_zero());
        tally.paused += self.paused;
        tally.paused_streams += u64::from(!self.paused.is_zero());
        tally.audio_s += self.received_s();
        tally.in_time_s += self.in_time.as_secs_f64();
        if let Some(actual) = self.first_audio {
            let actual = actual.as_secs_f64();
            tally.first_audio_s.push(actual);
            let error = |told: Prediction| (told.first_audio.as_secs_f64() - actual).abs() / actual.max(1e-3);
            tally.first_audio_errors.extend(self.prediction.map(error));
        }
    }
}

/// Sends one bulk TTS request after another.
pub(crate) async fn speak_in_bulk(world: Arc<World>, seed: u64) {
    let mut random = Random::new(seed, 21);
    while Instant::now() < world.ends_at {
        let (seed, chars) = (random.next() >> 16, random.between(100.0, 500.0) as usize);
        let request = EngineCoreRequest::tts(text(seed, chars)).with_params(params(seed)).with_live(false);
        send(&world, &world.engines.speech, request).await;
    }
}

/// Sends one recording after another, with pauses.
pub(crate) async fn transcribe(world: Arc<World>, seed: u64) {
    let mut random = Random::new(seed, 22);
    while Instant::now() < world.ends_at {
        let samples = (random.between(3.0, 70.0) * f64::from(RATE_HZ)) as usize;
        let request = EngineCoreRequest::asr(wav(samples)).with_params(params(random.next() >> 16));
        send(&world, &world.engines.listens, request).await;
        sleep(Duration::from_secs_f64(random.exponential(2.0))).await;
    }
}

/// Sends a request and awaits the whole result.
async fn send(world: &World, engine: &Engine, request: EngineCoreRequest) {
    match engine.generate(request.with_id(world.next_id(BULK))).await {
        Ok(_) => world.tally().bulk += 1,
        Err(error) => {
            world.tally().failed += u64::from(told(&error).is_none());
            sleep(told(&error).unwrap_or(Duration::from_secs(1))).await;
        }
    }
}

/// A WAV file of silence, 16-bit mono.
fn wav(samples: usize) -> Vec<u8> {
    let (rate, bytes) = (RATE_HZ, 2 * samples as u32);
    let mut file = Vec::with_capacity(44 + bytes as usize);
    file.extend(b"RIFF");
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend([1u16, 1].iter().flat_map(|value| value.to_le_bytes()));
    file.extend([rate, 2 * rate].iter().flat_map(|value| value.to_le_bytes()));
    file.extend([2u16, 16].iter().flat_map(|value| value.to_le_bytes()));
    file.extend(b"data");
    file.extend(bytes.to_le_bytes());
    file.resize(44 + bytes as usize, 0);
    file
}
