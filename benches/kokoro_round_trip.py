#!/usr/bin/env python3
"""Word error rates of speech by izwi and by ONNX Runtime (the int8 export), transcribed by izwi's default ASR model.

  kokoro_round_trip.py IZWI ONNX VOICES [--sentences 20] [--voices af_heart,am_adam,...]

Arguments as in kokoro_onnxruntime.py. Both sides speak the sentences of round_trip/ in each voice; the peer gets phonemes of
hibari's own front end (`hibari-tts==0.2.1`). Words are compared in lower case without punctuation, so that figures written as
words count as errors on both sides. Prints one line of JSON for each voice, and the total.
"""
import argparse, json, re, subprocess, tempfile, wave
from pathlib import Path

import numpy as np
import onnxruntime
from hibari.g2p import G2P

VOICES = "af_heart,af_bella,af_nicole,am_adam,am_michael,bf_emma,bm_george,am_fenrir"

parser = argparse.ArgumentParser()
for name in ("izwi", "onnx", "voices_folder"):
    parser.add_argument(name)
parser.add_argument("--sentences", type=int, default=20)
parser.add_argument("--voices", default=VOICES)
options = parser.parse_args()

folder = Path(options.voices_folder)
vocabulary = json.loads((folder.parent / "config.json").read_text())["vocab"]
text = (Path(__file__).parent / "round_trip/sentences.txt").read_text()
sentences = [line.strip() for line in text.splitlines() if line.strip()][: options.sentences]
session = onnxruntime.InferenceSession(options.onnx, providers=["CPUExecutionProvider"])
phonemise = G2P()
work = Path(tempfile.mkdtemp())


def words(text):
    return re.sub(r"[^a-z0-9' ]+", " ", text.lower()).split()


def errors(reference, hypothesis):
    row = list(range(len(hypothesis) + 1))
    for at, word in enumerate(reference, 1):
        before, row[0] = row[0], at
        for place, other in enumerate(hypothesis, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def theirs(sentence, styles, path):
    phonemes = phonemise(sentence)
    phonemes = phonemes[0] if isinstance(phonemes, tuple) else phonemes
    ids = [0, *(vocabulary[symbol] for symbol in phonemes if symbol in vocabulary), 0]
    inputs = {"tokens": np.array([ids]), "style": styles[len(ids) - 3], "speed": np.ones(1, np.float32)}
    samples = session.run(None, inputs)[0].reshape(-1)
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, 24000, 0, "NONE", ""))
        out.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def ours(sentence, voice, path):
    command = [options.izwi, "say", "--model", "kokoro-82m", "--voice", voice, "--seed", "1", "-o", str(path), "-"]
    subprocess.run(command, input=sentence, capture_output=True, text=True, check=True)


def score(paths):
    command = [options.izwi, "transcribe", "--language", "en", "-o", str(work), *map(str, paths)]
    subprocess.run(command, capture_output=True, check=True)
    texts = [path.with_suffix(".txt").read_text() for path in paths]
    return sum(errors(words(sentence), words(text)) for sentence, text in zip(sentences, texts))


count = sum(len(words(sentence)) for sentence in sentences)
totals = [0, 0]
for voice in options.voices.split(","):
    styles = np.fromfile(folder / f"{voice}.bin", np.float32).reshape(-1, 1, 256)
    files = {side: [work / f"{voice}-{side}-{at}.wav" for at in range(len(sentences))] for side in ("izwi", "onnx")}
    for sentence, own, other in zip(sentences, files["izwi"], files["onnx"]):
        ours(sentence, voice, own)
        theirs(sentence, styles, other)
    found = [score(files["izwi"]), score(files["onnx"])]
    totals = [total + one for total, one in zip(totals, found)]
    print(json.dumps(dict(voice=voice, words=count, izwi=round(found[0] / count, 4), onnxruntime=round(found[1] / count, 4))),
          flush=True)
words_of_all = count * len(options.voices.split(","))
print(json.dumps(dict(voice="all", words=words_of_all, izwi=round(totals[0] / words_of_all, 4),
                      onnxruntime=round(totals[1] / words_of_all, 4))))
