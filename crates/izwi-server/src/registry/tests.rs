//! The registry over simulated engines.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::{Fault, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{EngineCoreConfig, MemoryBudget};

use super::*;

const TTL: Duration = Duration::from_secs(60);
const GUARD: Duration = Duration::from_secs(30);

fn engine(name: &str) -> Engine {
    let config = EngineCoreConfig { model: name.to_owned(), num_threads: 1, ..Default::default() };
    let model = SimulatedModel { transcribes: name.starts_with("asr"), ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

/// A model of `bytes`; those whose names begin with `asr` are ASR models.
fn offer(id: &str, bytes: u64) -> Offer {
    let task = if id.starts_with("asr") { Task::Asr } else { Task::Tts };
    Offer { id: id.to_owned(), tasks: vec![task], bytes }
}

fn config() -> RegistryConfig {
    RegistryConfig {
        default_asr: Some("asr".to_owned()),
        load_timeout: GUARD,
        ttl: Some(TTL),
        ..RegistryConfig::new("voice")
    }
}

fn offers() -> Vec<Offer> {
    vec![
        offer("voice", 10),
        offer("asr", 20),
        offer("a", 30),
        offer("b", 30),
        offer("c", 40),
        offer("asr-2", 5),
    ]
}

/// A registry whose loads are counted and never fail.
fn registry(config: RegistryConfig) -> (Registry, Arc<AtomicUsize>) {
    let loads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&loads);
    let loader: Loader = Arc::new(move |name: &str| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(engine(name))
    });
    (Registry::with_loader(config, offers(), loader), loads)
}

/// A registry whose loads wait for the gate, one by one.
fn gated(config: RegistryConfig) -> (Registry, mpsc::Sender<()>) {
    let (gate, turnstile) = mpsc::channel();
    let turnstile = Mutex::new(turnstile);
    let loader: Loader = Arc::new(move |name: &str| {
        turnstile.lock().unwrap().recv_timeout(GUARD).unwrap();
        Ok(engine(name))
    });
    (Registry::with_loader(config, offers(), loader), gate)
}

async fn lease_tts(registry: &Registry, id: &str) -> Result<Lease, ApiError> {
    registry.lease(Some(id), Task::Tts).await
}

fn code(registry: &Registry, id: &str) -> &'static str {
    registry.entries()[id].slot.readiness(id).map_or_else(|unready| unready.code, |_| "ready")
}

async fn until(registry: &Registry, id: &str, expected: &str) {
    let mut changes = registry.inner.residency.subscribe();
    let wait = async {
        while code(registry, id) != expected {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(GUARD, wait).await.unwrap();
}

#[test]
fn aliases_stand_for_the_default_models() {
    let registry = Registry::new(config());
    for alias in TTS_ALIASES {
        assert_eq!(registry.find(alias).unwrap().0, "voice");
    }
    for alias in ASR_ALIASES {
        assert_eq!(registry.find(alias).unwrap().0, "asr");
    }
    for dated in ["tts-1-1106", "tts-1-hd-1106", "gpt-4o-mini-tts-2025-12-15", "gpt-4o-mini-tts-2025-03-20"] {
        assert_eq!(registry.find(dated).unwrap().0, "voice", "{dated}");
    }
    for dated in ["gpt-4o-mini-transcribe-2025-12-15", "gpt-4o-transcribe-2025-03-20"] {
        assert_eq!(registry.find(dated).unwrap().0, "asr", "{dated}");
    }
    for other in ["voice-1106", "tts-1-11", "tts-1-2025-12", "tts-1-2025-12-1x", "-1106", "gpt-4o-diarize"] {
        assert_eq!(registry.find(other).unwrap_err().code(), "model_not_found", "{other}");
    }
    let error = registry.find("vioce").unwrap_err();
    assert!(error.to_string().contains("did you mean 'voice'"), "{error}");
    let tts_only = Registry::new(RegistryConfig::new("voice"));
    let error = tts_only.find(ASR_ALIASES[0]).unwrap_err();
    assert!(error.to_string().contains("has no ASR model"), "{error}");
    assert_eq!(error.code(), "model_not_found");
}

#[test]
fn readiness_needs_every_default_and_gives_the_reason() {
    let registry = Registry::new(RegistryConfig::new("m"));
    assert_eq!(registry.readiness().unwrap_err().code, "loading");
    registry.set("m", Slot::Failed("no weights".to_owned()));
    let unready = registry.readiness().unwrap_err();
    assert_eq!(unready.code, "failed");
    assert!(unready.reason.contains("no weights"));
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_load_at_the_start_and_the_rest_on_first_use() {
    let (registry, loads) = registry(config());
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "asr", "ready").await;
    assert_eq!(registry.readiness(), Ok(()));
    assert_eq!((code(&registry, "a"), loads.load(Ordering::SeqCst)), ("unloaded", 2));
    let asked = (0..20).map(|_| lease_tts(&registry, "a"));
    let leases = futures::future::try_join_all(asked).await.unwrap();
    assert_eq!((leases.len(), loads.load(Ordering::SeqCst)), (20, 3), "one load for all");
    assert_eq!(registry.lease(None, Task::Asr).await.unwrap().profile().model, "asr");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_that_fails_leaves_the_others_alone() {
    let loader: Loader = Arc::new(|name: &str| match name {
        "voice" => Ok(engine(name)),
        "a" => panic!("a bug in a family"),
        _ => Err("no such file".to_owned()),
    });
    let registry = Registry::with_loader(config(), offers(), loader);
    registry.load_defaults();
    until(&registry, "asr", "failed").await;
    assert!(lease_tts(&registry, "tts-1").await.is_ok());
    let unready = registry.readiness().unwrap_err();
    assert!(unready.reason.contains("'asr' failed to load: no such file"), "{unready:?}");
    let error = registry.lease(Some("asr"), Task::Asr).await.unwrap_err();
    assert_eq!(error.code(), "model_unavailable");
    assert_eq!(lease_tts(&registry, "a").await.unwrap_err().code(), "model_unavailable");
    assert_eq!(code(&registry, "a"), "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_load_times_out_for_the_request_and_goes_on() {
    let (registry, gate) = gated(RegistryConfig { load_timeout: Duration::from_millis(20), ..config() });
    let error = lease_tts(&registry, "a").await.unwrap_err();
    assert_eq!(error.code(), "model_loading");
    assert_eq!(code(&registry, "a"), "loading");
    gate.send(()).unwrap();
    until(&registry, "a", "ready").await;
    assert!(lease_tts(&registry, "a").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_not_loaded_for_a_task_it_lacks() {
    let (registry, loads) = registry(config());
    let error = registry.lease(Some("a"), Task::Asr).await.unwrap_err();
    assert_eq!((error.code(), error.param()), ("invalid_value", Some("model")));
    let error = lease_tts(&registry, "asr").await.unwrap_err();
    assert!(error.to_string().contains("'asr' does not support the task tts"), "{error}");
    assert_eq!(loads.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_name_models_of_the_right_task() {
    let (registry, _) = registry(config());
    let hint = async |id: &str, task| registry.lease(Some(id), task).await.unwrap_err().to_string();
    let speak = hint("asr-3", Task::Tts).await;
    assert!(!speak.contains("'asr-2'") && speak.contains("'a'"), "{speak}");
    assert!(hint("asr-3", Task::Asr).await.contains("did you mean 'asr-2'"));
    let wrong = hint("asr", Task::Tts).await;
    assert!(wrong.contains("the models that do are 'a', 'b', 'c', 'voice'"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_model_stands_for_those_of_other_servers() {
    let (registry, _) = registry(config());
    let stands = |name: &str| (registry.find(name).unwrap().0, registry.is_stand_in(name));
    assert_eq!(stands("large-v3"), ("asr".to_owned(), true));
    assert_eq!(stands("tts-1"), ("voice".to_owned(), false));
    assert_eq!(stands("a"), ("a".to_owned(), false));
    assert!(registry.find("large-v9").is_err() && !registry.is_stand_in("large-v9"));
    let deaf = Registry::new(RegistryConfig::new("voice"));
    assert!(deaf.find("large-v3").unwrap_err().to_string().contains("has no ASR model"));
}

// On one thread: a model is unloaded at the next await, not between two assertions.
#[tokio::test]
async fn unused_models_are_unloaded_and_load_again() {
    let (registry, loads) = registry(config());
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "asr", "ready").await;
    let held = lease_tts(&registry, "a").await.unwrap();
    drop(lease_tts(&registry, "b").await.unwrap());
    let gone = held.clone();
    registry.expire_at(Instant::now() + TTL / 2);
    assert_eq!((code(&registry, "a"), code(&registry, "b")), ("ready", "ready"));
    registry.expire_at(Instant::now() + TTL);
    assert_eq!((code(&registry, "a"), code(&registry, "voice")), ("ready", "ready"), "in use, and a default");
    // A request that arrives during the unload loads the model again.
    assert_eq!(code(&registry, "b"), "unloading");
    assert!(lease_tts(&registry, "b").await.is_ok());
    drop(held);
    registry.expire_at(Instant::now() + TTL);
    until(&registry, "a", "unloaded").await;
    assert!(gone.ready().await.is_err(), "its engine has ended");
    assert!(lease_tts(&registry, "a").await.is_ok());
    assert_eq!(loads.load(Ordering::SeqCst), 6, "voice, asr, a twice, b twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_request_keeps_its_model_without_a_lease() {
    let (registry, _) = registry(config());
    let lease = lease_tts(&registry, "a").await.unwrap();
    lease.pause().unwrap();
    let request = izwi_core::engine::EngineCoreRequest::tts("Still to be spoken.");
    let (_, mut chunks) = lease.generate_streaming(request).await.unwrap();
    let engine = lease.clone();
    drop(lease);
    registry.expire_at(Instant::now() + TTL);
    assert_eq!(code(&registry, "a"), "ready");
    engine.resume().unwrap();
    while chunks.recv().await.is_some() {}
    registry.expire_at(Instant::now() + TTL);
    until(&registry, "a", "unloaded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_evicts_the_least_recently_used() {
    // the defaults take 30 and 70 remain.
    let (registry, loads) = registry(RegistryConfig { memory: MemoryBudget::new(Some(100)), ..config() });
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "asr", "ready").await;
    for id in ["a", "b", "a"] {
        drop(lease_tts(&registry, id).await.unwrap());
    }
    assert_eq!(loads.load(Ordering::SeqCst), 4, "a and b fit together");
    let c = lease_tts(&registry, "c").await.unwrap();
    until(&registry, "b", "unloaded").await;
    assert_eq!((code(&registry, "a"), code(&registry, "c")), ("ready", "ready"), "b was unused for longer");
    // Models in use are not evicted: 30 + 40 + 30 bytes.
    let a = lease_tts(&registry, "a").await.unwrap();
    let error = lease_tts(&registry, "b").await.unwrap_err();
    assert_eq!((error.code(), error.param()), ("memory_budget", Some("model")));
    let message = error.to_string();
    assert!(message.contains("'b' needs 30 bytes; 100 of the memory budget of 100 bytes"), "{message}");
    assert!(message.ends_with("try again later"), "{message}");
    drop((a, c));
    assert!(lease_tts(&registry, "b").await.is_ok());
    assert_eq!((code(&registry, "voice"), code(&registry, "asr")), ("ready", "ready"));
}

#[tokio::test(flavor = "multi_thread")]
async fn recordings_and_models_share_the_budget() {
    let memory = MemoryBudget::new(Some(100));
    let (registry, _) = registry(RegistryConfig { memory: memory.clone(), ..config() });
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "asr", "ready").await;
    assert_eq!(memory.models(), 30);
    let mut recording = memory.share();
    assert!(recording.resize(71).is_err(), "the defaults take 30");
    recording.resize(45).unwrap();
    let error = lease_tts(&registry, "a").await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains("'a' needs 30 bytes; 75 of the memory budget of 100 bytes"), "{message}");
    assert!(message.ends_with("try again later"), "{message}");
    drop(recording);
    drop(lease_tts(&registry, "a").await.unwrap());
    assert_eq!(memory.models(), 60);
    // An unused model gives way to a recording that is there.
    let mut recording = memory.share();
    recording.resize(40).unwrap();
    drop(lease_tts(&registry, "b").await.unwrap());
    until(&registry, "a", "unloaded").await;
    assert_eq!(memory.models(), 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_larger_than_the_budget_is_refused_for_good() {
    let (registry, loads) = registry(RegistryConfig { memory: MemoryBudget::new(Some(39)), ..config() });
    let error = lease_tts(&registry, "c").await.unwrap_err();
    assert!(error.to_string().contains("raise memory_budget_mib"), "{error}");
    assert_eq!(loads.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_default_models_rest_after_a_time_of_their_own() {
    let rest = TTL * 3;
    let (registry, loads) = registry(RegistryConfig { default_ttl: Some(rest), ..config() });
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "asr", "ready").await;
    let lease = lease_tts(&registry, "voice").await.unwrap();
    registry.expire_at(Instant::now() + TTL);
    assert_eq!((code(&registry, "voice"), code(&registry, "asr")), ("ready", "ready"));
    registry.expire_at(Instant::now() + rest);
    until(&registry, "asr", "unloaded").await;
    assert_eq!(code(&registry, "voice"), "ready", "it is in use");
    assert!(registry.readiness().is_ok(), "a request loads it again");
    drop(lease);
    registry.unload_now("voice").await.unwrap();
    until(&registry, "voice", "unloaded").await;
    assert!(registry.readiness().is_ok());
    assert!(lease_tts(&registry, "voice").await.is_ok());
    assert_eq!(loads.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_machine_transcribes_less_at_once() {
    const MIB: u64 = 1 << 20;
    // Room for the process and two transcriptions, and for less than one.
    for (limit, expected) in [(100 + 2 * 48 + 1, 2), (64, 1)] {
        let (registry, _) = registry(RegistryConfig { process_memory_bytes: Some(limit * MIB), ..config() });
        let mut leases = Vec::new();
        let error = loop {
            match registry.lease(Some("asr"), Task::Asr).await {
                Ok(lease) => leases.push(lease),
                Err(error) => break error,
            }
        };
        assert_eq!((leases.len(), error.code()), (expected, "overloaded"), "{limit} MiB");
        assert!(lease_tts(&registry, "voice").await.is_ok(), "speech is not bounded");
        leases.pop();
        assert!(registry.lease(Some("asr"), Task::Asr).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_ends_after_close_is_discarded() {
    let (registry, gate) = gated(config());
    let asked = tokio::spawn({
        let registry = registry.clone();
        async move { lease_tts(&registry, "a").await.map(|_| ()) }
    });
    until(&registry, "a", "loading").await;
    registry.close();
    assert_eq!(asked.await.unwrap().unwrap_err().code(), "draining");
    gate.send(()).unwrap();
    assert_eq!(lease_tts(&registry, "b").await.unwrap_err().code(), "draining");
}

#[test]
fn a_failed_load_is_tried_again_after_a_while() {
    let now = Instant::now();
    let mut residency = Residency::new(&RegistryConfig { ttl: None, ..config() }, true);
    residency.offer(offer("a", 1), now);
    assert!(matches!(residency.acquire("a", true, now), Decision::Load(_)));
    assert!(matches!(residency.acquire("a", true, now), Decision::Wait));
    residency.finish_load("a", Err("no".to_owned()), now);
    assert!(matches!(residency.acquire("a", true, now + Duration::from_secs(29)), Decision::Refused(_)));
    assert!(matches!(residency.acquire("a", true, now + Duration::from_secs(30)), Decision::Load(_)));
}

#[tokio::test]
async fn a_model_larger_than_expected_evicts_others() {
    let now = Instant::now();
    let mut residency =
        Residency::new(&RegistryConfig { ttl: None, memory: MemoryBudget::new(Some(100)), ..config() }, true);
    for (id, bytes) in [("a", 30), ("b", 30), ("c", 30)] {
        residency.offer(offer(id, bytes), now);
        assert!(matches!(residency.acquire(id, true, now), Decision::Load(_)));
        let ready = engine(id);
        ready.ready().await.unwrap();
        residency.finish_load(id, Ok(ready), now + Duration::from_secs(bytes));
    }
    assert!(residency.expire(now).is_empty(), "90 of 100");
    // Its memory as the engine reports it.
    residency.offer(offer("b", 60), now);
    let evicted: Vec<String> = residency.expire(now).into_iter().map(|(id, _)| id).collect();
    assert_eq!(evicted, ["a"], "the least recently used");
}

/// An engine that panics in every step.
fn failing_engine(name: &str) -> Engine {
    let config = EngineCoreConfig { model: name.to_owned(), num_threads: 1, ..Default::default() };
    let script = Box::new(|_: &StepPlan| Some(Fault::Panic));
    let model = SimulatedModel { script: Some(script), ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

/// Sends requests to an engine until it is dead.
async fn kill(engine: &Engine) {
    while engine.failure().is_none() {
        let request = izwi_core::engine::EngineCoreRequest::tts("A step that panics.");
        assert!(engine.generate(request).await.is_err());
    }
}

/// A registry whose first `failing` loads of a model give engines that panic.
fn fragile(failing: usize, restart: RestartPolicy) -> (Registry, Arc<AtomicUsize>) {
    let loads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&loads);
    let loader: Loader = Arc::new(move |name: &str| {
        let is_failing = counter.fetch_add(1, Ordering::SeqCst) < failing;
        Ok(if is_failing { failing_engine(name) } else { engine(name) })
    });
    let config = RegistryConfig { default_asr: None, restart, ..config() };
    (Registry::with_loader(config, vec![offer("voice", 10), offer("a", 30)], loader), loads)
}

const SOON: RestartPolicy = RestartPolicy {
    first_pause: Duration::from_millis(1),
    max_pause: Duration::from_millis(1),
    max_failures: 4,
    window: Duration::from_secs(600),
};
/// Longer than any test.
const LATE: RestartPolicy =
    RestartPolicy { first_pause: Duration::from_secs(900), max_pause: Duration::from_secs(900), ..SOON };

#[tokio::test(flavor = "multi_thread")]
async fn a_default_model_whose_engine_failed_is_loaded_again() {
    let (registry, loads) = fragile(2, SOON);
    registry.load_defaults();
    for count in 1..=2 {
        until(&registry, "voice", "ready").await;
        let lease = lease_tts(&registry, "voice").await.unwrap();
        kill(&lease).await;
        drop(lease);
        let mut changes = registry.inner.residency.subscribe();
        let reloaded = changes.wait_for(|_| loads.load(Ordering::SeqCst) > count);
        tokio::time::timeout(GUARD, reloaded).await.unwrap().unwrap();
    }
    until(&registry, "voice", "ready").await;
    let lease = lease_tts(&registry, "voice").await.unwrap();
    lease.generate(izwi_core::engine::EngineCoreRequest::tts("It speaks again.")).await.unwrap();
    assert_eq!((registry.readiness(), registry.given_up()), (Ok(()), None));
    assert_eq!(loads.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_get_a_pause_while_a_model_is_loaded_again() {
    let (registry, loads) = fragile(usize::MAX, LATE);
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    for id in ["voice", "a"] {
        let lease = lease_tts(&registry, id).await.unwrap();
        kill(&lease).await;
        until(&registry, id, "restarting").await;
        let error = lease_tts(&registry, id).await.unwrap_err();
        assert_eq!(error.code(), "model_restarting");
        assert!(error.retry_after_s().is_some_and(|seconds| (890..=900).contains(&seconds)), "{error:?}");
    }
    assert_eq!(registry.readiness().unwrap_err().code, "restarting");
    assert_eq!((registry.given_up(), loads.load(Ordering::SeqCst)), (None, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_fails_repeatedly_is_given_up() {
    let (registry, loads) = fragile(usize::MAX, SOON);
    registry.load_defaults();
    for count in 1..=SOON.max_failures {
        let mut changes = registry.inner.residency.subscribe();
        let loaded = changes.wait_for(|_| loads.load(Ordering::SeqCst) == count);
        tokio::time::timeout(GUARD, loaded).await.unwrap().unwrap();
        until(&registry, "voice", "ready").await;
        kill(&lease_tts(&registry, "voice").await.unwrap()).await;
    }
    until(&registry, "voice", "given_up").await;
    assert_eq!(lease_tts(&registry, "voice").await.unwrap_err().code(), "model_unavailable");
    assert_eq!(registry.given_up().unwrap().code, "given_up");
    assert_eq!(loads.load(Ordering::SeqCst), SOON.max_failures);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_fails_counts_as_a_failure() {
    let now = Instant::now();
    let mut residency = Residency::new(&RegistryConfig { restart: SOON, ..config() }, true);
    residency.offer(offer("a", 1), now);
    residency.pin("a");
    let dead = failing_engine("a");
    kill(&dead).await;
    assert!(matches!(residency.acquire("a", true, now), Decision::Load(_)));
    assert_eq!(residency.finish_load("a", Ok(dead), now), None);
    assert!(matches!(residency.engine_failed("a", now), Some(Restart::At(_))));
    assert_eq!(residency.engine_failed("a", now), None, "once per engine");
    let later = now + SOON.max_pause;
    for _ in 0..2 {
        assert!(matches!(residency.acquire("a", true, later), Decision::Load(_)));
        let restart = residency.finish_load("a", Err("the device is gone".to_owned()), later);
        assert!(matches!(restart, Some(Restart::At(_))));
        assert!(matches!(residency.acquire("a", true, later), Decision::Refused(_)));
        residency.set("a".to_owned(), Slot::Restarting { reason: String::new(), at: later }, later);
    }
    assert!(matches!(residency.acquire("a", true, later), Decision::Load(_)));
    assert_eq!(residency.finish_load("a", Err("gone".to_owned()), later), Some(Restart::Never));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_a_loaded_model_loads_nothing() {
    let (registry, loads) = registry(config());
    let error = registry.lease_loaded(Some("a"), Task::Tts).await.unwrap_err();
    assert_eq!((error.code(), loads.load(Ordering::SeqCst)), ("model_not_loaded", 0));
    drop(lease_tts(&registry, "a").await.unwrap());
    assert!(registry.lease_loaded(Some("a"), Task::Tts).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_model_beyond_the_budget_fails_with_the_reason() {
    let (registry, _) = registry(RegistryConfig { memory: MemoryBudget::new(Some(15)), ..config() });
    registry.load_defaults();
    until(&registry, "asr", "failed").await;
    let unready = registry.entries()["asr"].slot.readiness("asr").map(drop).unwrap_err();
    assert!(unready.reason.contains("memory budget of 15 bytes"), "{unready:?}");
}
