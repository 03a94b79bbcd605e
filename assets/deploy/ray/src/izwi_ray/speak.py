"""A list of texts as audio."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from izwi_ray.client import Client, Unreachable
from izwi_ray.process import IzwiError
from izwi_ray.run import ROUNDS, Job, Progress, Workers
from izwi_ray.store import Store
from izwi_ray.units import digest

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("id", pa.string()),
        ("text", pa.string()),
        ("duration_s", pa.float64()),
        ("sample_rate", pa.int32()),
        ("audio_path", pa.string()),
        ("audio", pa.binary()),
        ("model", pa.string()),
        ("voice", pa.string()),
        ("seed", pa.int64()),
        ("izwi_version", pa.string()),
        ("sha256", pa.string()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class Voice:
    """What decides the audio, apart from the text."""

    model: str
    voice: str | None = None
    language: str | None = None
    seed: int = 0
    speed: float = 1.0
    format: str = "wav"
    #: Audio as bytes in the rows, not as files in `audio/`.
    embed: bool = False


def texts(path: str) -> list[dict[str, str]]:
    """The rows `id`, `text` of a CSV, JSON Lines or Parquet file, or the lines of a text file."""
    with fsspec.open(path, "rb") as file:
        data = file.read()
    end = path.rsplit(".", 1)[-1].lower()
    rows = [{"id": str(row["id"]), "text": str(row["text"])} for row in _rows(data, end, path)]
    ids = [row["id"] for row in rows]
    twice = next((name for name in ids if ids.count(name) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise ValueError(f"{path} has the id {twice!r} more than once: give each text an id of its own")
    return rows


def _rows(data: bytes, end: str, path: str) -> Iterator[dict[str, Any]]:
    if end == "parquet":
        yield from pq.read_table(io.BytesIO(data)).to_pylist()
        return
    lines = data.decode("utf-8-sig").splitlines()
    if end == "txt":
        yield from ({"id": f"{number:06}", "text": line} for number, line in enumerate(lines, 1) if line.strip())
        return
    if end not in ("csv", "jsonl"):
        raise ValueError(f"{path} is none of .csv, .jsonl, .parquet, .txt: convert it to one of them")
    found = csv.DictReader(io.StringIO(data.decode("utf-8-sig"))) if end == "csv" else map(json.loads, filter(None, lines))
    for number, row in enumerate(found, 1):
        if row.get("id") is None or row.get("text") is None:
            raise ValueError(f"row {number} of {path} lacks `id` or `text`")
        yield row


def key_of(row: dict[str, str], voice: Voice) -> str:
    """The key of a text."""
    return digest(["text", row["id"], row["text"], asdict(voice)])


class Speaker:
    """The work of one worker: speaks texts and commits their rows."""

    def __init__(self, voice: Voice, store: Store, client: Client) -> None:
        self._voice = voice
        self._store = store
        self._client = client

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Speaks a text, unless a run before this one did. Returns what the progress needs."""
        key = key_of(row, self._voice)
        if self._store.has(key):
            result = self._store.read(key)
        else:
            result = self._speech(key, row)
            self._store.commit(key, result)
        return {"seconds": result["duration_s"] or 0.0, "failed": result["error"] is not None}

    def _speech(self, key: str, row: dict[str, Any]) -> dict[str, Any]:
        voice = self._voice
        result: dict[str, Any] = {**dict.fromkeys(SCHEMA.names), "key": key, "id": row["id"], "text": row["text"]}
        result |= {"model": voice.model, "voice": voice.voice, "seed": voice.seed, "izwi_version": self._client.version}
        # A FLAC stream of the server does not tell its length; a file made of the same samples does.
        asked = "wav" if voice.format == "flac" else voice.format
        request = {"model": voice.model, "input": row["text"], "response_format": asked, "seed": voice.seed}
        request |= {"voice": voice.voice} if voice.voice else {}
        request |= {"language": voice.language} if voice.language else {}
        request |= {"speed": voice.speed} if voice.speed != 1.0 else {}
        try:
            data = self._client.send("POST", "/v1/audio/speech", json=request).content
            if voice.format == "flac":
                data = _flac(data)
            info = soundfile.info(io.BytesIO(data))
            # The audio is there before the row that names it.
            place = {"audio": data} if voice.embed else {"audio_path": self._store.write(_name(row["id"], voice.format), data)}
        except Unreachable:
            raise
        except (IzwiError, OSError, RuntimeError, ValueError) as error:
            return {**result, "error": f"{type(error).__name__}: {error}"}
        shape = {"duration_s": info.frames / info.samplerate, "sample_rate": info.samplerate}
        return {**result, **shape, **place, "sha256": hashlib.sha256(data).hexdigest()}


def _flac(wav: bytes) -> bytes:
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="int16")
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def _name(name: str, end: str) -> str:
    """A file name for any id, different for different ids."""
    safe = quote(name, safe=" ").lstrip(".")
    if safe != name or len(safe) > 100:
        safe = f"{safe[:80]}-{digest(name)[:12]}"
    return f"audio/{safe}.{end}"


def run(source: str, output: str, voice: Voice, workers: Workers, retry_failed: bool, quiet: bool = False) -> int:
    """Speaks what is not spoken yet. Returns the number of texts that failed."""
    store = Store(output, SCHEMA)
    store.prepare()
    wanted = texts(source)
    keys = [key_of(row, voice) for row in wanted]
    if retry_failed:
        store.forget_failures()
    done = store.published() | store.units()
    todo = {key: row for row, key in zip(wanted, keys, strict=True) if key not in done}
    progress = Progress(len(wanted), len(wanted) - len(todo), "texts", quiet)
    lost: dict[str, str] = {}
    for _ in range(ROUNDS):
        if todo:
            lost = {}
            for result in Job(Speaker, (voice, store)).results(list(todo.values()), workers):
                if result["lost"] is not None:
                    lost[key_of(result, voice)] = result["lost"]
                else:
                    progress.add(result["seconds"], result["failed"])
            todo = {key: row for key, row in todo.items() if key in lost}
    for key, row in todo.items():
        failed = {"key": key, **row, "model": voice.model, "voice": voice.voice, "seed": voice.seed, "error": lost[key]}
        store.commit(key, {**dict.fromkeys(SCHEMA.names), **failed})
        progress.add(0.0, True)
    failures = len(store.publish() & set(keys))
    progress.finish(failures)
    return failures
