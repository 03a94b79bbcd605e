"""Requests and frames as the server reads and writes them. Knows no connection: the clients share it."""

import base64
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from . import errors
from .types import Chunk, Utterance, utterance_of

DEFAULT_URL = "http://127.0.0.1:8080"
SPEECH_STREAM = "/v1/audio/speech/stream"
LIVE_STREAM = "/v1/audio/transcriptions/stream"
CLOSE_TIMEOUT_S = 0.5
"""The server ends a session at the close frame; its answer stands after audio that nobody reads."""

Recording = bytes | str | os.PathLike[str] | IO[bytes]
"""A recording: its bytes, the path of a file, or a file opened for reading bytes."""


def base_url(url: str) -> str:
    """The address without a final slash; a missing scheme is http."""
    url = url if "://" in url else f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"base_url '{url}' is neither http nor https; give one such as {DEFAULT_URL}")
    return url.rstrip("/")


def socket_url(url: str, path: str) -> str:
    return "ws" + url.removeprefix("http") + path


def authorization(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def speech_body(text: str, model: str, voice: str | None, form: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"input": text, "response_format": form, **_speech_members(model, voice, options)}


def speech_config(model: str, voice: str | None, form: str, options: Mapping[str, Any]) -> str:
    members = {"response_format": form, **_speech_members(model, voice, options)}
    return message("session.config", **members)


def _speech_members(model: str, voice: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {"model": model, **options}
    if voice is not None:
        members["voice"] = voice
    if "ref_audio" in members:
        members["ref_audio"] = base64.b64encode(members["ref_audio"]).decode()
    return members


def file_of(recording: Recording) -> tuple[str, bytes]:
    """The name and the bytes of a recording."""
    if isinstance(recording, bytes):
        return "recording", recording
    if isinstance(recording, (str, os.PathLike)):
        path = Path(recording)
        return path.name, path.read_bytes()
    return "recording", recording.read()


def form_of(model: str, form: str, language: str | None, word_times: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a transcription alongside its file."""
    fields: dict[str, Any] = {"model": model, "response_format": form}
    if language is not None:
        fields["language"] = language
    if word_times:
        fields["timestamp_granularities[]"] = ["segment", "word"]
    for name, value in options.items():
        if isinstance(value, (str, int, float)):
            fields[name] = str(value)
        else:
            fields[f"{name}[]"] = list(value)
    return fields


def message(kind: str, **members: Any) -> str:
    return json.dumps({"type": kind, **members})


def event(frame: str) -> dict[str, Any]:
    """A text frame; an error is raised."""
    fields = cast(dict[str, Any], json.loads(frame))
    if fields.get("type") == "error":
        raise errors.of_frame(fields)
    return fields


class Speech:
    """The state of a speech session: turns its frames into chunks, and tells what to report of their playback."""

    def __init__(self) -> None:
        self.sample_rate = 0
        self.utterances: list[Utterance] = []
        self.is_done = False
        self.reports_itself = False
        self._described: dict[str, Any] | None = None
        self._utterance = 0
        self._taken_samples = 0
        self._started: float | None = None

    def take(self, frame: str | bytes) -> Chunk | dict[str, Any]:
        """The chunk or the event of a frame."""
        if isinstance(frame, bytes):
            return self._chunk(frame)
        fields = event(frame)
        match fields["type"]:
            case "session.created":
                self.sample_rate = fields["sample_rate"]
            case "audio.chunk":
                self._described = fields
            case "audio.done":
                self.utterances.append(utterance_of(fields))
            case "session.done":
                self.is_done = True
        return fields

    def _chunk(self, data: bytes) -> Chunk:
        described = self._described
        if described is None:
            raise errors.cut_off("the server sent audio without a description")
        self._described = None
        if described["utterance"] != self._utterance or described["seq"] == 0:
            self._utterance, self._taken_samples, self._started = described["utterance"], 0, None
        self._taken_samples += described["samples"]
        return Chunk(
            data=data,
            utterance=described["utterance"],
            seq=described["seq"],
            sample_offset=described["sample_offset"],
            samples=described["samples"],
            sample_rate=self.sample_rate,
            is_final=described["is_final"],
        )

    def report(self) -> str | None:
        """The report for a chunk that is handed out: playback starts with the first one and runs by the clock. None where
        a player reports itself."""
        if self.reports_itself or not self.sample_rate:
            return None
        now = time.monotonic()
        self._started = now if self._started is None else self._started
        played_s = min(now - self._started, self._taken_samples / self.sample_rate)
        return message("playback.ack", utterance=self._utterance, played_ms=int(played_s * 1_000))

    def played(self, played_ms: int, gap_ms: int | None) -> str:
        """The report of a player, which ends those of the clock."""
        self.reports_itself = True
        gap = {} if gap_ms is None else {"gap_ms": gap_ms}
        return message("playback.ack", utterance=self._utterance, played_ms=played_ms, **gap)

    def interrupt(self, played_ms: int | None) -> str:
        if played_ms is None:
            return message("interrupt")
        return message("interrupt", utterance=self._utterance, played_ms=played_ms)
