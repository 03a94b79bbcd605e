"""The commands that start the Serve application, as a user types them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import yaml
from conftest import ROOT, TTS

from izwi_ray.serve_app import Settings
from test_archive import izwi_below


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[subprocess.Popen]:
    """A command that serves on a port, with a Ray of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 180
        while not answers(port):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield process
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/readyz", timeout=10).status_code == 200
    except requests.RequestException:
        return False


def interrupt(process: subprocess.Popen) -> int:
    """Interrupts a command, and waits for it and for its Izwi processes. Returns its exit status."""
    children = izwi_below(process.pid)
    assert children, "no Izwi runs"
    process.send_signal(signal.SIGINT)
    status = process.wait(60)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/exe").exists() for pid in children):
        assert time.monotonic() < deadline, "an Izwi process outlives its command"
        time.sleep(0.1)
    return status


def speech(port: int, key: str | None = None) -> requests.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": TTS, "input": "Hello.", "response_format": "pcm"}
    return requests.post(f"http://127.0.0.1:{port}/v1/audio/speech", json=body, headers=headers, timeout=120)


def documented() -> dict:
    """The Serve file of the documentation."""
    page = (ROOT / "docs/ray.md").read_text()
    [block] = re.findall(r"```yaml\n(applications:.*?)```", page, re.DOTALL)
    return yaml.safe_load(block)


def test_serve_speaks_and_ends_quietly_when_it_is_interrupted(tmp_path):
    port = free_port()
    flags = ["--max-replicas", "1", f"--izwi=--model={TTS}", "--izwi=--asr-model=none", "--izwi=--no-pull"]
    with running(["izwi_ray.cli", "serve", "--port", str(port), *flags], tmp_path, port) as process:
        answer = speech(port)
        assert answer.status_code == 200 and len(answer.content) > 10_000
        assert interrupt(process) == 130
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_documented_serve_file_runs(tmp_path):
    port, file = free_port(), documented()
    [application] = file["applications"]
    args = application["args"]
    key = args["api_key"]
    args["arguments"] = ["--model", TTS, "--asr-model", "none", "--no-pull"]
    args.update(cpus=1, max_replicas=1)
    (tmp_path / "izwi.yaml").write_text(yaml.safe_dump({**file, "http_options": {"host": "127.0.0.1", "port": port}}))
    with running(["ray.serve.scripts", "run", "izwi.yaml"], tmp_path, port) as process:
        assert speech(port).status_code == 401
        answer = speech(port, key)
        assert answer.status_code == 200 and len(answer.content) > 10_000
        interrupt(process)


def test_settings_that_izwi_would_refuse_are_refused_before_it_starts():
    assert Settings(**documented()["applications"][0]["args"]).target_ongoing_requests == 8
    for name, value in (("api_key", "with blanks in between"), ("api_key", "short"), ("look_back_period_s", 10.0), ("port", 1)):
        with pytest.raises(ValueError, match=name):
            Settings(**{name: value})
