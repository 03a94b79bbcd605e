//! Findings about models and speech: what is installed and whole, whether memory suffices, and how fast a sentence is
//! spoken here.

use anyhow::Result;
use izwi_core::engine::{Engine, EngineCoreRequest};
use izwi_core::hub::Store;

use crate::interrupt::Interrupt;
use crate::settings::Resolved;
use crate::speech::{self, Spoken};
use crate::{models, output};

use super::{Finding, machine};

const SENTENCE: &str = "The quick brown fox jumps over the lazy dog near the river bank.";
/// Above this a listener hears gaps.
const REAL_TIME: f32 = 1.0;
/// Weights are kept once as they came and once packed for the processor.
const COPIES_OF_WEIGHTS: u64 = 2;
/// What the program, its dictionaries and its buffers take beside weights.
const BASE_BYTES: u64 = 256 << 20;

/// Everything about speaking.
pub(super) fn findings(resolved: &Resolved) -> Vec<Finding> {
    let store = match models::open(&resolved.settings) {
        Ok(store) => store,
        Err(error) => {
            return vec![Finding::broken("models", format!("{error:#}"), "correct or remove the manifest")];
        }
    };
    let model = &resolved.settings.engine.model;
    let mut findings = installed(&store, model);
    if let Some(status) =
        store.list().iter().find(|status| status.manifest.name == *model && status.installed)
    {
        findings.push(memory_for(model, status.bytes));
        findings.push(spoken(resolved));
    }
    findings
}

fn installed(store: &Store, model: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for status in store.list() {
        let name = &status.manifest.name;
        match store.verify(name) {
            Ok(()) => {
                let from = status.source.as_deref().unwrap_or("an unknown source");
                let detail = format!("{name}: {}, whole, from {from}", output::bytes(status.bytes));
                findings.push(Finding::ok("model", detail));
            }
            Err(izwi_core::hub::HubError::NotInstalled { .. }) if name != model => {}
            Err(izwi_core::hub::HubError::NotInstalled { .. }) => {
                let detail = format!("{name}: the model that speaks is not installed");
                findings.push(Finding::broken("model", detail, format!("izwi pull {name}")));
            }
            Err(error) => {
                let detail = format!("{error}");
                let remedy = format!("izwi rm --yes {name} && izwi pull {name}");
                let finding = if name == model { Finding::broken } else { Finding::warning };
                findings.push(finding("model", detail, remedy));
            }
        }
    }
    if let Err(error) = store.manifest(model) {
        findings.push(Finding::broken("model", error.to_string(), "correct --model"));
    }
    findings
}

fn memory_for(model: &str, bytes: u64) -> Finding {
    let need = bytes.saturating_mul(COPIES_OF_WEIGHTS).saturating_add(BASE_BYTES);
    let detail = format!("{model} needs about {}", output::bytes(need));
    match machine::memory_bytes() {
        Some((_, available)) if available < need => {
            let detail = format!("{detail}, {} are available", output::bytes(available));
            Finding::warning("model memory", detail, "end other programs, or use a smaller model")
        }
        _ => Finding::ok("model memory", detail),
    }
}

/// Speaks a sentence twice and tells the better run, which no first use slows down.
fn spoken(resolved: &Resolved) -> Finding {
    let config = speech::engine_config(resolved);
    speech::start_threads(config.num_threads);
    let measured = speech::runtime().and_then(|runtime| {
        let measured = runtime.block_on(async {
            let mut interrupt = Interrupt::listen()?;
            let engine = speech::load(config, &mut interrupt).await?;
            let first = sentence(&engine, &mut interrupt).await?;
            let second = sentence(&engine, &mut interrupt).await?;
            let device = engine.profile().device.clone();
            Ok((device, if second.stats.rtf() < first.stats.rtf() { second } else { first }))
        });
        runtime.shutdown_background();
        measured
    });
    let (device, spoken) = match measured {
        Ok(measured) => measured,
        Err(error) => return Finding::broken("speech", format!("{error:#}"), "see the findings above"),
    };
    let rtf = spoken.stats.rtf();
    let seconds = spoken.stats.audio_duration.as_secs_f64();
    let ttfa = spoken.stats.time_to_first_audio.map(speech::millis).unwrap_or_default();
    let detail = format!("{seconds:.2} s on {device}: RTF {rtf:.3}, first audio after {ttfa:.0} ms");
    if rtf > REAL_TIME {
        Finding::warning(
            "speech",
            detail,
            "slower than it is heard; free the processor, or use a smaller model",
        )
    } else {
        Finding::ok("speech", detail)
    }
}

async fn sentence(engine: &Engine, interrupt: &mut Interrupt) -> Result<Spoken> {
    speech::speak(engine, EngineCoreRequest::tts(SENTENCE), interrupt, false, |_| Ok(())).await
}
