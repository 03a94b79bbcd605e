"""Transcribes with faster-whisper, one request at a time: a JSON line in, a JSON line out.

A request is {"files": [WAV files at 16 kHz], "beam": 1}; its answer {"seconds": ..., "texts": [...]}. The time is from
samples in memory to text. `--bin asr` starts this; to try it: echo '{"files": ["a.wav"], "beam": 1}' | peer.py MODEL
"""

import argparse
import json
import sys
import time
import wave

import ctranslate2
import faster_whisper
import numpy

RATE_HZ = 16_000


def samples(path):
    with wave.open(path) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE_HZ, 1, 2):
            raise ValueError(f"{path} is not 16-bit mono at {RATE_HZ} Hz")
        return numpy.frombuffer(file.readframes(file.getnframes()), numpy.int16).astype(numpy.float32) / 32768.0


def answer(model, request):
    audio = [samples(path) for path in request["files"]]
    begun = time.perf_counter()
    texts = []
    for clip in audio:
        # Everything but the beam is the library's default: timestamps, fallback to higher temperatures, previous text.
        segments, _ = model.transcribe(clip, language="en", beam_size=request["beam"])
        texts.append("".join(segment.text for segment in segments).strip())
    return {"seconds": time.perf_counter() - begun, "texts": texts}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a CTranslate2 model")
    parser.add_argument("--compute", default="int8", help="int8 or float32")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    model = faster_whisper.WhisperModel(args.model, device="cpu", compute_type=args.compute, cpu_threads=args.threads)
    about = f"faster-whisper {faster_whisper.__version__}, CTranslate2 {ctranslate2.__version__}"
    print(json.dumps({"ready": about}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(model, json.loads(line))
        except Exception as error:  # Whatever it is, the other side tells a person.
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
