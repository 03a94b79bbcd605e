"""What a request can fail with."""

import json
from collections.abc import Mapping
from typing import Any


class IzwiError(Exception):
    """The server refused a request or could not be reached.

    `status` is the HTTP status, or None on a WebSocket. `code` is stable, `param` names the field, and `retry_after` is the
    number of seconds after which the same request may succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.status = status
        self.retry_after = retry_after
        self.request_id = request_id


def of_response(status: int, headers: Mapping[str, str], body: bytes) -> IzwiError:
    """The error of an HTTP answer. What answers between client and server may send other bodies."""
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    error = fields.get("error") if isinstance(fields, dict) else None
    details = error if isinstance(error, dict) else {}
    return IzwiError(
        str(details.get("message") or f"the server answered with status {status}"),
        code=details.get("code"),
        param=details.get("param"),
        status=status,
        retry_after=_seconds(headers.get("Retry-After")),
        request_id=headers.get("X-Request-Id"),
    )


def of_frame(frame: Mapping[str, Any]) -> IzwiError:
    """The error of a frame on a WebSocket."""
    return IzwiError(
        str(frame.get("message")),
        code=frame.get("code"),
        param=frame.get("param"),
        retry_after=frame.get("retry_after"),
    )


def unreachable(url: str, why: object) -> IzwiError:
    return IzwiError(f"no server answers at {url} ({why}); start one with `izwi serve`", code="unreachable")


def cut_off(why: object) -> IzwiError:
    return IzwiError(f"the connection ended before the session ({why})", code="connection_closed")


def _seconds(value: str | None) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None
