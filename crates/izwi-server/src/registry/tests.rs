//! The fleet over engines without weights.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use izwi_core::engine::EngineCoreConfig;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};

use super::*;

const TTL: Duration = Duration::from_secs(60);
const GUARD: Duration = Duration::from_secs(30);

fn engine(name: &str) -> Engine {
    let config = EngineCoreConfig { model: name.to_owned(), num_threads: 1, ..Default::default() };
    let model = SimulatedModel { transcribes: name.starts_with("ear"), ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

/// A model of `bytes`; those whose names begin with `ear` listen.
fn offer(id: &str, bytes: u64) -> Offer {
    let task = if id.starts_with("ear") { Task::Asr } else { Task::Tts };
    Offer { id: id.to_owned(), tasks: vec![task], bytes }
}

fn config() -> FleetConfig {
    FleetConfig {
        default_asr: Some("ear".to_owned()),
        load_timeout: GUARD,
        ttl: Some(TTL),
        ..FleetConfig::new("voice")
    }
}

fn offers() -> Vec<Offer> {
    vec![
        offer("voice", 10),
        offer("ear", 20),
        offer("a", 30),
        offer("b", 30),
        offer("c", 40),
        offer("ear-2", 5),
    ]
}

/// A fleet whose loads are counted and never fail.
fn fleet(config: FleetConfig) -> (Registry, Arc<AtomicUsize>) {
    let loads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&loads);
    let loader: Loader = Arc::new(move |name: &str| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(engine(name))
    });
    (Registry::with_loader(config, offers(), loader), loads)
}

/// A fleet whose loads wait until they are let through, one by one.
fn gated(config: FleetConfig) -> (Registry, mpsc::Sender<()>) {
    let (gate, turnstile) = mpsc::channel();
    let turnstile = Mutex::new(turnstile);
    let loader: Loader = Arc::new(move |name: &str| {
        turnstile.lock().unwrap().recv_timeout(GUARD).unwrap();
        Ok(engine(name))
    });
    (Registry::with_loader(config, offers(), loader), gate)
}

async fn speaker(registry: &Registry, id: &str) -> Result<Lease, ApiError> {
    registry.lease(Some(id), Task::Tts).await
}

fn code(registry: &Registry, id: &str) -> &'static str {
    registry.entries()[id].slot.readiness(id).map_or_else(|unready| unready.code, |_| "ready")
}

async fn until(registry: &Registry, id: &str, expected: &str) {
    let mut changes = registry.inner.books.subscribe();
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
    for alias in DEFAULT_ALIASES {
        assert_eq!(registry.find(alias).unwrap().0, "voice");
    }
    for alias in LISTENING_ALIASES {
        assert_eq!(registry.find(alias).unwrap().0, "ear");
    }
    let error = registry.find("vioce").unwrap_err();
    assert!(error.to_string().contains("did you mean 'voice'"), "{error}");
    let deaf = Registry::new(FleetConfig::new("voice"));
    let error = deaf.find(LISTENING_ALIASES[0]).unwrap_err();
    assert!(error.to_string().contains("without a listening model"), "{error}");
    assert_eq!(error.code(), "model_not_found");
}

#[test]
fn readiness_waits_for_every_default_and_says_why_not() {
    let registry = Registry::new(FleetConfig::new("m"));
    assert_eq!(registry.readiness().unwrap_err().code, "loading");
    registry.set("m", Slot::Failed("no weights".to_owned()));
    let unready = registry.readiness().unwrap_err();
    assert_eq!(unready.code, "failed");
    assert!(unready.reason.contains("no weights"));
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_load_at_the_start_and_the_rest_on_first_use() {
    let (registry, loads) = fleet(config());
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "ear", "ready").await;
    assert_eq!(registry.readiness(), Ok(()));
    assert_eq!((code(&registry, "a"), loads.load(Ordering::SeqCst)), ("unloaded", 2));
    let asked = (0..20).map(|_| speaker(&registry, "a"));
    let leases = futures::future::try_join_all(asked).await.unwrap();
    assert_eq!((leases.len(), loads.load(Ordering::SeqCst)), (20, 3), "one load for all");
    assert_eq!(registry.lease(None, Task::Asr).await.unwrap().profile().model, "ear");
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
    until(&registry, "ear", "failed").await;
    assert!(speaker(&registry, "tts-1").await.is_ok());
    let unready = registry.readiness().unwrap_err();
    assert!(unready.reason.contains("'ear' failed to load: no such file"), "{unready:?}");
    let error = registry.lease(Some("ear"), Task::Asr).await.unwrap_err();
    assert_eq!(error.code(), "model_unavailable");
    assert_eq!(speaker(&registry, "a").await.unwrap_err().code(), "model_unavailable");
    assert_eq!(code(&registry, "a"), "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_takes_too_long_is_told_and_loads_on() {
    let (registry, gate) = gated(FleetConfig { load_timeout: Duration::from_millis(20), ..config() });
    let error = speaker(&registry, "a").await.unwrap_err();
    assert_eq!(error.code(), "model_loading");
    assert_eq!(code(&registry, "a"), "loading");
    gate.send(()).unwrap();
    until(&registry, "a", "ready").await;
    assert!(speaker(&registry, "a").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_not_loaded_for_what_it_cannot_do() {
    let (registry, loads) = fleet(config());
    let error = registry.lease(Some("a"), Task::Asr).await.unwrap_err();
    assert_eq!((error.code(), error.param()), ("invalid_value", Some("model")));
    let error = speaker(&registry, "ear").await.unwrap_err();
    assert!(error.to_string().contains("'ear' does not speak"), "{error}");
    assert_eq!(loads.load(Ordering::SeqCst), 0);
}

// On one thread: a model that leaves does so at the next await, not between two assertions.
#[tokio::test]
async fn unused_models_leave_and_come_back() {
    let (registry, loads) = fleet(config());
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "ear", "ready").await;
    let held = speaker(&registry, "a").await.unwrap();
    drop(speaker(&registry, "b").await.unwrap());
    let gone = held.clone();
    registry.expire_at(Instant::now() + TTL / 2);
    assert_eq!((code(&registry, "a"), code(&registry, "b")), ("ready", "ready"));
    registry.expire_at(Instant::now() + TTL);
    assert_eq!((code(&registry, "a"), code(&registry, "voice")), ("ready", "ready"), "in use, and a default");
    // Whoever comes while it leaves gets the next one.
    assert_eq!(code(&registry, "b"), "unloading");
    assert!(speaker(&registry, "b").await.is_ok());
    drop(held);
    registry.expire_at(Instant::now() + TTL);
    until(&registry, "a", "unloaded").await;
    assert!(gone.ready().await.is_err(), "its engine has ended");
    assert!(speaker(&registry, "a").await.is_ok());
    assert_eq!(loads.load(Ordering::SeqCst), 6, "voice, ear, a twice, b twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_request_keeps_its_model_without_a_lease() {
    let (registry, _) = fleet(config());
    let lease = speaker(&registry, "a").await.unwrap();
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
async fn the_budget_makes_the_longest_unused_leave() {
    // 30 for the defaults leave 70 for the others.
    let (registry, loads) = fleet(FleetConfig { memory_budget_bytes: Some(100), ..config() });
    registry.load_defaults();
    until(&registry, "voice", "ready").await;
    until(&registry, "ear", "ready").await;
    for id in ["a", "b", "a"] {
        drop(speaker(&registry, id).await.unwrap());
    }
    assert_eq!(loads.load(Ordering::SeqCst), 4, "a and b fit together");
    let c = speaker(&registry, "c").await.unwrap();
    until(&registry, "b", "unloaded").await;
    assert_eq!((code(&registry, "a"), code(&registry, "c")), ("ready", "ready"), "b was unused for longer");
    // Nothing that is in use leaves: 30 + 40 + 30 are taken.
    let a = speaker(&registry, "a").await.unwrap();
    let error = speaker(&registry, "b").await.unwrap_err();
    assert_eq!((error.code(), error.param()), ("memory_budget", Some("model")));
    let message = error.to_string();
    assert!(message.contains("'b' needs 30 bytes; 100 of the memory budget of 100 bytes"), "{message}");
    assert!(message.ends_with("try again later"), "{message}");
    drop((a, c));
    assert!(speaker(&registry, "b").await.is_ok());
    assert_eq!((code(&registry, "voice"), code(&registry, "ear")), ("ready", "ready"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_fits_is_told_once_and_for_all() {
    let (registry, loads) = fleet(FleetConfig { memory_budget_bytes: Some(39), ..config() });
    let error = speaker(&registry, "c").await.unwrap_err();
    assert!(error.to_string().contains("raise memory_budget_mib"), "{error}");
    assert_eq!(loads.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_ends_after_the_server_is_not_kept() {
    let (registry, gate) = gated(config());
    let asked = tokio::spawn({
        let registry = registry.clone();
        async move { speaker(&registry, "a").await.map(|_| ()) }
    });
    until(&registry, "a", "loading").await;
    registry.close();
    assert_eq!(asked.await.unwrap().unwrap_err().code(), "draining");
    gate.send(()).unwrap();
    assert_eq!(speaker(&registry, "b").await.unwrap_err().code(), "draining");
}

#[test]
fn a_failed_load_is_tried_again_after_a_while() {
    let now = Instant::now();
    let mut books = Books::new(None, None, true);
    books.offer(offer("a", 1), now);
    assert!(matches!(books.request("a", now), Answer::Load(_)));
    assert!(matches!(books.request("a", now), Answer::Wait));
    books.settle("a", Err("no".to_owned()), now);
    assert!(matches!(books.request("a", now + Duration::from_secs(29)), Answer::Refused(_)));
    assert!(matches!(books.request("a", now + Duration::from_secs(30)), Answer::Load(_)));
}

#[tokio::test]
async fn a_model_that_turns_out_too_large_makes_others_leave() {
    let now = Instant::now();
    let mut books = Books::new(Some(100), None, true);
    for (id, bytes) in [("a", 30), ("b", 30), ("c", 30)] {
        books.offer(offer(id, bytes), now);
        assert!(matches!(books.request(id, now), Answer::Load(_)));
        let ready = engine(id);
        ready.ready().await.unwrap();
        books.settle(id, Ok(ready), now + Duration::from_secs(bytes));
    }
    assert!(books.expire(now).is_empty(), "90 of 100");
    // What it is known to take once it has run.
    books.offer(offer("b", 60), now);
    let leaving: Vec<String> = books.expire(now).into_iter().map(|(id, _)| id).collect();
    assert_eq!(leaving, ["a"], "the longest unused of those that may go");
}
