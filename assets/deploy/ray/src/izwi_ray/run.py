"""Runs units of work on a pool of Ray actors, and shows the progress."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext

from izwi_ray.client import Client, Unreachable

#: How often units are tried that Izwi did not get to. One that ends its Izwi each time is a failure then.
ROUNDS = 3


@dataclass(frozen=True)
class Workers:
    """The pool. Each worker runs an Izwi process of its own, or asks `server`."""

    count: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    #: Requests that a worker has open at a time; Izwi batches them.
    parallel: int = 4
    #: Units that a worker takes at a time.
    batch: int = 8
    server: str | None = None
    api_key: str | None = None
    arguments: list[str] = field(default_factory=list)

    def client(self) -> Client:
        """The server of a worker."""
        arguments = ["--threads", str(max(1, round(self.cpus))), *self.arguments]
        return Client(self.server, self.api_key, arguments)


class _Actor:
    """A worker: a batch of units in, one row for each out."""

    def __init__(self, work: Callable[..., Any], arguments: tuple[Any, ...], workers: Workers) -> None:
        self._client = workers.client()
        self._work = work(*arguments, self._client)
        self._pool = ThreadPoolExecutor(workers.parallel)

    def __call__(self, batch: pa.Table) -> pa.Table:
        return pa.Table.from_pylist(list(self._pool.map(self._one, batch.to_pylist())))

    def _one(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            return {**row, **self._work(row), "lost": None}
        except Unreachable as error:
            # Nothing is committed: that says nothing about the unit.
            return {**row, "seconds": 0.0, "failed": True, "lost": str(error)}


@dataclass(frozen=True)
class Job:
    """What a run does: `work(*arguments, client)` makes the function of a unit, `plan` the units of an item."""

    work: Callable[..., Callable[[dict[str, Any]], dict[str, Any]]]
    arguments: tuple[Any, ...]
    plan: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None

    def results(self, items: list[dict[str, Any]], workers: Workers) -> Iterator[dict[str, Any]]:
        """A row for each unit, in the order in which they are done.

        `lost` tells why the unit has no result, where Izwi did not get to it; otherwise it is null.
        """
        if not ray.is_initialized():
            start_ray()
        context = DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context.execution_options.preserve_order = False
        # Small blocks: what a dead node held is little, and workers end together.
        blocks = max(1, min(len(items), -(-len(items) // workers.batch)))
        data = ray.data.from_items(items, override_num_blocks=blocks)
        if self.plan is not None:
            data = data.flat_map(self.plan, num_cpus=0.5).repartition(target_num_rows_per_block=workers.batch)
        data = data.map_batches(
            _Actor,
            fn_constructor_args=(self.work, self.arguments, workers),
            batch_size=workers.batch,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=workers.count, max_tasks_in_flight_per_actor=2),
            num_cpus=workers.cpus,
            num_gpus=workers.gpus,
            zero_copy_batch=True,
        )
        yield from data.iter_rows()


def start_ray() -> None:
    """Joins the cluster of `RAY_ADDRESS`, or starts Ray on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(logging_level="ERROR", log_to_driver=False)
    else:
        ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)


class Progress:
    """One line on standard error."""

    def __init__(self, total: int, before: int, noun: str, quiet: bool = False) -> None:
        self._total, self._before, self._noun, self._quiet = total, before, noun, quiet
        self._done = self._failed = 0
        self._seconds = 0.0
        self._start = time.monotonic()
        self._shown = 0.0
        self._is_terminal = sys.stderr.isatty()

    def add(self, seconds: float, failed: bool) -> None:
        """One more is done."""
        self._done += 1
        self._failed += failed
        self._seconds += seconds
        now = time.monotonic()
        if now - self._shown >= (0.2 if self._is_terminal else 10.0):
            self._shown = now
            self._show("\r\x1b[K" if self._is_terminal else "", "" if self._is_terminal else "\n")

    def finish(self, failures: int) -> None:
        """The last line."""
        self._failed = failures
        self._show("\r\x1b[K" if self._is_terminal else "", "\n")

    def _show(self, start: str, end: str) -> None:
        if self._quiet:
            return
        took = max(time.monotonic() - self._start, 1e-9)
        line = f"{self._before + self._done} of {self._total} {self._noun}, {self._before} of them before"
        line += f", {self._failed} failed, {self._seconds / 3600:.2f} h of audio, {self._seconds / took:.1f} x real time"
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)
