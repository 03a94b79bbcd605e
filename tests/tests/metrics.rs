//! `/metrics` and `/health` after some traffic.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use izwi_tests::{Gate, Setup, eventually};
use serde_json::{Value, json};

/// Every documented series.
const NAMES: [&str; 42] = [
    "izwi_requests_total",
    "izwi_requests_rejected_total",
    "izwi_num_requests_running",
    "izwi_num_requests_waiting",
    "izwi_kv_cache_usage_ratio",
    "izwi_kv_cache_blocks",
    "izwi_rtf",
    "izwi_time_to_first_audio_seconds",
    "izwi_inter_chunk_seconds",
    "izwi_e2e_request_latency_seconds",
    "izwi_request_queue_seconds",
    "izwi_prefill_seconds",
    "izwi_step_seconds",
    "izwi_device_wait_seconds",
    "izwi_step_error_ratio",
    "izwi_predicted_first_audio_seconds",
    "izwi_first_audio_error_seconds",
    "izwi_playback_slack_seconds",
    "izwi_audio_underruns_total",
    "izwi_batch_size",
    "izwi_audio_seconds_total",
    "izwi_prompt_tokens_total",
    "izwi_generated_tokens_total",
    "izwi_audio_underrun_seconds",
    "izwi_audio_continuity_ok_total",
    "izwi_num_preemptions_total",
    "izwi_prefix_cache_queries_total",
    "izwi_prefix_cache_hits_total",
    "izwi_preschedule_used_total",
    "izwi_preschedule_discarded_total",
    "izwi_aborts_total",
    "izwi_build_info",
    "izwi_models_loaded",
    "izwi_engine_failures_total",
    "izwi_engine_restarts_total",
    "izwi_model_given_up",
    "izwi_connections",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
];
/// Series that exist only after something rare.
const RARE: [&str; 3] = ["izwi_jobs", "izwi_jobs_ended_total", "izwi_sessions_detached"];
const TEXT: &str = "Twenty-two characters.";

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_series_exists_after_traffic() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start >= 30));
    let setup = Setup::tokens("measured").script(script);
    let server = setup.server(|server| server.resume_window = Duration::ZERO).start().await?;
    let mut leaver = server.session().await?;
    leaver.send(json!({"type": "speak", "text": TEXT})).await?;
    leaver.expect("session.created").await?;
    leaver.expect("audio.start").await?;
    drop(leaver);
    server.assert_no_sessions().await?;
    gate.open();
    server.assert_balanced().await?;
    for _ in 0..3 {
        server.session().await?.speak(TEXT).await?;
    }
    assert_eq!(server.speech(&json!({"model": "tts-1", "input": ""})).await?.status(), 400);
    server.assert_balanced().await?;

    let page = server.page("/metrics").await?;
    for name in NAMES {
        let series = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let rest =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| rest.strip_prefix(end)).unwrap_or(rest);
            rest.starts_with(['{', ' ']).then_some(())
        };
        assert!(page.lines().any(|line| series(line).is_some()), "{name} is missing from\n{page}");
    }
    let model = "model=\"measured\"";
    let stopped = [model, "task=\"tts\"", "finish_reason=\"stop\""];
    assert_eq!(server.metric("izwi_requests_total", &stopped).await?, 3.0);
    // An aborted request has no real-time factor.
    assert_eq!(server.metric("izwi_rtf_count", &[model]).await?, 3.0);
    for bound in [".05", ".1", ".25", ".5", ".75", ".9", "1", "1.25", "1.5", "2", "5", "10", "+Inf"] {
        let bound = format!("le=\"{}{bound}\"", if bound.starts_with('.') { "0" } else { "" });
        let line = page.lines().find(|line| {
            line.starts_with("izwi_rtf_bucket") && line.contains(model) && line.contains(&bound)
        });
        assert!(line.is_some(), "izwi_rtf has no bucket {bound}");
    }
    assert!(!page.contains("quantile="), "percentiles are not gauges");
    Ok(())
}

#[test]
fn alert_rules_and_dashboard_name_documented_series() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/monitoring");
    for file in ["alerts.yml", "grafana.json"] {
        let text = std::fs::read_to_string(folder.join(file)).context(file)?;
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let mut named: Vec<&str> = words
            .filter(|word| word.starts_with("izwi_") || word.starts_with("process_"))
            .map(|word| {
                ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word)
            })
            .collect();
        named.sort_unstable();
        named.dedup();
        assert!(named.len() > 5, "{file} names {named:?}");
        for name in named {
            assert!(NAMES.contains(&name) || RARE.contains(&name), "{file}: nothing documents {name}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn health_reports_models_and_load() -> Result<()> {
    let server = Setup::tokens("healthy").start().await?;
    server.session().await?.speak(TEXT).await?;
    eventually("the numbers", || async {
        let health: Value = server.get("/health").await?.json().await?;
        let model = &health["models"]["healthy"];
        Ok(model["statistics"]["total_requests"] == 1 && model["running"] == 0)
    })
    .await?;
    let health: Value = server.get("/health").await?.json().await?;
    assert_eq!(health["status"], "ok");
    let model = &health["models"]["healthy"];
    assert_eq!((&model["state"], &model["device"]), (&json!("ready"), &json!("simulated")));
    assert_eq!((&model["kv"]["total_blocks"], &model["kv"]["used_blocks"]), (&json!(1024), &json!(0)));
    let statistics = model["statistics"].as_object().context("statistics")?;
    for name in ["p50_latency_ms", "p99_latency_ms", "avg_rtf", "tokens_per_second"] {
        assert!(statistics[name].is_number(), "{name}");
    }
    Ok(())
}
