"""Units of work. Each has a key: the hash of all that its result depends on. A result is stored under its key."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import fsspec

_MARKS = ("ETag", "etag", "e_tag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


def digest(value: Any) -> str:
    """Hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Options:
    """What decides a transcript, apart from the recording."""

    model: str
    language: str | None = None
    prompt: str | None = None
    words: bool = False
    #: Recordings longer than this are cut.
    segment_s: float = 600.0
    #: How far before the limit a cut may lie.
    search_s: float = 60.0


@dataclass(frozen=True)
class Recording:
    """A file of the archive, as its file system lists it."""

    path: str
    size: int
    mark: str
    options: Options

    def key(self) -> str:
        """Changes with the file's path, size and mark (ETag or time of change), and with the options."""
        return digest(["recording", self.path, self.size, self.mark, asdict(self.options)])


@dataclass(frozen=True)
class Unit:
    """A recording, or one segment of a long one. Sample numbers are -1 where the whole file is meant."""

    recording: str
    path: str
    index: int = 0
    count: int = 1
    start: int = -1
    stop: int = -1
    rate: int = 0

    def key(self) -> str:
        """The recording's own key, or that of one of its segments."""
        if self.count == 1:
            return self.recording
        return digest(["segment", self.recording, self.index, self.count, self.start, self.stop, self.rate])

    def row(self) -> dict[str, Any]:
        """As a row of a Ray dataset."""
        return asdict(self)

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "Unit":
        """From a row of a Ray dataset."""
        numbers = {name: int(row[name]) for name in ("index", "count", "start", "stop", "rate")}
        return cls(recording=str(row["recording"]), path=str(row["path"]), **numbers)


def recordings(inputs: list[str], options: Options) -> list[Recording]:
    """The files that paths, folders and patterns of any fsspec file system name, sorted, each once."""
    found: dict[str, Recording] = {}
    for name in inputs:
        system, path = fsspec.core.url_to_fs(name)
        # Everything that a pattern or a folder holds comes from one listing.
        if any(letter in path for letter in "*?["):
            infos = system.glob(path, detail=True).values()
        elif system.isdir(path):
            infos = system.find(path, detail=True).values()
        else:
            infos = [system.info(path)]
        for info in infos:
            full = str(system.unstrip_protocol(info["name"]))
            base = full.rsplit("/", 1)[-1]
            if info["type"] != "file" or base.startswith("."):
                continue
            mark = next((str(info[mark]) for mark in _MARKS if info.get(mark) is not None), "")
            found[full] = Recording(full, int(info["size"] or 0), mark, options)
    return [found[path] for path in sorted(found)]
