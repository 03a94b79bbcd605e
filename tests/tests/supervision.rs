//! Engines that fail: they are loaded again after a pause, probes tell, and a model is given up in the end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Result, ensure};
use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::{Fault, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, RestartPolicy, ServerConfig};
use izwi_tests::{GUARD, TestServer, eventually};
use serde_json::{Value, json};

const SENTENCE: &str = "This sentence has just enough words to fill more than a chunk.";

/// An engine; one that panics in each step if it is `failing`.
fn engine(name: &str, failing: bool) -> Result<Engine, String> {
    let config = EngineCoreConfig { model: name.to_owned(), num_threads: 1, ..Default::default() };
    let script = Box::new(move |_: &StepPlan| failing.then_some(Fault::Panic));
    let model = SimulatedModel { autoregressive: false, script: Some(script), ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).map_err(|error| error.to_string())
}

async fn probe(server: &TestServer, path: &str) -> Result<(u16, String)> {
    let response = server.get(path).await?;
    let status = response.status().as_u16();
    let body: Value = response.json().await?;
    Ok((status, body["error"]["code"].as_str().unwrap_or("ok").to_owned()))
}

async fn speak(server: &TestServer, model: &str) -> Result<reqwest::Response> {
    server.speech(&json!({"model": model, "input": SENTENCE})).await
}

/// Sends requests until the engine has failed.
async fn kill(server: &TestServer, model: &str) -> Result<()> {
    eventually("the engine to fail", || async { Ok(speak(server, model).await?.status() == 503) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_failed_is_loaded_again() -> Result<()> {
    let (gate, turnstile) = mpsc::channel();
    let (turnstile, loads) = (Mutex::new(turnstile), AtomicUsize::new(0));
    let loader: Loader = Arc::new(move |name: &str| {
        let load = loads.fetch_add(1, Ordering::SeqCst);
        let turnstile = turnstile.lock().unwrap_or_else(PoisonError::into_inner);
        turnstile.recv_timeout(GUARD).map_err(|error| error.to_string())?;
        engine(name, load == 0)
    });
    let restart = RestartPolicy { first_pause: Duration::from_millis(1), ..Default::default() };
    let config =
        RegistryConfig { restart, load_timeout: Duration::from_millis(20), ..RegistryConfig::new("fragile") };
    let registry = Registry::with_loader(config, Vec::new(), loader);
    registry.load_defaults();
    let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
    gate.send(())?;
    eventually("the model", || async { Ok(probe(&server, "/readyz").await?.0 == 200) }).await?;
    kill(&server, "fragile").await?;
    eventually("the reload", || async {
        Ok(probe(&server, "/readyz").await? == (503, "loading".to_owned()))
    })
    .await?;
    let refused = speak(&server, "fragile").await?;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(probe(&server, "/livez").await?, (200, "ok".to_owned()));
    gate.send(())?;
    eventually("the model", || async { Ok(probe(&server, "/readyz").await?.0 == 200) }).await?;
    let response = speak(&server, "fragile").await?;
    assert_eq!(response.status(), 200);
    ensure!(response.bytes().await?.len() > 44);
    assert_eq!(server.metric("izwi_engine_failures_total", &["model=\"fragile\""]).await?, 1.0);
    assert_eq!(server.metric("izwi_engine_restarts_total", &["model=\"fragile\""]).await?, 1.0);
    assert_eq!(server.metric("izwi_models_loaded", &["model=\"fragile\""]).await?, 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_device_gave_up_is_loaded_again_at_once() -> Result<()> {
    let loads = AtomicUsize::new(0);
    let loader: Loader = Arc::new(move |name: &str| {
        let config = EngineCoreConfig { model: name.to_owned(), num_threads: 1, ..Default::default() };
        let is_first = loads.fetch_add(1, Ordering::SeqCst) == 0;
        let script = Box::new(move |_: &StepPlan| is_first.then_some(Fault::Device));
        let model = SimulatedModel { autoregressive: false, script: Some(script), ..Default::default() };
        let executor = SimulatedExecutor::new(&config, model);
        Engine::with_executor(config, Box::new(executor)).map_err(|error| error.to_string())
    });
    let restart = RestartPolicy { first_pause: Duration::from_millis(1), ..Default::default() };
    let registry = Registry::with_loader(
        RegistryConfig { restart, ..RegistryConfig::new("hung-gpu") },
        Vec::new(),
        loader,
    );
    registry.load_defaults();
    let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
    eventually("the model", || async { Ok(probe(&server, "/readyz").await?.0 == 200) }).await?;
    // One step is enough: it is not tried again.
    let failed = speak(&server, "hung-gpu").await?;
    ensure!(failed.status().is_server_error(), "{}", failed.status());
    eventually("the model again", || async { Ok(speak(&server, "hung-gpu").await?.status() == 200) }).await?;
    assert_eq!(server.metric("izwi_engine_failures_total", &["model=\"hung-gpu\""]).await?, 1.0);
    ensure!(server.metric("izwi_device_faults_total", &["device="]).await? >= 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_model_that_keeps_failing_fails_liveness() -> Result<()> {
    let loader: Loader = Arc::new(|name: &str| engine(name, name != "sound"));
    let pause = Duration::from_millis(1);
    let restart =
        RestartPolicy { first_pause: pause, max_pause: pause, max_failures: 2, ..Default::default() };
    let config = RegistryConfig { restart, ..RegistryConfig::new("broken") };
    let offer = |id: &str| Offer { id: id.to_owned(), tasks: Vec::new(), bytes: 0 };
    let registry = Registry::with_loader(config, vec![offer("other"), offer("sound")], loader);
    registry.load_defaults();
    let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
    let given_up = |model: &'static str| {
        let server = &server;
        async move {
            eventually("the model to be given up", || async {
                let response = speak(server, model).await?;
                let has_pause = response.headers().contains_key("retry-after");
                let body: Value = response.json().await?;
                Ok(body["error"]["code"] == "model_unavailable" && !has_pause)
            })
            .await
        }
    };
    given_up("other").await?;
    assert_eq!(probe(&server, "/livez").await?.0, 200, "only default models matter");
    given_up("broken").await?;
    assert_eq!(probe(&server, "/livez").await?, (503, "given_up".to_owned()));
    assert_eq!(probe(&server, "/readyz").await?, (503, "given_up".to_owned()));
    assert_eq!(server.metric("izwi_model_given_up", &["model=\"broken\""]).await?, 1.0);
    assert_eq!(speak(&server, "sound").await?.status(), 200, "other models go on");
    Ok(())
}
