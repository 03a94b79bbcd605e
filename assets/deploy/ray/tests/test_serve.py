"""The Serve application over the real binary."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import ray
import requests
from conftest import ASR, OBJECT_STORE, RAY, SPEECH, TTS
from ray import serve
from websockets.sync.client import connect

from izwi_ray import serve_app
from izwi_ray.process import IzwiProcess
from test_archive import izwi_below

LONG = "This sentence is spoken again and again, until there is a lot of audio. " * 24
FLAGS = ["--model", TTS, "--asr-model", ASR, "--no-pull", "--resume-window-s", "0"]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    ray.init(num_cpus=4, object_store_memory=OBJECT_STORE, **RAY)
    args = {
        "arguments": FLAGS, "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2.0, "upscale_delay_s": 0.5,
        "downscale_delay_s": 600.0, "look_back_period_s": 11.0, "max_ongoing_requests": 32, "models_per_replica": 1,
        "cpus": 0.5, "drain_timeout_s": 2.0,
    }
    serve_app.run(args, "127.0.0.1", number, blocking=False)
    yield number
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def direct() -> Iterator[IzwiProcess]:
    with IzwiProcess([*FLAGS, "--threads", "1"]) as process:
        yield process


def eventually(check: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until `check` holds; the time only bounds a hang."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def health(port: int) -> dict:
    return requests.get(f"http://127.0.0.1:{port}/health", timeout=30).json()


def test_speech_over_http_is_streamed_and_equals_that_of_izwi(port, direct):
    request = {"model": TTS, "input": LONG, "response_format": "pcm", "seed": 1}
    with requests.post(f"http://127.0.0.1:{port}/v1/audio/speech", json=request, stream=True, timeout=120) as answer:
        assert answer.status_code == 200 and "x-request-id" in answer.headers
        pieces = answer.iter_content(chunk_size=None)
        audio = next(pieces)
        # While the rest is still to come, Izwi works on this request.
        assert health(port)["requests_open"] >= 1
        rest = list(pieces)
    expected = requests.post(f"{direct.url()}/v1/audio/speech", json=request, headers=direct.headers, timeout=120).content
    assert len(rest) > 3 and audio + b"".join(rest) == expected


def test_recordings_errors_and_pages_pass_unchanged(port, direct):
    with (SPEECH / "jfk.wav").open("rb") as file:
        answer = requests.post(
            f"http://127.0.0.1:{port}/v1/audio/transcriptions", data={"model": ASR}, files={"file": file}, timeout=60
        )
    assert "ask not what your country" in answer.json()["text"]

    def stream_of_pieces() -> Iterator[bytes]:
        yield b'{"model": "no-such-model", '
        yield b'"input": "Hello."}'

    headers = {"Content-Type": "application/json"}
    answer = requests.post(f"http://127.0.0.1:{port}/v1/audio/speech", data=stream_of_pieces(), headers=headers, timeout=30)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
    page = requests.get(f"http://127.0.0.1:{port}/docs/protocol.md", timeout=30)
    own = requests.get(f"{direct.url()}/docs/protocol.md", headers=direct.headers, timeout=30)
    assert page.content == own.content and page.headers["content-type"] == own.headers["content-type"]
    assert requests.get(f"http://127.0.0.1:{port}/nothing", timeout=30).status_code == 404


def session(url: str, headers: dict[str, str], chunk_ms: int) -> tuple[list[bytes], list[dict], int]:
    """A session of text in pieces: its chunks, its messages, its close code."""
    chunks: list[bytes] = []
    messages: list[dict] = []
    with connect(url, additional_headers=headers) as socket_:
        socket_.send(json.dumps({"type": "session.config", "model": TTS, "seed": 5, "chunk_ms": chunk_ms}))
        for sentence in LONG.split(". "):
            socket_.send(json.dumps({"type": "input.text", "text": sentence + ". "}))
        socket_.send(json.dumps({"type": "input.done"}))
        for frame in socket_:
            if isinstance(frame, bytes):
                chunks.append(frame)
            else:
                messages.append(json.loads(frame))
        return chunks, messages, socket_.close_code or 0


def test_a_websocket_session_has_the_chunks_of_izwi(port, direct):
    path = "/v1/audio/speech/stream"
    chunks, messages, code = session(f"ws://127.0.0.1:{port}{path}", {}, 200)
    expected, _, own_code = session(direct.url().replace("http", "ws") + path, direct.headers, 200)
    assert len(chunks) >= 64 and chunks == expected
    assert messages[0]["type"] == "session.created" and messages[-1]["type"] == "session.done" and code == own_code
    # Audio goes up as well.
    jfk = (SPEECH / "jfk.wav").read_bytes()[44:]
    with connect(f"ws://127.0.0.1:{port}/v1/audio/transcriptions/stream") as live:
        live.send(json.dumps({"type": "session.config", "model": ASR, "sample_rate": 16000}))
        for start in range(0, len(jfk), 6400):
            live.send(jfk[start : start + 6400])
        live.send(json.dumps({"type": "input.done"}))
        events = [json.loads(frame) for frame in live]
    text = "".join(event["text"] for event in events if event["type"] == "committed")
    assert "country" in text and events[-1]["type"] == "session.done"


def test_a_client_that_leaves_ends_its_session_and_its_request(port):
    with connect(f"ws://127.0.0.1:{port}/v1/audio/speech/stream") as opened:
        opened.send(json.dumps({"type": "speak", "model": TTS, "text": LONG}))
        opened.recv()
        assert health(port)["sessions_open"] == 1
        # No close frame: the connection breaks.
        opened.socket.shutdown(socket.SHUT_RDWR)
    eventually(lambda: health(port)["sessions_open"] == 0)
    body = json.dumps({"model": TTS, "input": LONG * 2, "response_format": "wav"}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    raw = socket.create_connection(("127.0.0.1", port))
    raw.sendall(head.encode() + body)
    assert raw.recv(100).startswith(b"HTTP/1.1 200")
    raw.close()
    # The question itself is open while it is answered.
    eventually(lambda: health(port)["requests_open"] <= 1 and all(m.get("running", 0) == 0 for m in health(port)["models"].values()))


def test_models_are_loaded_for_requests_that_name_them_and_make_room(port):
    def loaded() -> set[str]:
        return {name for name, model in health(port)["models"].items() if model["state"] == "ready"}

    def ask(model: str) -> requests.Response:
        headers = {"serve_multiplexed_model_id": model}
        return requests.get(f"http://127.0.0.1:{port}/version", headers=headers, timeout=120)

    assert ask("kokoro-82m").status_code == 200 and "kokoro-82m" in loaded()
    assert ask("whisper-base").status_code == 200
    eventually(lambda: "whisper-base" in loaded() and "kokoro-82m" not in loaded())
    refused = ask("no-such-model")
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"


def test_an_izwi_that_dies_is_started_again(port):
    [old] = [pid for pid in izwi_below(os.getpid()) if is_of_replica(pid)]
    os.kill(old, signal.SIGKILL)
    answer = requests.post(
        f"http://127.0.0.1:{port}/v1/audio/speech", json={"model": TTS, "input": "Hello."}, timeout=120
    )
    # The request that comes first waits, or is told to come again.
    assert answer.status_code in (200, 503)
    eventually(lambda: requests.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 200)
    new = [pid for pid in izwi_below(os.getpid()) if is_of_replica(pid)]
    assert len(new) == 1 and new != [old]


def is_of_replica(pid: int) -> bool:
    """Whether the parent of a process is a worker of Ray."""
    with open(f"/proc/{pid}/status") as status:
        parent = next(line.split()[1] for line in status if line.startswith("PPid"))
    return int(parent) != os.getpid()


def test_ongoing_sessions_bring_another_replica(port):
    running = lambda: serve.status().applications["izwi"].deployments["Izwi"].replica_states.get("RUNNING", 0)  # noqa: E731
    assert running() == 1
    with ExitStack() as stack:
        for _ in range(6):
            one = stack.enter_context(connect(f"ws://127.0.0.1:{port}/v1/audio/speech/stream"))
            one.send(json.dumps({"type": "session.config", "model": TTS}))
        eventually(lambda: running() == 2, 120.0)
