"""Requests of archive workers to an Izwi server, tried again where that can help."""

import time
from collections.abc import Callable
from typing import Any

import requests

from izwi_ray.process import IzwiError, IzwiProcess

_TRIES = 6
_NOT_NOW = frozenset({429, 502, 503, 504})


class Unreachable(IzwiError):
    """No answer that tells anything about the input: the server is away, full or ending."""


class Client:
    """A server: a process of this worker's own, or one at an address."""

    def __init__(self, server: str | None, api_key: str | None, arguments: list[str]) -> None:
        self._process = None if server else IzwiProcess(arguments, api_key=api_key)
        self._server = server.rstrip("/") if server else None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if self._process is not None:
            self._process.url()
            self._headers = self._process.headers
        self.version = str(self.send("GET", "/version").json()["version"])

    def url(self) -> str:
        """Its address."""
        return self._process.url() if self._process is not None else str(self._server)

    def send(self, method: str, path: str, **request: Any) -> requests.Response:
        """Sends a request until there is an answer to keep.

        Raises `IzwiError` where Izwi refused the input, `Unreachable` where it did not get to it.
        """
        return _retry(lambda: requests.request(method, self.url() + path, headers=self._headers, timeout=3600, **request))

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.stop()


def _retry(ask: Callable[[], requests.Response]) -> requests.Response:
    reason = ""
    for attempt in range(_TRIES):
        wait = min(10.0, 0.5 * 2**attempt)
        try:
            answer = ask()
        except (requests.RequestException, IzwiError) as error:
            reason = f"izwi did not answer: {error}"
        else:
            if answer.status_code < 400:
                return answer
            reason = _reason(answer)
            if answer.status_code not in _NOT_NOW:
                raise IzwiError(reason)
            after = answer.headers.get("Retry-After", "")
            wait = min(60.0, float(after)) if after.isdigit() else wait
        if attempt + 1 < _TRIES:
            time.sleep(wait)
    raise Unreachable(f"{reason} ({_TRIES} tries)")


def _reason(answer: requests.Response) -> str:
    try:
        return f"{answer.status_code}: {answer.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code}: {answer.text[:500]}"
