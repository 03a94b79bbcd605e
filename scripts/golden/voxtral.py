"""Reference data for the voxtral family: writes tests/golden/voxtral/.

Run from the repository root, in a virtual environment with scripts/golden/requirements-voxtral.txt installed:

    python -P scripts/golden/voxtral.py

A tiny checkpoint with random weights in the layout of mistralai/Voxtral-Mini-3B-2507. transformers runs its network and its
feature extractor, mistral-common makes the prompts. tests/golden/voxtral/README.md says what each file holds.
"""

import base64
import io
import json
import wave
from pathlib import Path

import numpy as np
import torch
from mistral_common.protocol.instruct.chunk import RawAudio
from mistral_common.protocol.transcription.request import TranscriptionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from safetensors.torch import save_file
from transformers import VoxtralConfig, VoxtralForConditionalGeneration, WhisperFeatureExtractor

OUT = Path("tests/golden/voxtral")
RATE = 16000
CLIP_S = 4
NEW_TOKENS = 12
SPECIAL = 40
MERGES = ["la", "ng", "lang", "en", ":e", ":en", " a", "th", " th", " the", "in", "er"]
NAMES = {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]"}
NAMES |= {token["rank"]: token["token_str"] for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS}
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
AUDIO = {
    "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16,
    "num_key_value_heads": 2, "num_mel_bins": 128, "max_source_positions": 1500, "vocab_size": 51866,
    "activation_function": "gelu", "scale_embedding": False,
}  # fmt: skip
TEXT = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": SPECIAL + 256 + len(MERGES), "rms_norm_eps": 1e-05, "rope_theta": 100000000.0,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def write_tokenizer():
    """A byte-level vocabulary with some merges, in the layout of tekken.json."""
    pieces = [bytes([byte]) for byte in range(256)] + [merge.encode() for merge in MERGES]
    names = [NAMES.get(rank, f"<SPECIAL_{rank}>") for rank in range(SPECIAL)]
    tokenizer = {
        "config": {
            "pattern": PATTERN, "num_vocab_tokens": len(pieces), "default_vocab_size": SPECIAL + len(pieces),
            "default_num_special_tokens": SPECIAL, "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
            for rank, piece in enumerate(pieces)
        ],
        "special_tokens": [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)],
        "audio": {
            "sampling_rate": RATE, "frame_rate": 12.5, "chunk_length_s": 30.0,
            "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
        },
    }  # fmt: skip
    (OUT / "tekken.json").write_text(json.dumps(tokenizer) + "\n")


def prompt(samples, language):
    """The tokens of a transcription request, as mistral-common makes them."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    audio = RawAudio(data=base64.b64encode(buffer.getvalue()).decode(), format="wav")
    request = TranscriptionRequest(model="voxtral", audio=audio, language=language)
    return MistralTokenizer.from_file(str(OUT / "tekken.json")).encode_transcription(request).tokens


def build():
    torch.manual_seed(8)
    config = VoxtralConfig(audio_config=AUDIO, text_config=TEXT, audio_token_id=24, projector_hidden_act="gelu")
    model = VoxtralForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and "embed_positions" not in name:
                fan_in = parameter[0].numel() if "embed" not in name else 1
                parameter.normal_(0, 1.2 / fan_in**0.5)
            elif "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
    return model


def published_names(state):
    """The names of the published files."""
    names = {}
    for name, tensor in state.items():
        name = name.removeprefix("model.")
        if name.startswith("language_model.") and not name.startswith("language_model.model."):
            name = name.replace("language_model.", "language_model.model.", 1)
        names["language_model.lm_head.weight" if name == "lm_head.weight" else name] = tensor.contiguous().clone()
    return names


def main():
    (OUT / "goldens").mkdir(parents=True, exist_ok=True)
    write_tokenizer()
    with wave.open("assets/speech/jfk.wav") as file:
        samples = np.frombuffer(file.readframes(CLIP_S * RATE), "<i2").astype(np.float32) / 32768
    model = build()
    save_file(published_names(model.state_dict()), OUT / "model.safetensors")
    config = {
        "architectures": ["VoxtralForConditionalGeneration"], "model_type": "voxtral", "audio_token_id": 24,
        "projector_hidden_act": "gelu", "audio_config": AUDIO, "text_config": TEXT,
    }  # fmt: skip
    (OUT / "config.json").write_text(json.dumps(config, indent=1) + "\n")

    extractor = WhisperFeatureExtractor(feature_size=128)
    features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    texts, tensors = {}, {"features": features[0, :, : CLIP_S * 100 : 7].contiguous()}
    for language in (None, "en"):
        name = language or "any"
        tokens = prompt(samples, language)
        inputs = {"input_ids": torch.tensor([tokens]), "input_features": features}
        with torch.no_grad():
            if language is None:
                tensors["audio"] = model.get_audio_features(features, return_dict=True).pooler_output[::25].contiguous()
            tensors[f"logits.{name}"] = model(**inputs).logits[0, -1].contiguous()
            made = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=11)
            generated = made[0, -NEW_TOKENS:].tolist()
            whole = torch.tensor([tokens + generated[:-1]])
            steps = model(input_ids=whole, input_features=features).logits[0, len(tokens) - 1 :]
        best = steps.topk(2).values
        margins = (best[:, 0] - best[:, 1]).tolist()
        texts[name] = {"prompt": tokens, "generated": generated, "margins": margins}
        print(name, len(tokens), generated, [round(margin, 3) for margin in margins])
    save_file(tensors, OUT / "goldens" / "network.safetensors")
    (OUT / "goldens" / "generate.json").write_text(json.dumps(texts) + "\n")


main()
