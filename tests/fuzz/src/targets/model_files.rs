//! The small files of a checkpoint: settings and tokenizers. The weights alongside them are those of tiny golden models.

use std::path::{Path, PathBuf};

use candle_core::Device;
use izwi_models::families::{LoadOptions, load, tokenize};
use izwi_types::{Input, ListenInput, Precision, PrepareLimits, SpeakInput};
use serde_json::{Value, json};

use crate::corpus::{file, repository};
use crate::{Target, scratch};

/// One settings file of a model, the rest of which is whole.
pub(super) const CONFIGS: Target =
    Target { name: "model_configs", run: configure, seeds: configs, max_bytes: 8 << 10 };
/// A tokenizer, and texts for it.
pub(super) const TOKENIZERS: Target =
    Target { name: "tokenizers", run: read_tokenizer, seeds: tokenizers, max_bytes: 4 << 10 };

/// A `config.yaml`, which is read by a parser of its own.
pub(super) const CONFIGS_IN_YAML: Target = Target {
    name: "config_yaml",
    run: |bytes| YAML.iter().for_each(|which| configure(&[&[*which], bytes].concat())),
    seeds: || {
        configs().into_iter().filter(|seed| YAML.contains(&seed[0])).map(|seed| seed[1..].to_vec()).collect()
    },
    max_bytes: 8 << 10,
};
/// A `tokenizer.model`, which is a message of protocol buffers.
pub(super) const SENTENCEPIECE: Target = Target {
    name: "tokenizer_model",
    run: |bytes| read_tokenizer(&[&[3], bytes].concat()),
    seeds: || vec![sentencepiece()],
    max_bytes: 4 << 10,
};

/// Family, folder and settings file.
const FILES: [(&str, &str, &str); 14] = [
    ("qwen3_tts", "tests/golden/qwen3_tts/base17", "config.json"),
    ("qwen3_tts", "tests/golden/qwen3_tts/base17", "speech_tokenizer/config.json"),
    ("lfm2_audio", "tests/golden/lfm2_audio", "config.json"),
    ("lfm2_audio", "tests/golden/lfm2_audio", "audio_detokenizer/config.json"),
    ("qwen3_tts", "tests/golden/qwen3_tts/cv06", "config.json"),
    ("qwen3_tts", "tests/golden/qwen3_tts/cv06", "generation_config.json"),
    ("pocket_tts", "tests/golden/pocket_tts/lsd", "config.yaml"),
    ("pocket_tts", "tests/golden/pocket_tts/pointwise", "config.yaml"),
    ("kokoro", "tests/golden/kokoro", "config.json"),
    ("voxtral", "tests/golden/voxtral", "config.json"),
    ("parakeet", "tests/golden/parakeet/tdt/hf", "config.json"),
    ("parakeet", "tests/golden/parakeet/stream/hf", "config.json"),
    ("parakeet", "tests/golden/parakeet/stream/hf", "processor_config.json"),
    ("qwen3_asr", "tests/golden/qwen3_asr/asr06", "config.json"),
];

/// Those of [`FILES`] that are YAML.
const YAML: [u8; 2] = [6, 7];

fn configs() -> Vec<Vec<u8>> {
    let seed = |(index, (_, folder, name)): (usize, &(&str, &str, &str))| {
        let text = file(&format!("{folder}/{name}"));
        // JSON without white space: shorter inputs are mutated better.
        let compact = serde_json::from_slice::<Value>(&text).map(|value| value.to_string().into_bytes());
        [&[index as u8], &compact.unwrap_or(text)[..]].concat()
    };
    FILES.iter().enumerate().map(seed).collect()
}

/// The first byte chooses the file, the rest is its content.
fn configure(bytes: &[u8]) {
    let Some((which, content)) = bytes.split_first() else { return };
    let (family, model, name) = FILES[usize::from(*which) % FILES.len()];
    let folder = beside_links(model, name);
    std::fs::write(folder.join(name), content).unwrap();
    let options = LoadOptions::new(Device::Cpu, Precision::F32);
    let Ok(model) = load(family, &folder, &options) else { return };
    let limits = PrepareLimits { max_tokens_per_step: 512, max_positions: 4_096 };
    let inputs = [
        Input::Speak(SpeakInput::plain("A bird.")),
        Input::Listen(ListenInput::plain(vec![0.0; 1_600].into())),
    ];
    for input in &inputs {
        let _ = model.prepare(input, &limits);
    }
}

/// A folder with links to the files of a model, but for `name`.
fn beside_links(model: &str, name: &str) -> PathBuf {
    let folder = scratch::path(&format!("{model}/{}", name.replace('/', "-")));
    if !folder.exists() {
        link_all(&repository().join(model), &folder);
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    folder
}

fn link_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            link_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Family, file, and tokens of the network.
const TOKENIZER_FILES: [(&str, &str, usize); 6] = [
    ("whisper", "tokenizer.json", 70_000),
    ("qwen3_tts", "tokenizer.json", 70_000),
    ("lfm2_audio", "tokenizer.json", 70_000),
    ("pocket_tts", "tokenizer.model", PIECES.len()),
    ("voxtral", "tekken.json", 70_000),
    ("qwen3_asr", "tokenizer.json", 70_000),
];
/// Pieces of a SentencePiece model: text, score, type.
const PIECES: [(&str, f32, u8); 9] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("\u{2581}A", -1.5, 1),
    ("\u{2581}bird", -2.0, 1),
    ("\u{2581}", -3.0, 1),
    ("s", -4.0, 1),
    ("ing", -3.5, 1),
    ("<0x2E>", 0.0, 6),
    ("<own>", 0.0, 4),
];
const TEXTS: [&str; 4] = ["A bird sings.", "Ünï — 東京 👩‍👩‍👧\u{fffd}\n\t  x", "<|im_start|>a<|endoftext|>", ""];

fn tokenizers() -> Vec<Vec<u8>> {
    let special = |name: &str, id: u32| {
        json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let tokenizer = |added: Vec<Value>, normalizer: Value, splitter: Value| {
        let vocabulary =
            json!({"a": 8, "b": 9, "i": 10, "r": 11, "d": 12, "ir": 13, "ird": 14, "Ġ": 15, "A": 16});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocabulary, "merges": ["i r", "ir d"]},
        });
        tokenizer.to_string().into_bytes()
    };
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)| "}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    let names = [
        "endoftext",
        "startoftranscript",
        "transcribe",
        "translate",
        "startofprev",
        "nospeech",
        "notimestamps",
        "en",
    ];
    let whisper = names.iter().zip(20..).map(|(name, id)| special(&format!("<|{name}|>"), id)).collect();
    let lfm = [("startoftext", 1), ("im_start", 6), ("im_end", 7), ("audio_start", 128), ("text_end", 130)];
    let lfm = lfm.map(|(name, id)| special(&format!("<|{name}|>"), id)).into();
    let qwen =
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<asr_text>"];
    let qwen = qwen.iter().zip(20..).map(|(name, id)| special(name, id)).collect();
    let seeds: [(u8, Vec<u8>); 6] = [
        (0, tokenizer(whisper, Value::Null, bytes.clone())),
        (1, tokenizer(vec![special("<|im_start|>", 3)], json!({"type": "NFC"}), split.clone())),
        (2, tokenizer(lfm, Value::Null, bytes)),
        (3, sentencepiece()),
        (4, tekken()),
        (5, tokenizer(qwen, json!({"type": "NFC"}), split)),
    ];
    seeds.map(|(family, text)| [&[family], &text[..]].concat()).into()
}

/// A `ModelProto` of [`PIECES`] that spells unknown characters by bytes, and normalises white space.
fn sentencepiece() -> Vec<u8> {
    let message = |field: u8, content: &[u8]| [&[field << 3 | 2, content.len() as u8], content].concat();
    let piece = |(text, score, kind): &(&str, f32, u8)| {
        let score = [&[2 << 3 | 5], &score.to_le_bytes()[..]].concat();
        message(1, &[message(1, text.as_bytes()), score, vec![3 << 3, *kind]].concat())
    };
    let pieces = PIECES.iter().flat_map(piece);
    // Model type 1 in field 3, byte fallback in field 35 of the trainer; flags 3 to 5 of the normaliser.
    let trainer = message(2, &[3 << 3, 1, 0x98, 0x02, 1]);
    let normaliser = message(3, &[3 << 3, 1, 4 << 3, 1, 5 << 3, 1]);
    pieces.chain(trainer).chain(normaliser).collect()
}

/// A `tekken.json` of the letters of a prompt and one pair.
fn tekken() -> Vec<u8> {
    let names = ["<s>", "</s>", "[INST]", "[/INST]", "[BEGIN_AUDIO]", "[TRANSCRIBE]"];
    let special = |(rank, name): (usize, &&str)| json!({"rank": rank, "token_str": name, "is_control": true});
    let special: Vec<Value> = names.iter().enumerate().map(special).collect();
    // The letters l, a, n, g, the colon, and "an".
    let pieces = ["bA==", "YQ==", "bg==", "Zw==", "Og==", "YW4="];
    let piece =
        |(rank, bytes): (usize, &&str)| json!({"rank": rank, "token_bytes": bytes, "token_str": null});
    let pieces: Vec<Value> = pieces.iter().enumerate().map(piece).collect();
    let config = json!({"default_vocab_size": 12, "default_num_special_tokens": 6});
    json!({"config": config, "vocab": pieces, "special_tokens": special}).to_string().into_bytes()
}

/// The first byte chooses the family, the rest is its tokenizer.
fn read_tokenizer(bytes: &[u8]) {
    let Some((which, content)) = bytes.split_first() else { return };
    let (family, name, size) = TOKENIZER_FILES[usize::from(*which) % TOKENIZER_FILES.len()];
    let path = scratch::file(&format!("tokenizer-{family}/{name}"), content);
    let folder = path.parent().expect("a file lies in a folder");
    for text in TEXTS {
        let ids = tokenize(family, folder, size, text);
        let Ok(ids) = ids else { return };
        assert!(ids.iter().all(|id| (*id as usize) < size), "a token beyond the network: {ids:?}");
        assert!(ids.len() <= 4_096 + 64 * text.len(), "{} tokens of {text:?}", ids.len());
    }
}
