#!/usr/bin/env python3
"""Phonemes to samples of ONNX Runtime (the int8 export) and text to samples of izwi, in turns, on equally many threads.

  kokoro_onnxruntime.py IZWI ONNX VOICES [--rounds 5] [--threads 1,2] [--dtypes auto,f32]

IZWI is the release binary, ONNX the export whose parts `models/kokoro-82m.toml` names, joined, and VOICES the folder `voices` of
the installed model. Prints one line of JSON for each text, dtype and number of threads: medians of the rounds, and the
median of the ratios of neighbours (above 1 izwi is faster). Loading is left out on both sides; izwi's time has its front end, the
peer gets phonemes. Needs numpy and onnxruntime, and the model in $IZWI_HOME (`izwi pull kokoro-82m`).
"""
import argparse, json, os, statistics, subprocess, tempfile, time
from pathlib import Path

import numpy as np
import onnxruntime

# Texts and their phonemes by izwi's front end.
TEXTS = {
    "short": ("Hello there.", "həlˈO ðˈɛɹ."),
    "sentence": (
        "The quick brown fox jumps over the lazy dog, and will it run?",
        "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˈOvəɹ ðə lˈAzi dˈɔɡ, ænd wɪl ɪt ɹˈʌn?",
    ),
}

parser = argparse.ArgumentParser()
for name in ("izwi", "onnx", "voices"):
    parser.add_argument(name)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", default="1,2")
parser.add_argument("--dtypes", default="auto")
options = parser.parse_args()

wav = os.path.join(tempfile.mkdtemp(), "out.wav")
voices = Path(options.voices)
vocabulary = json.loads((voices.parent / "config.json").read_text())["vocab"]
styles = np.fromfile(voices / "af_heart.bin", np.float32).reshape(-1, 1, 256)


def theirs(session, phonemes):
    ids = [0, *(vocabulary[symbol] for symbol in phonemes), 0]
    inputs = {"tokens": np.array([ids]), "style": styles[len(ids) - 3], "speed": np.ones(1, np.float32)}
    begun = time.perf_counter()
    samples = session.run(None, inputs)[0]
    return time.perf_counter() - begun, len(samples) / 24000


def ours(text, dtype, threads):
    command = [options.izwi, "say", "--json", "--model", "kokoro-82m", "--voice", "af_heart", "--threads", str(threads),
               "--dtype", dtype, "--seed", "1", "-o", wav, "-"]
    report = json.loads(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
    return report["generation_ms"] / 1e3, report["seconds"]


for threads in map(int, options.threads.split(",")):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(options.onnx, settings, providers=["CPUExecutionProvider"])
    for name, (text, phonemes) in TEXTS.items():
        for dtype in options.dtypes.split(","):
            rounds = [(theirs(session, phonemes), ours(text, dtype, threads)) for _ in range(options.rounds + 1)][1:]
            their_rtf = [seconds / audio for (seconds, audio), _ in rounds]
            our_rtf = [seconds / audio for _, (seconds, audio) in rounds]
            print(json.dumps(dict(
                text=name, dtype=dtype, threads=threads, audio_s=round(rounds[0][1][1], 1), rounds=options.rounds,
                izwi_rtf=round(statistics.median(our_rtf), 4), onnxruntime_rtf=round(statistics.median(their_rtf), 4),
                times_faster=round(statistics.median(a / b for a, b in zip(their_rtf, our_rtf)), 2))), flush=True)
