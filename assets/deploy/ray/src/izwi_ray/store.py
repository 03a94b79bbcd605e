"""The output folder: results of units, each written whole under its key, and the Parquet files made of them.

    DIR/part-….parquet        rows of successes, never changed once written
    DIR/failed.parquet        rows of failures, replaced as a whole
    DIR/_units/KEY.parquet    results that are not in a part: not yet, or failures
    DIR/_segments/KEY.parquet segments of long recordings, until the run is complete

A result counts once its file has its name: by a rename on a local file system, by one upload elsewhere. A unit that runs twice
writes the same name, so no row can come twice. `publish` copies units into parts and removes them behind that; a unit whose
key is in a part is published already. Every state that a kill leaves is thus either before or after one of these steps.
"""

import io
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from izwi_ray.units import digest

UNITS = "_units"
SEGMENTS = "_segments"
_SUFFIX = ".parquet"
_FAILED = "failed.parquet"
#: Rows of a part.
_PART_ROWS = 10_000


class Store:
    """An output folder on any fsspec file system. One run at a time may write to it."""

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self._url = folder
        self._schema = schema
        self._system, self._root = fsspec.core.url_to_fs(folder)
        self._is_local = "file" in _protocols(self._system)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._url, self._schema)

    def prepare(self) -> None:
        """Makes the folder and removes what a killed run left half written."""
        for folder in (UNITS, SEGMENTS):
            self._system.makedirs(f"{self._root}/{folder}", exist_ok=True)
        for name in ("", f"/{UNITS}", f"/{SEGMENTS}", "/audio"):
            for path in self._names(self._root + name):
                if path.rsplit("/", 1)[-1].startswith(".tmp-"):
                    self._system.rm_file(path)

    def commit(self, key: str, row: dict[str, Any], folder: str = UNITS) -> None:
        """Stores the result of a unit."""
        self._put(f"{folder}/{key}{_SUFFIX}", self._encode([row]))

    def write(self, name: str, data: bytes) -> str:
        """Stores a file, whole or not at all. Returns its path within the folder."""
        self._system.makedirs(f"{self._root}/{name.rsplit('/', 1)[0]}", exist_ok=True)
        self._put(name, data)
        return name

    def has(self, key: str, folder: str = UNITS) -> bool:
        """Whether a unit has a result that is not published yet."""
        return bool(self._system.exists(f"{self._root}/{folder}/{key}{_SUFFIX}"))

    def units(self, folder: str = UNITS) -> set[str]:
        """Keys of the results that are not published yet."""
        self._system.invalidate_cache()
        names = (path.rsplit("/", 1)[-1] for path in self._names(f"{self._root}/{folder}"))
        return {name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.startswith(".")}

    def read(self, key: str, folder: str = UNITS) -> dict[str, Any]:
        """The result of a unit."""
        row: dict[str, Any] = self._table(f"{self._root}/{folder}/{key}{_SUFFIX}").to_pylist()[0]
        return row

    def remove(self, keys: Iterable[str], folder: str = UNITS) -> None:
        """Forgets results."""
        for key in keys:
            if self.has(key, folder):
                self._system.rm_file(f"{self._root}/{folder}/{key}{_SUFFIX}")

    def forget_failures(self) -> None:
        """Forgets the failures, so that their units run again."""
        for folder in (UNITS, SEGMENTS):
            self.remove([key for key in self.units(folder) if self.read(key, folder)["error"] is not None], folder)

    def published(self) -> set[str]:
        """Keys of the rows in parts."""
        keys: set[str] = set()
        for path in self._parts():
            with self._system.open(path, "rb") as file:
                keys.update(pq.read_table(file, columns=["key"])["key"].to_pylist())
        return keys

    def publish(self) -> set[str]:
        """Makes parts of the results, and replaces the list of failures. Returns the keys of the failures."""
        done = self.published()
        self.remove(key for key in self.units() if key in done)
        rows = [self.read(key) for key in self.units()]
        rows.sort(key=lambda row: (row[self._schema.names[1]], row["key"]))
        failed = [row for row in rows if row["error"] is not None]
        # First: a row that has succeeded now must not stand in both.
        self._replace_failed(failed)
        good = [row for row in rows if row["error"] is None]
        for start in range(0, len(good), _PART_ROWS):
            part = good[start : start + _PART_ROWS]
            names = [row["key"] for row in part]
            self._put(f"part-{digest(names)}{_SUFFIX}", self._encode(part))
            self.remove(names)
        self.remove(self.units(SEGMENTS), SEGMENTS)
        return {row["key"] for row in failed}

    def _replace_failed(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._put(_FAILED, self._encode(rows))
        elif self._system.exists(f"{self._root}/{_FAILED}"):
            self._system.rm_file(f"{self._root}/{_FAILED}")

    def table(self) -> pa.Table:
        """All published rows and failures, as a reader of `DIR/*.parquet` gets them."""
        paths = [*self._parts(), *(path for path in self._names(self._root) if path.endswith(f"/{_FAILED}"))]
        tables = [self._table(path) for path in paths]
        return pa.concat_tables(tables) if tables else self._schema.empty_table()

    def _parts(self) -> Iterator[str]:
        self._system.invalidate_cache()
        for path in self._names(self._root):
            name = path.rsplit("/", 1)[-1]
            if name.startswith("part-") and name.endswith(_SUFFIX):
                yield path

    def _names(self, folder: str) -> list[str]:
        return list(self._system.ls(folder, detail=False)) if self._system.isdir(folder) else []

    def _table(self, path: str) -> pa.Table:
        with self._system.open(path, "rb") as file:
            return pq.read_table(file)

    def _encode(self, rows: list[dict[str, Any]]) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=self._schema), buffer)
        return buffer.getvalue()

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        if not self._is_local:
            # An object appears when its upload is complete.
            self._system.pipe_file(path, data)
            return
        folder = path.rsplit("/", 1)[0]
        temporary = f"{folder}/.tmp-{uuid.uuid4().hex}"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
