#!/usr/bin/env python3
"""Who speaks when: both networks of pyannote by ONNX Runtime, and the whole of `izwi diarize`, in turns, on equally many threads.

  pyannote_onnxruntime.py IZWI WHEEL WAV [--rounds 5] [--threads 1,2]

IZWI is the release binary, WHEEL the package that `models/pyannote-community-1.toml` names, and WAV a mono recording at 16 kHz. The peer
runs the networks alone, over windows in batches of 21 and pieces of 30 s as izwi does, and is given the spectra; izwi's time has all
but loading. Prints one line of JSON for each number of threads: medians of the rounds, and the median of the ratios of
neighbours (above 1 izwi is faster). Needs what `scripts/golden/requirements-pyannote.txt` names, and the model in $IZWI_HOME
(`izwi pull pyannote-community-1`).
"""
import argparse, json, re, statistics, subprocess, sys, time
from pathlib import Path

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "golden"))
import pyannote as golden

parser = argparse.ArgumentParser()
for name in ("izwi", "wheel", "wav"):
    parser.add_argument(name)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", default="1,2")
options = parser.parse_args()

library = golden.library(options.wheel)
segmentation, embedding = (golden.weights_of(golden.part(library, at)) for at in (golden.SEGMENTATION, golden.EMBEDDING))
samples = golden.read(options.wav)
windows, padded = golden.windows_of(samples)
batches = [windows[first : first + golden.WINDOWS, None] for first in range(0, len(windows), golden.WINDOWS)]


def networks(threads):
    def session(model, is_ort=False):
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])

    golden.session = session
    return golden.Networks(segmentation, embedding, golden.part(library, golden.PLDA))


def spectra(bins):
    for first in range(0, len(windows), golden.WINDOWS):
        count = len(windows[first : first + golden.WINDOWS])
        piece = padded[first * golden.STEP :][: (count - 1) * golden.STEP + golden.WINDOW]
        yield np.ascontiguousarray(golden.fbank(piece, bins).T[None, None])


def theirs(peer, pieces):
    begun = time.perf_counter()
    for batch in batches:
        peer.segmentation.run(None, {"x": batch})
    for piece in pieces:
        peer.embedding.run(None, {"x": piece})
    return (time.perf_counter() - begun) / (len(samples) / golden.RATE)


def ours(threads):
    command = [options.izwi, "--threads", str(threads), "diarize", options.wav]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return float(re.search(r"RTF ([\d.]+)", told)[1])


for threads in map(int, options.threads.split(",")):
    peer = networks(threads)
    pieces = list(spectra(peer.bins))
    rounds = [(theirs(peer, pieces), ours(threads)) for _ in range(options.rounds + 1)][1:]
    print(json.dumps(dict(
        threads=threads, audio_s=round(len(samples) / golden.RATE, 1), rounds=options.rounds,
        izwi_rtf=round(statistics.median(own for _, own in rounds), 4),
        onnxruntime_rtf=round(statistics.median(peer for peer, _ in rounds), 4),
        times_faster=round(statistics.median(peer / own for peer, own in rounds), 2))), flush=True)
