"""Tiny random checkpoints in the layouts of larger Whispers, and what transformers computes with them.

Run from the repository root, in a virtual environment with scripts/golden/requirements.txt installed:

    python -P scripts/golden/whisper_layouts.py

Writes a folder for each layout into tests/golden/whisper/layouts/: a checkpoint as publishers ship it, and golden.json.
tests/golden/whisper/README.md says what it holds.
"""

import json
import math
import wave
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from whisper.tokenizer import LANGUAGES

OUT = Path("tests/golden/whisper/layouts")
SPEECH = Path("assets/speech")
CLIPS = ["jfk", "sense_and_sensibility_01_austen_64kb-0880"]
RATE = 16000
TIMESTAMPS = 1501
WIDTH, HIDDEN, TOKENS = 32, 48, 24
ENCODER_FRAME_STEP, LOGITS_STEP = 97, 23
# Encoder layers and heads, decoder layers and heads, mel bins, languages.
LAYOUTS = {
    "large-v3": (4, 4, 4, 4, 128, 100),
    "turbo": (6, 4, 4, 2, 128, 100),
    "distil": (4, 2, 2, 1, 80, 99),
}


def specials(languages):
    """The special tokens in the order of openai-whisper's tokenizer."""
    names = ["endoftext", "startoftranscript", *languages, "translate", "transcribe"]
    names += ["startoflm", "startofprev", "nospeech", "notimestamps"]
    return [f"<|{name}|>" for name in names]


def tokenizer(folder, languages):
    """Bytes and special tokens; as in published files of some models, timestamps are not listed."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: id for id, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in specials(languages)])
    made.save(str(folder / "tokenizer.json"), pretty=False)
    return made


def network(layout, ids, vocabulary):
    encoder_layers, encoder_heads, decoder_layers, decoder_heads, bins, _ = layout
    special = {"eos_token_id": ids["<|endoftext|>"], "decoder_start_token_id": ids["<|startoftranscript|>"]}
    special |= {"pad_token_id": ids["<|endoftext|>"], "bos_token_id": ids["<|endoftext|>"]}
    config = WhisperConfig(
        vocab_size=vocabulary,
        num_mel_bins=bins,
        d_model=WIDTH,
        encoder_layers=encoder_layers,
        encoder_attention_heads=encoder_heads,
        encoder_ffn_dim=HIDDEN,
        decoder_layers=decoder_layers,
        decoder_attention_heads=decoder_heads,
        decoder_ffn_dim=HIDDEN,
        suppress_tokens=[],
        begin_suppress_tokens=[0, special["eos_token_id"]],
        **special,
    )
    net = WhisperForConditionalGeneration(config).eval()
    for name, weight in net.named_parameters():
        if name.endswith("encoder.embed_positions.weight"):
            continue
        fan_in = math.prod(weight.shape[1:]) if weight.dim() > 1 else 1
        if "norm" in name:
            weight.data = 1.0 + 0.2 * torch.randn(weight.shape) if name.endswith("weight") else 0.1 * torch.randn(weight.shape)
        elif weight.dim() == 1:
            weight.data = 0.1 * torch.randn(weight.shape)
        elif "embed" in name:
            weight.data = 0.6 * torch.randn(weight.shape)
        else:
            weight.data = 1.6 / math.sqrt(fan_in) * torch.randn(weight.shape)
    # As stored.
    net.half().float()
    net.tie_weights()
    return net


def recording(name):
    with wave.open(str(SPEECH / f"{name}.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def generate(net, encoded, prompt, rules):
    """Greedy tokens under the published rules, and the raw logits."""
    ids, raw = list(prompt), []
    while len(ids) < len(prompt) + TOKENS and (len(ids) == len(prompt) or ids[-1] != net.config.eos_token_id):
        tokens = torch.tensor([ids])
        logits = net(encoder_outputs=(encoded,), decoder_input_ids=tokens).logits[0, -1]
        raw.append(logits[::LOGITS_STEP].tolist())
        ids.append(int(rules(tokens, logits[None].clone())[0].argmax()))
    return ids[len(prompt) :], raw


def golden(name, layout):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    codes = list(LANGUAGES)[: layout[-1]]
    made = tokenizer(folder, codes)
    ids = {token: made.token_to_id(token) for token in specials(codes)}
    vocabulary = made.get_vocab_size() + TIMESTAMPS
    net = network(layout, ids, vocabulary)
    languages = {code: ids[f"<|{code}|>"] for code in codes}
    generation = {
        "is_multilingual": True,
        "alignment_heads": [[layout[2] - 1, 0]],
        "suppress_tokens": [1, 2, *(ids[f"<|{token}|>"] for token in ("startoflm", "nospeech"))],
        "begin_suppress_tokens": [0, ids["<|endoftext|>"]],
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "max_initial_timestamp_index": 50,
    }
    rules_config = GenerationConfig.from_dict(
        generation | {"eos_token_id": ids["<|endoftext|>"], "bos_token_id": ids["<|endoftext|>"]}
    )
    shown = net.config.to_dict()
    keep = ["num_mel_bins", "d_model", "vocab_size", "max_source_positions", "max_target_positions"]
    keep += [f"{side}_{what}" for side in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")]
    (folder / "config.json").write_text(json.dumps({key: shown[key] for key in keep}, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
    state = {key: value.half().contiguous() for key, value in net.state_dict().items() if key != "proj_out.weight"}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    extractor = WhisperFeatureExtractor(feature_size=layout[4])
    # All tokens that only prompts contain are suppressed, as openai-whisper does.
    prompts = [ids[f"<|{token}|>"] for token in ("startoftranscript", "translate", "transcribe", "startofprev", "notimestamps")]
    cases = []
    for clip in CLIPS:
        mel = extractor(recording(clip), sampling_rate=RATE, return_tensors="pt").input_features
        encoded = net.model.encoder(mel).last_hidden_state
        start = torch.tensor([[ids["<|startoftranscript|>"]]])
        logits = net(encoder_outputs=(encoded,), decoder_input_ids=start).logits[0, -1]
        probabilities = torch.softmax(logits[list(languages.values())].double(), 0)
        best = int(probabilities.argmax())
        language = codes[best]
        case = {"clip": clip, "encoder": encoded[0, ::ENCODER_FRAME_STEP].flatten().tolist()}
        case |= {"language": language, "probability": float(probabilities[best]), "tasks": []}
        for task in ("transcribe", "translate"):
            prompt = [ids["<|startoftranscript|>"], languages[language], ids[f"<|{task}|>"]]
            rules = LogitsProcessorList(
                [
                    SuppressTokensLogitsProcessor([*generation["suppress_tokens"], *prompts]),
                    SuppressTokensAtBeginLogitsProcessor(generation["begin_suppress_tokens"], len(prompt)),
                    WhisperTimeStampLogitsProcessor(rules_config, len(prompt)),
                ]
            )
            tokens, raw = generate(net, encoded, prompt, rules)
            case["tasks"].append({"task": task, "prompt": prompt, "tokens": tokens, "logits": raw})
            print(name, clip, language, f"{case['probability']:.3f}", task, tokens)
        cases.append(case)
    text = json.dumps(
        {"encoder_frame_step": ENCODER_FRAME_STEP, "logits_step": LOGITS_STEP, "languages": len(codes), "clips": cases}
    )
    rounded = json.loads(text, parse_float=lambda value: round(float(value), 5))
    (folder / "golden.json").write_text(json.dumps(rounded, separators=(",", ":")) + "\n")


def main():
    with torch.no_grad():
        for seed, (name, layout) in enumerate(LAYOUTS.items()):
            torch.manual_seed(seed + 3)
            golden(name, layout)


if __name__ == "__main__":
    main()
