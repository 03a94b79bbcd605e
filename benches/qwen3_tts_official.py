#!/usr/bin/env python3
"""Frames per second of the official Qwen3-TTS implementation, for comparison with `izwi bench`.

  qwen3_tts_official.py CHECKPOINT [--dtype bfloat16] [--threads 2] [--tokens 60] [--rounds 3]

Prints one line of JSON. `language_model_frames_per_s` leaves the codec out, `frames_per_s` is all of it. Needs the packages
of `scripts/golden/requirements-qwen3_tts.txt`; a checkpoint of the published size with random weights is written by
`scripts/golden/qwen3_tts.py --size real`.
"""
import argparse, json, statistics, time

import torch
from qwen_tts import Qwen3TTSModel

TEXT = "The north wind and the sun disputed which was the stronger when a traveller came along in a warm cloak."

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--tokens", type=int, default=60)
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()

torch.set_num_threads(options.threads)
model = Qwen3TTSModel.from_pretrained(options.checkpoint, dtype=getattr(torch, options.dtype), attn_implementation="sdpa")
codec = model.model.speech_tokenizer
decode, decoding = codec.decode, []


def timed_decode(*args, **kwargs):
    begun = time.perf_counter()
    made = decode(*args, **kwargs)
    decoding.append(time.perf_counter() - begun)
    return made


codec.decode = timed_decode
speaker = next(iter(model.model.config.talker_config.spk_id))
whole, alone, codecs = [], [], []
for round in range(options.rounds + 1):
    decoding.clear()
    begun = time.perf_counter()
    with torch.inference_mode():
        wavs, rate = model.generate_custom_voice(
            text=TEXT, speaker=speaker, language="English", max_new_tokens=options.tokens + 1)
    seconds, frames = time.perf_counter() - begun, len(wavs[0]) / 1920
    if round > 0:  # the first warms up
        whole.append(frames / seconds)
        alone.append(frames / (seconds - sum(decoding)))
        codecs.append(frames / sum(decoding))
print(json.dumps(dict(
    runner="qwen-tts", dtype=options.dtype, threads=options.threads, frames=frames,
    frames_per_s=statistics.median(whole), language_model_frames_per_s=statistics.median(alone),
    codec_frames_per_s=statistics.median(codecs))))
