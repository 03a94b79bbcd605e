"""An `izwi serve` child process: started on a free port, restarted when it dies, ended with its parent."""

import ctypes
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

import requests

_LISTENS = re.compile(rb"izwi serves on (http://\S+)")
_PR_SET_PDEATHSIG = 1
#: A process that dies this often within `_WINDOW_S` is not started again.
_MOST_STARTS = 6
_WINDOW_S = 600.0


class IzwiError(RuntimeError):
    """Izwi could not be started, or refused a request for good."""


def find_binary() -> str:
    """The program: `IZWI_BIN`, or `izwi` of the PATH."""
    named = os.environ.get("IZWI_BIN") or shutil.which("izwi")
    if not named or not os.access(named, os.X_OK):
        raise IzwiError(f"the program izwi is not found ({named or 'not on the PATH'}): set IZWI_BIN to its path")
    return named


def _die_with_parent() -> None:
    """In the child before exec: the kernel ends it when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class IzwiProcess:
    """Runs `izwi serve` on a free port of loopback with a key of its own.

    One thread starts the process, waits for it and starts it again after it died. The kernel kills the process when that
    thread is gone, so the process does not outlive a parent that is killed.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        api_key: str | None = None,
        ready_timeout_s: float = 300.0,
        drain_timeout_s: float = 30.0,
    ) -> None:
        self.api_key = api_key or secrets.token_hex(16)
        self.restarts = 0
        self._command = [find_binary(), "serve", "--host", "127.0.0.1", "--port", "0", *arguments]
        self._environment = {**os.environ, **(environment or {}), "IZWI_API_KEY": self.api_key}
        self._drain_timeout_s = drain_timeout_s
        self._ready_timeout_s = ready_timeout_s
        self._state = threading.Condition()
        self._child: subprocess.Popen[bytes] | None = None
        self._url: str | None = None
        self._failure: str | None = None
        self._stopping = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._thread = threading.Thread(target=self._supervise, name="izwi", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    @property
    def failure(self) -> str | None:
        """Why the process is not started again, if it was given up."""
        return self._failure

    @property
    def headers(self) -> dict[str, str]:
        """The headers that every request needs."""
        return {"Authorization": f"Bearer {self.api_key}"}

    def url(self, timeout_s: float | None = None) -> str:
        """Its address. Waits while it starts (again)."""
        deadline = time.monotonic() + (self._ready_timeout_s if timeout_s is None else timeout_s)
        with self._state:
            while self._url is None:
                if self._failure or self._stopping:
                    raise IzwiError(self._failure or "izwi was stopped")
                if not self._state.wait(max(0.0, deadline - time.monotonic())):
                    raise IzwiError(f"izwi did not become ready in time; its log ends with: {self._tail()}")
            return self._url

    def stop(self) -> None:
        """Lets open requests end (SIGTERM), then ends it."""
        with self._state:
            self._stopping = True
            self._url = None
            child = self._child
            self._state.notify_all()
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(self._drain_timeout_s)
            except subprocess.TimeoutExpired:
                _kill_group(child)
        self._thread.join(timeout=5.0)
        self._log.close()

    def __enter__(self) -> "IzwiProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _supervise(self) -> None:
        starts: list[float] = []
        while not self._stopping:
            now = time.monotonic()
            starts = [start for start in starts if now - start < _WINDOW_S] + [now]
            if len(starts) > _MOST_STARTS:
                self._give_up(f"izwi ended {_MOST_STARTS} times in ten minutes; its log ends with: {self._tail()}")
                return
            try:
                status = self._run_once()
            except (OSError, ValueError) as error:
                self._give_up(f"izwi cannot be started: {error}")
                return
            if self._stopping:
                return
            if status == 2:
                self._give_up(f"izwi refused its settings: {self._tail()}")
                return
            self.restarts += 1
            time.sleep(min(5.0, 0.2 * len(starts)))

    def _give_up(self, why: str) -> None:
        with self._state:
            self._failure = why
            self._state.notify_all()

    def _run_once(self) -> int:
        """Starts the process, publishes its address once it is ready, and waits for its end."""
        self._log.seek(0)
        self._log.truncate()
        with self._state:
            if self._stopping:
                return 0
            self._child = child = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + self._ready_timeout_s
        while child.poll() is None and not self._stopping:
            found = _LISTENS.search(os.pread(self._log.fileno(), 65_536, 0))
            if found and self._is_ready(found.group(1).decode()):
                with self._state:
                    self._url = found.group(1).decode()
                    self._state.notify_all()
                break
            if time.monotonic() > deadline:
                _kill_group(child)
            time.sleep(0.05)
        status = child.wait()
        with self._state:
            self._url = None
        return status

    @staticmethod
    def _is_ready(url: str) -> bool:
        try:
            return requests.get(f"{url}/readyz", timeout=5.0).status_code == 200
        except requests.RequestException:
            return False

    def _tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 2_000, max(0, size - 2_000)).decode(errors="replace").strip()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.poll()
