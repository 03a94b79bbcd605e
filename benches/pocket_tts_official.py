#!/usr/bin/env python3
"""Text to samples of the official Pocket TTS package (PyTorch, f32) and of izwi, in turns, on one thread and one core each.

  pocket_tts_official.py IZWI CHECKPOINT [--rounds 5] [--tokens 60] [--dtypes auto,f32] [--core 0]

IZWI is the release binary, CHECKPOINT the folder with config.yaml of a checkpoint of the published size with random weights,
as `scripts/golden/pocket_tts.py --size real` writes it; izwi makes random weights of the same size. Prints one line of JSON
for each dtype: RTF with the prefill, medians of the rounds, and the median of the ratios of neighbours (above 1 izwi is faster). Loading and the
voice are left out on both sides; the first round warms up. Needs the packages of `scripts/golden/requirements-pocket_tts.txt`.
"""
import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[name] = "1"

import argparse, json, logging, statistics, subprocess, time

parser = argparse.ArgumentParser()
parser.add_argument("izwi")
parser.add_argument("checkpoint")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--tokens", type=int, default=60)
parser.add_argument("--dtypes", default="auto,f32")
parser.add_argument("--size", default="pocket-tts-100m")
parser.add_argument("--core", type=int, default=0)
options = parser.parse_args()
options.izwi = os.path.abspath(options.izwi)
os.sched_setaffinity(0, {options.core})

import torch
from pocket_tts.models.tts_model import TTSModel

logging.disable(logging.CRITICAL)
TEXT = "The north wind and the sun disputed which was the stronger when a traveller came along in a warm cloak."
os.chdir(options.checkpoint)
model = TTSModel.load_model(config="config.yaml", eos_threshold=float("inf"))
torch.set_num_threads(1)
model._estimate_max_gen_len = lambda tokens: options.tokens
# As many positions as izwi's random voice has.
torch.manual_seed(1)
voice = model.get_state_for_audio_prompt(torch.randn(1, 1920 * 123) * 0.1)


def theirs():
    begun = time.perf_counter()
    samples = model.generate_audio(voice, TEXT)
    return (time.perf_counter() - begun) / (len(samples) / 24000)


def ours(dtype):
    command = [options.izwi, "bench", "--random-weights", "--model", options.size, "--threads", "1", "--dtype", dtype,
               "--batch", "1", "--tokens", str(options.tokens), "--rounds", "1", "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return report["results"][0]["rtf"]


for dtype in options.dtypes.split(","):
    rounds = [(theirs(), ours(dtype)) for _ in range(options.rounds + 1)][1:]
    print(json.dumps(dict(
        model=options.size, dtype=dtype, threads=1, frames=options.tokens, rounds=options.rounds,
        izwi_rtf=round(statistics.median(mine for _, mine in rounds), 4),
        official_rtf=round(statistics.median(other for other, _ in rounds), 4),
        times_faster=round(statistics.median(other / mine for other, mine in rounds), 2))), flush=True)
