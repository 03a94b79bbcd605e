//! Voice packs: saved, listed, read, and taken by the model that they claim to be of.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::Device;
use izwi_hub::{VoiceNotes, VoiceStore};
use izwi_models::families::{LoadOptions, load};
use izwi_models::model::SpeechModel;
use izwi_types::{Precision, VoiceRecording};
use safetensors::tensor::{Dtype, TensorView};

use crate::Target;
use crate::corpus::repository;
use crate::scratch;

pub(super) const TARGET: Target = Target { name: "voice_pack", run, seeds, max_bytes: 4 << 10 };

/// A tiny model that clones voices.
const MODEL: &str = "tests/golden/qwen3_tts/base17";

thread_local! {
    static CLONER: Arc<dyn SpeechModel> = {
        let options = LoadOptions::new(Device::Cpu, Precision::F32);
        load("qwen3_tts", &repository().join(MODEL), &options).expect("the golden model")
    };
}

fn seeds() -> Vec<Vec<u8>> {
    let recording = VoiceRecording {
        samples: (0..12_000).map(|at| (at as f32 * 0.05).sin() * 0.3).collect(),
        text: Some("A bird sings.".to_owned()),
        timbre_only: false,
    };
    let short = VoiceRecording { timbre_only: true, ..recording.clone() };
    let own = CLONER.with(|model| [recording, short].map(|recording| model.make_voice(&recording).unwrap()));
    let notes = [("format", "izwi-voice-1"), ("model", "m"), ("family", "f"), ("created", "c")];
    let notes = notes.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let bytes = [1, 2, 3, 4];
    let tensor = TensorView::new(Dtype::U8, vec![4], &bytes).unwrap();
    let plain = safetensors::serialize([("speaker", tensor)], Some(HashMap::from(notes))).unwrap();
    own.into_iter().chain([plain]).collect()
}

/// What can be saved can be read back, and a pack that the model takes can be used.
fn run(bytes: &[u8]) {
    let store = VoiceStore::at(scratch::path("voices"));
    let notes = VoiceNotes { made_by: Some("fuzz".to_owned()), text: None };
    let saved = store.save("any", bytes, &notes, true);
    if let Ok(saved) = saved {
        let (voice, pack) = store.read("any").expect("a saved voice can be read");
        assert_eq!(voice, saved);
        let _ = CLONER.with(|model| model.check_voice(&pack));
    }
    scratch::file("voices/other.safetensors", bytes);
    let _ = store.read("other");
    let _ = store.list();
    let _ = CLONER.with(|model| model.check_voice(bytes));
}
