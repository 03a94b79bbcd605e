#!/usr/bin/env python3
"""Durations and spectra of speech by izwi compared with those of ONNX Runtime (the int8 export) on the sentences of round_trip/.

  kokoro_second_opinion.py IZWI ONNX VOICES [--sentences 8] [--voices af_heart,am_adam,bf_emma] [--dtypes auto,f32]

Arguments as in kokoro_onnxruntime.py. Only sentences that both front ends pronounce alike should count, so the peer gets phonemes
of hibari's own front end (`hibari-tts==0.2.1`) and sentences of another number of words or sounds show in `frames_off`. For each
voice and dtype, medians over the sentences: frames of 25 ms in all, their difference relative to the peer's, and the distance of
mel spectra along the best alignment (dynamic time warping), in dB. `other_voice_db` is the same distance between two voices of
the peer, `f32_db` that between the peer and the same graph in f32 if --float names one. Needs numpy and onnxruntime.
"""
import argparse, json, statistics, subprocess, tempfile, wave
from pathlib import Path

import numpy as np
import onnxruntime
from hibari.g2p import G2P

parser = argparse.ArgumentParser()
for name in ("izwi", "onnx", "voices_folder"):
    parser.add_argument(name)
parser.add_argument("--sentences", type=int, default=8)
parser.add_argument("--voices", default="af_heart,am_adam,bf_emma")
parser.add_argument("--dtypes", default="auto,f32")
parser.add_argument("--float", help="the same graph with its weights multiplied out and no rounding")
options = parser.parse_args()

RATE, FRAME, HOP, N_FFT, BANDS = 24_000, 600, 300, 1024, 80
folder = Path(options.voices_folder)
vocabulary = json.loads((folder.parent / "config.json").read_text())["vocab"]
text = (Path(__file__).parent / "round_trip/sentences.txt").read_text()
sentences = [line.strip() for line in text.splitlines() if line.strip()][: options.sentences]
phonemise = G2P()
work = Path(tempfile.mkdtemp())


def bank():
    """Triangles on the mel scale, `[BANDS, N_FFT / 2 + 1]`."""
    mel = lambda hz: 2595 * np.log10(1 + hz / 700)
    edges = 700 * (10 ** (np.linspace(mel(60), mel(RATE / 2), BANDS + 2) / 2595) - 1)
    bins = np.arange(N_FFT // 2 + 1) * RATE / N_FFT
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.clip(np.minimum(rise, fall), 0, None)


BANK = bank()


def spectrum(samples):
    """Log mel spectrum in dB, `[frames, BANDS]`, no band 60 dB below the loudest."""
    samples = np.pad(samples, N_FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(samples, N_FFT)[::HOP] * np.hanning(N_FFT)
    power = np.abs(np.fft.rfft(frames)) ** 2 @ BANK.T
    decibels = 10 * np.log10(power + 1e-12)
    return np.maximum(decibels, decibels.max() - 60)


def distance(a, b):
    """Mean distance of frames along the best alignment, in dB."""
    a, b = spectrum(a), spectrum(b)
    apart = np.sqrt(np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T, 0) / BANDS)
    cost = np.full((len(a) + 1, len(b) + 1), np.inf)
    steps = np.zeros_like(cost)
    cost[0, 0] = 0
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            before = min((cost[i - 1, j - 1], i - 1, j - 1), (cost[i - 1, j], i - 1, j), (cost[i, j - 1], i, j - 1))
            cost[i, j] = before[0] + apart[i - 1, j - 1]
            steps[i, j] = steps[before[1], before[2]] + 1
    return cost[-1, -1] / steps[-1, -1]


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def theirs(session, sentence, voice):
    phonemes = phonemise(sentence)
    phonemes = phonemes[0] if isinstance(phonemes, tuple) else phonemes
    ids = [0, *(vocabulary[symbol] for symbol in phonemes if symbol in vocabulary), 0]
    styles = np.fromfile(folder / f"{voice}.bin", np.float32).reshape(-1, 1, 256)
    inputs = {"tokens": np.array([ids]), "style": styles[len(ids) - 3], "speed": np.ones(1, np.float32)}
    return session.run(None, inputs)[0].reshape(-1)


def ours(sentence, voice, dtype):
    path = work / "out.wav"
    command = [options.izwi, "say", "--model", "kokoro-82m", "--voice", voice, "--dtype", dtype, "--seed", "1", "-o",
               str(path), "-"]
    subprocess.run(command, input=sentence, capture_output=True, text=True, check=True)
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


peer = session(options.onnx)
exact = session(options.float) if options.float else None
voices = options.voices.split(",")
for at, voice in enumerate(voices):
    found = [theirs(peer, sentence, voice) for sentence in sentences]
    others = [theirs(peer, sentence, voices[(at + 1) % len(voices)]) for sentence in sentences]
    control = dict(other_voice_db=[distance(a, b) for a, b in zip(found, others)])
    if exact:
        control["f32_db"] = [distance(a, theirs(exact, sentence, voice)) for a, sentence in zip(found, sentences)]
    for dtype in options.dtypes.split(","):
        own = [ours(sentence, voice, dtype) for sentence in sentences]
        frames = [(len(a) / FRAME, len(b) / FRAME) for a, b in zip(own, found)]
        figures = dict(frames=[b for _, b in frames], frames_off=[abs(a - b) / b for a, b in frames],
                       distance_db=[distance(a, b) for a, b in zip(own, found)], **control)
        print(json.dumps(dict(voice=voice, dtype=dtype, sentences=len(sentences),
                              **{name: round(statistics.median(values), 4) for name, values in figures.items()})), flush=True)
