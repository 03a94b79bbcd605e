//! Checks of the models: installed files and their hashes, memory, and the speed of synthesis.

use anyhow::Result;
use izwi_core::engine::executor::explain_device;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};
use izwi_hub::{ModelStatus, Store};

use crate::engine::{self, Loaded, millis};
use crate::interrupt::Interrupt;
use crate::settings::{Resolved, Settings};
use crate::synthesis::{self, Speech};
use crate::{machine, models, output};

use super::finding::Finding;

const SENTENCE: &str = "The quick brown fox jumps over the lazy dog near the river bank.";
/// Playback has gaps above this RTF.
const REAL_TIME: f32 = 1.0;
/// Weights are in memory as loaded, and packed for the CPU kernels.
const COPIES_OF_WEIGHTS: u64 = 2;
/// Memory of the program, its dictionaries and its buffers.
const BASE_BYTES: u64 = 256 << 20;

/// All checks of the models.
pub(super) fn findings(resolved: &Resolved) -> Vec<Finding> {
    let store = match models::open(&resolved.settings) {
        Ok(store) => store,
        Err(error) => {
            return vec![Finding::broken("models", format!("{error:#}"), "correct or remove the manifest")];
        }
    };
    let model = &resolved.settings.engine.model;
    let mut findings = installed(&store, &resolved.settings);
    if let Some(status) =
        store.list().iter().find(|status| status.manifest.name == *model && status.installed)
    {
        findings.push(memory_for(model, status.bytes));
        findings.push(synthesis_speed(resolved));
    }
    // Last: the synthesis may have measured the model's devices.
    findings.extend(devices(&store, resolved));
    findings
}

fn installed(store: &Store, settings: &Settings) -> Vec<Finding> {
    let model = settings.engine.model.as_str();
    let mut findings = Vec::new();
    for status in store.list() {
        let name = &status.manifest.name;
        match store.verify(name) {
            Ok(()) => {
                let from = status.source.as_deref().unwrap_or("an unknown source");
                let detail = format!("{name}: {}, verified, from {from}", output::format_bytes(status.bytes));
                findings.push(Finding::ok("model", detail));
            }
            Err(izwi_hub::HubError::NotInstalled { .. }) if name != model => {}
            Err(izwi_hub::HubError::NotInstalled { .. }) => {
                let detail = format!("{name}: the TTS model is not installed");
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
    if let Some(remote) = settings.remote(model) {
        findings.push(Finding::ok("model", format!("{model}: remote, at {}", remote.place())));
    } else if let Err(error) = store.manifest(model) {
        findings.push(Finding::broken("model", error.to_string(), "correct --model"));
    }
    findings.extend(
        settings
            .pipelines
            .iter()
            .map(|pipeline| Finding::ok("pipeline", format!("{}: {}", pipeline.name(), pipeline.place()))),
    );
    findings
}

/// The device that each installed model would use, and why; nothing on machines without Metal.
fn devices(store: &Store, resolved: &Resolved) -> Vec<Finding> {
    let settings = &resolved.settings;
    let explained = |status: &ModelStatus<'_>| {
        let name = &status.manifest.name;
        let home = Some(settings.home.clone());
        let config = EngineCoreConfig { model: name.clone(), home, ..settings.engine.clone() };
        // A model that is damaged is a finding already.
        let reason = explain_device(&config).ok()??;
        Some(Finding::ok("model device", format!("{name}: {reason}")))
    };
    let installed = |status: &&ModelStatus<'_>| status.installed && !status.manifest.component;
    store.list().iter().filter(installed).filter_map(explained).collect()
}

fn memory_for(model: &str, bytes: u64) -> Finding {
    let need = bytes.saturating_mul(COPIES_OF_WEIGHTS).saturating_add(BASE_BYTES);
    let detail = format!("{model} needs about {}", output::format_bytes(need));
    match machine::memory_bytes() {
        Some((_, available)) if available < need => {
            let detail = format!("{detail}, {} are available", output::format_bytes(available));
            Finding::warning("model memory", detail, "stop other programs, or use a smaller model")
        }
        _ => Finding::ok("model memory", detail),
    }
}

/// Synthesises a sentence twice and reports the faster run; the first one includes one-time costs.
fn synthesis_speed(resolved: &Resolved) -> Finding {
    let measured = engine::run(engine::local_config(resolved), async |loaded| {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let first = sentence(&engine, &mut interrupt).await?;
        let second = sentence(&engine, &mut interrupt).await?;
        let device = engine.profile().device.clone();
        Ok((device, if second.stats.rtf() < first.stats.rtf() { second } else { first }))
    });
    let (device, speech) = match measured {
        Ok(measured) => measured,
        Err(error) => return Finding::broken("speech", format!("{error:#}"), "see the findings above"),
    };
    let rtf = speech.stats.rtf();
    let seconds = speech.stats.audio_duration.as_secs_f64();
    let ttfa = speech.stats.time_to_first_audio.map(millis).unwrap_or_default();
    let detail = format!("{seconds:.2} s on {device}: RTF {rtf:.3}, first audio after {ttfa:.0} ms");
    if rtf > REAL_TIME {
        Finding::warning(
            "speech",
            detail,
            "slower than real time; stop other programs, or use a smaller model",
        )
    } else {
        Finding::ok("speech", detail)
    }
}

async fn sentence(engine: &Engine, interrupt: &mut Interrupt) -> Result<Speech> {
    synthesis::synthesize(engine, EngineCoreRequest::tts(SENTENCE), interrupt, false, async |_| Ok(())).await
}
