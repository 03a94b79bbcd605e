"""What the tests share: the izwi binary, the models that tests run, small recordings, Ray."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

ROOT = Path(__file__).resolve().parents[4]
SPEECH = ROOT / "assets/speech"
ASR = "whisper-tiny.en"
TTS = "hibari"
#: Options of every Ray that tests start.
RAY = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
OBJECT_STORE = 100 * 1024 * 1024


def pytest_configure() -> None:
    os.environ.setdefault("IZWI_BIN", str(ROOT / "target/debug/izwi"))
    os.environ.setdefault("IZWI_HOME", str(ROOT / "target/izwi-home"))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    source = str(Path(__file__).parents[1] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of two to four seconds, of the recordings of the repository."""
    folder = tmp_path_factory.mktemp("clips")
    number = 0
    for recording in sorted(SPEECH.glob("*.wav")):
        samples, rate = soundfile.read(recording, dtype="int16")
        for start in range(0, len(samples) - 2 * rate, 3 * rate)[:2]:
            clip = samples[start:][: (2 + number % 3) * rate]
            soundfile.write(folder / f"clip-{number:02}.wav", clip, rate)
            number += 1
    return folder


@pytest.fixture
def local_ray() -> Iterator[None]:
    """Ray on this machine, as small as may be."""
    import ray

    ray.init(num_cpus=3, object_store_memory=OBJECT_STORE, **RAY)
    yield
    ray.shutdown()


def silence(seconds: float, rate: int) -> np.ndarray:
    """Samples without a sound."""
    return np.zeros(int(seconds * rate), dtype="int16")
