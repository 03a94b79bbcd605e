"""Throughput of archives: one server without Ray against one and two workers, interleaved, as medians.

python throughput.py FILES ROUNDS   with IZWI_BIN and IZWI_HOME
"""

import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ray
import soundfile
from conftest import ASR, OBJECT_STORE, RAY, SPEECH, pytest_configure

from izwi_ray import transcribe
from izwi_ray.client import Client
from izwi_ray.run import Workers
from izwi_ray.units import Options

FLAGS = ["--asr-model", ASR, "--no-pull"]


def archive(folder: Path, count: int) -> float:
    """`count` copies of the recordings of the repository; returns their seconds."""
    recordings = sorted(SPEECH.glob("*.wav"))
    seconds = 0.0
    for number in range(count):
        data = recordings[number % len(recordings)].read_bytes()
        (folder / f"{number:04}.wav").write_bytes(data)
        seconds += soundfile.info(folder / f"{number:04}.wav").duration
    return seconds


def one_server(files: Path, threads: int) -> float:
    """One process with four requests at a time, from its start to its last answer."""
    start = time.monotonic()
    client = Client(None, None, ["--threads", str(threads), *FLAGS])

    def ask(path: Path) -> None:
        form = {"model": ASR, "response_format": "verbose_json"}
        client.send("POST", "/v1/audio/transcriptions", data=form, files={"file": path.read_bytes()})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, sorted(files.iterdir())))
    took = time.monotonic() - start
    client.stop()
    return took


def on_ray(files: Path, workers: int, cpus: int) -> float:
    """A run on a cluster that is up."""
    with tempfile.TemporaryDirectory() as output:
        start = time.monotonic()
        pool = Workers(count=workers, cpus=cpus, arguments=FLAGS)
        if transcribe.run([str(files)], output, Options(ASR), pool, False, quiet=True):
            raise RuntimeError("recordings failed")
        return time.monotonic() - start


def main() -> None:
    """Measures and prints JSON."""
    pytest_configure()
    count, rounds = int(sys.argv[1]), int(sys.argv[2])
    ray.init(num_cpus=3, object_store_memory=OBJECT_STORE, **RAY)
    ways = {
        "one server, 1 thread": lambda files: one_server(files, 1),
        "one server, 2 threads": lambda files: one_server(files, 2),
        "izwi-ray, 1 worker of 1 thread": lambda files: on_ray(files, 1, 1),
        "izwi-ray, 2 workers of 1 thread": lambda files: on_ray(files, 2, 1),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        seconds = archive(Path(folder), count)
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(way(Path(folder)))
    rows = [
        {"way": name, "seconds": [round(t, 1) for t in took], "x_real_time": round(seconds / statistics.median(took), 1)}
        for name, took in times.items()
    ]
    print(json.dumps({"files": count, "audio_s": round(seconds, 1), "results": rows}, indent=2))


if __name__ == "__main__":
    main()
