#!/usr/bin/env python3
"""Text to samples of the official hibari package (ONNX Runtime, int8) and of izwi, in turns, on one thread each.

  hibari_official.py IZWI [--rounds 7] [--dtypes auto,f32]

IZWI is the release binary. Prints one line of JSON for each text and dtype: medians of the rounds, and the median of the
ratios of neighbours (above 1 izwi is faster). Loading is left out on both sides; the front end is part of both. Needs
`hibari-tts==0.2.1` and `onnxruntime`, and the model in $IZWI_HOME (`izwi pull hibari`).
"""
import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[name] = "1"

import argparse, json, statistics, subprocess, tempfile, time
from pathlib import Path

from hibari import Hibari

SENTENCES = [line.strip() for line in (Path(__file__).parent / "round_trip/sentences.txt").read_text().splitlines()
             if line.strip() and not line.startswith("#")]
TEXTS = {"one sentence": SENTENCES[0], "twenty sentences": " ".join(SENTENCES[:20]),
         "eighty sentences": " ".join(4 * SENTENCES[:20])}

parser = argparse.ArgumentParser()
parser.add_argument("izwi")
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--dtypes", default="auto,f32")
options = parser.parse_args()

official = Hibari(threads=1)
official("Hello there.", seed=1)
wav = os.path.join(tempfile.mkdtemp(), "out.wav")


def theirs(text):
    begun = time.perf_counter()
    samples = official(text, seed=1)
    return time.perf_counter() - begun, len(samples) / 24000


def ours(text, dtype):
    command = [options.izwi, "say", "--json", "--model", "hibari", "--threads", "1", "--dtype", dtype, "--seed", "1",
               "-o", wav, "-"]
    report = json.loads(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
    return report["generation_ms"] / 1e3, report["seconds"]


for name, text in TEXTS.items():
    for dtype in options.dtypes.split(","):
        rounds = [(theirs(text), ours(text, dtype)) for _ in range(options.rounds + 1)][1:]
        (_, their_audio), (_, our_audio) = rounds[0]
        their_rtf = [seconds / their_audio for (seconds, _), _ in rounds]
        our_rtf = [seconds / our_audio for _, (seconds, _) in rounds]
        print(json.dumps(dict(
            text=name, dtype=dtype, threads=1, audio_s=round(our_audio, 1), rounds=options.rounds,
            izwi_rtf=round(statistics.median(our_rtf), 5), official_rtf=round(statistics.median(their_rtf), 5),
            times_faster=round(statistics.median(a / b for a, b in zip(their_rtf, our_rtf)), 2))), flush=True)
