"""An archive of recordings as rows of text."""

import hashlib
import io
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import soundfile

from izwi_ray.client import Client, Unreachable
from izwi_ray.cut import cut_points, join, spans, window_energies
from izwi_ray.process import IzwiError
from izwi_ray.run import ROUNDS, Job, Progress, Workers
from izwi_ray.store import SEGMENTS, UNITS, Store
from izwi_ray.units import Options, Recording, Unit, recordings

_TIMED = [("start", pa.float64()), ("end", pa.float64())]
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("path", pa.string()),
        ("duration_s", pa.float64()),
        ("language", pa.string()),
        ("text", pa.string()),
        ("segments", pa.list_(pa.struct([*_TIMED, ("text", pa.string())]))),
        ("words", pa.list_(pa.struct([*_TIMED, ("word", pa.string())]))),
        ("model", pa.string()),
        ("izwi_version", pa.string()),
        ("sha256", pa.string()),
        ("error", pa.string()),
    ]
)
#: A stream whose writer did not know its length seems to have more samples than this. It is not cut.
_MOST_FRAMES = 1 << 40
_EMPTY: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def plan(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The units of a recording: itself, or its segments where it is long and can be decoded here."""
    recording = Recording(row["path"], row["size"], row["mark"], Options(**row["options"]))
    whole = Unit(recording.key(), recording.path)
    options = recording.options
    try:
        with fsspec.open(recording.path, "rb") as file, soundfile.SoundFile(file) as sound:
            frames, rate = sound.frames, sound.samplerate
            if frames <= options.segment_s * rate or frames > _MOST_FRAMES:
                return [whole.row()]

            def energies(start: int, stop: int) -> np.ndarray:
                sound.seek(start)
                return window_energies(sound.read(stop - start, dtype="float32", always_2d=True), rate)

            points = cut_points(energies, frames, rate, options.segment_s, options.search_s)
    except (soundfile.LibsndfileError, OSError, RuntimeError):
        # A container that only Izwi reads, or a file that nobody can read: Izwi's answer decides.
        return [whole.row()]
    cuts = list(spans(points, frames))
    return [
        Unit(recording.key(), recording.path, index, len(cuts), start, stop, rate).row()
        for index, (start, stop) in enumerate(cuts)
    ]


class Transcriber:
    """The work of one worker: transcribes units and commits their rows."""

    def __init__(self, options: Options, store: Store, client: Client) -> None:
        self._options = options
        self._store = store
        self._client = client

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Transcribes a unit, unless a run before this one did. Returns what the progress needs."""
        unit = Unit.of_row(row)
        key, folder = unit.key(), UNITS if unit.count == 1 else SEGMENTS
        if self._store.has(key, folder):
            result = self._store.read(key, folder)
        else:
            result = self._transcript(unit)
            self._store.commit(key, result, folder)
        return {"seconds": result["duration_s"] or 0.0, "failed": result["error"] is not None}

    def _transcript(self, unit: Unit) -> dict[str, Any]:
        result = {**_EMPTY, "key": unit.key(), "path": unit.path, "model": self._options.model}
        result["izwi_version"] = self._client.version
        try:
            with fsspec.open(unit.path, "rb") as file:
                data = file.read()
            result["sha256"] = hashlib.sha256(data).hexdigest()
            if unit.count > 1:
                data = _segment(data, unit)
            answer = self._client.send("POST", "/v1/audio/transcriptions", data=self._form(), files=_file(unit, data))
            return {**result, **_fields(answer.json(), self._options.words)}
        except Unreachable:
            raise
        except (IzwiError, OSError, RuntimeError, ValueError) as error:
            return {**result, "error": f"{type(error).__name__}: {error}"}

    def _form(self) -> dict[str, Any]:
        granularities = ["segment", "word"] if self._options.words else ["segment"]
        form: dict[str, Any] = {"model": self._options.model, "response_format": "verbose_json"}
        form["timestamp_granularities[]"] = granularities
        if self._options.language:
            form["language"] = self._options.language
        if self._options.prompt:
            form["prompt"] = self._options.prompt
        return form


def _file(unit: Unit, data: bytes) -> dict[str, Any]:
    name = "segment.wav" if unit.count > 1 else unit.path.rsplit("/", 1)[-1]
    return {"file": (name, data)}


def _segment(data: bytes, unit: Unit) -> bytes:
    """The samples of a segment as a WAV file of 16 bits, mono."""
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        sound.seek(unit.start)
        samples = sound.read(unit.stop - unit.start, dtype="float32", always_2d=True).mean(axis=1)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, unit.rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def _fields(answer: dict[str, Any], words: bool) -> dict[str, Any]:
    segments = answer.get("segments") or []
    return {
        "duration_s": float(answer["duration"]),
        "language": answer.get("language"),
        "text": answer["text"],
        "segments": [{"start": item["start"], "end": item["end"], "text": item["text"]} for item in segments],
        "words": [{"start": item["start"], "end": item["end"], "word": item["word"]} for item in answer.get("words") or []]
        if words
        else None,
    }


def join_recording(store: Store, units: list[Unit]) -> dict[str, Any]:
    """Commits the row of a long recording, all of whose segments are committed."""
    units = sorted(units, key=lambda unit: unit.index)
    parts = [store.read(unit.key(), SEGMENTS) for unit in units]
    row = {**parts[0], "key": units[0].recording}
    failed = [part["error"] for part in parts if part["error"]]
    if failed:
        row |= {name: None for name in ("duration_s", "language", "text", "segments", "words")}
        row["error"] = f"{len(failed)} of {len(parts)} segments failed; the first: {failed[0]}"
    else:
        offsets = [unit.start / unit.rate for unit in units]
        row |= join(parts, offsets, units[-1].stop / units[-1].rate)
    store.commit(units[0].recording, row)
    return row


def run(inputs: list[str], output: str, options: Options, workers: Workers, retry_failed: bool, quiet: bool = False) -> int:
    """Transcribes what is not transcribed yet. Returns the number of recordings that failed."""
    store = Store(output, SCHEMA)
    store.prepare()
    wanted = recordings(inputs, options)
    keys = [recording.key() for recording in wanted]
    if retry_failed:
        store.forget_failures()
    done = store.published() | store.units()
    todo = {key: recording for recording, key in zip(wanted, keys, strict=True) if key not in done}
    progress = Progress(len(wanted), len(wanted) - len(todo), "files", quiet)
    job = Job(Transcriber, (options, store), plan)
    lost: dict[str, str] = {}
    for _ in range(ROUNDS):
        if todo:
            lost = _collect(store, job.results([asdict(recording) for recording in todo.values()], workers), progress)
            todo = {key: recording for key, recording in todo.items() if key in lost}
    for key, recording in todo.items():
        store.commit(key, {**_EMPTY, "key": key, "path": recording.path, "model": options.model, "error": lost[key]})
        progress.add(0.0, True)
    failures = len(store.publish() & set(keys))
    progress.finish(failures)
    return failures


def _collect(store: Store, results: Iterator[dict[str, Any]], progress: Progress) -> dict[str, str]:
    """Counts what is done, and joins each long recording when its last segment is there.

    Returns the recordings that Izwi did not get to, each with the reason.
    """
    lost: dict[str, str] = {}
    segments: dict[str, dict[int, Unit]] = defaultdict(dict)
    for result in results:
        unit = Unit.of_row(result)
        if result["lost"] is not None:
            lost[unit.recording] = result["lost"]
            continue
        if unit.count == 1:
            progress.add(result["seconds"], result["failed"])
            continue
        segments[unit.recording][unit.index] = unit
        if len(segments[unit.recording]) == unit.count:
            row = join_recording(store, list(segments.pop(unit.recording).values()))
            progress.add(row["duration_s"] or 0.0, row["error"] is not None)
    return lost
