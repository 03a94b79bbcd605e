"""An ASGI application that passes HTTP requests and WebSocket sessions on to an Izwi server.

Bodies and frames are passed on as they come; none is collected. A client that leaves ends its request or session upstream.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from izwi_ray.process import IzwiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Headers of one connection, which are not passed on.
_OF_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
_OF_WEBSOCKET = frozenset(
    b"sec-websocket-key sec-websocket-version sec-websocket-extensions sec-websocket-protocol".split()
)
_LARGEST_FRAME = 1 << 30


class Proxy:
    """Passes requests on to the server at `upstream()`, with `headers` in place of the client's."""

    def __init__(self, upstream: Callable[[], Awaitable[str]], headers: dict[str, str]) -> None:
        self._upstream = upstream
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    async def session(self) -> aiohttp.ClientSession:
        """The client, made in the loop that uses it."""
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=10.0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Closes its connections."""
        if self._session is not None:
            await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection of ASGI."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _request_headers(self, scope: Scope, dropped: frozenset[bytes]) -> list[tuple[str, str]]:
        own = {name.lower().encode() for name in self._headers}
        named = [name.strip().lower() for key, value in scope["headers"] if key == b"connection" for name in value.split(b",")]
        passed = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name not in _OF_CONNECTION and name not in dropped and name not in own and name not in named
        ]
        return [*passed, *self._headers.items()]

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.Event()
        work = asyncio.create_task(self._exchange(scope, _Body(receive, gone), send))
        leaving = asyncio.create_task(gone.wait())
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            for task in (work, leaving):
                task.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)

    async def _exchange(self, scope: Scope, body: "_Body", send: Send) -> None:
        started = False
        watch: asyncio.Task[None] | None = None
        try:
            session = await self.session()
            length = next((value for name, value in scope["headers"] if name == b"content-length"), None)
            has_body = length not in (None, b"0") or any(name == b"transfer-encoding" for name, _ in scope["headers"])
            if not has_body:
                watch = asyncio.create_task(body.watch())
            url = await self._upstream() + _target(scope)
            async with session.request(
                scope["method"],
                _encoded(url),
                headers=self._request_headers(scope, frozenset()),
                data=body if has_body else None,
                allow_redirects=False,
            ) as answer:
                if has_body:
                    watch = asyncio.create_task(body.watch())
                started = True
                await send({"type": "http.response.start", "status": answer.status, "headers": _answer_headers(answer)})
                async for piece in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (aiohttp.ClientError, IzwiError, TimeoutError) as error:
            if started:
                # The status is sent: the body must not look complete.
                raise
            await refuse(send, f"izwi did not answer: {error}")
        finally:
            if watch is not None:
                watch.cancel()

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        session = await self.session()
        try:
            url = "ws" + (await self._upstream()).removeprefix("http") + _target(scope)
            upstream = await session.ws_connect(
                _encoded(url),
                headers=self._request_headers(scope, _OF_WEBSOCKET),
                protocols=scope.get("subprotocols") or (),
                max_msg_size=_LARGEST_FRAME,
                autoping=True,
            )
        except aiohttp.WSServerHandshakeError as error:
            await send({"type": "websocket.close", "code": 1008, "reason": f"izwi refused the session: {error.status}"})
            return
        except (aiohttp.ClientError, IzwiError, TimeoutError) as error:
            await send({"type": "websocket.close", "code": 1013, "reason": f"izwi did not answer: {error}"[:120]})
            return
        try:
            await send({"type": "websocket.accept", "subprotocol": upstream.protocol})
            await _relay(upstream, receive, send)
        finally:
            await upstream.close()


async def _relay(upstream: aiohttp.ClientWebSocketResponse, receive: Receive, send: Send) -> None:
    """Passes frames on in both directions until one side closes."""
    up = asyncio.create_task(_to_upstream(upstream, receive))
    down = asyncio.create_task(_to_client(upstream, send))
    try:
        done, _ = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if down in done:
            await down
        elif (code := await up) is not None:
            await upstream.close(code=code)
    except ConnectionError:
        # A side went away between two frames; both ends are closed after this.
        pass
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _to_upstream(upstream: aiohttp.ClientWebSocketResponse, receive: Receive) -> int | None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            # 1005 and 1006 tell that there was no code; they must not be sent.
            code = message.get("code") or 1005
            if code == 1006:
                # The connection broke: let Izwi see that too, so that the session may be resumed.
                if upstream._response.connection is not None:
                    upstream._response.close()
                return None
            return 1000 if code == 1005 else code
        if message.get("bytes") is not None:
            await upstream.send_bytes(message["bytes"])
        elif message.get("text") is not None:
            await upstream.send_str(message["text"])


async def _to_client(upstream: aiohttp.ClientWebSocketResponse, send: Send) -> None:
    async for frame in upstream:
        if frame.type == aiohttp.WSMsgType.TEXT:
            await send({"type": "websocket.send", "text": frame.data})
        elif frame.type == aiohttp.WSMsgType.BINARY:
            await send({"type": "websocket.send", "bytes": frame.data})
    # Without a close frame the connection upstream was lost; 1006 itself must not be sent.
    code = upstream.close_code
    await send({"type": "websocket.close", "code": 1011 if code in (None, 1006) else 1000 if code == 1005 else code})


class _Body:
    """A request body, piece by piece, that notices a client which leaves."""

    def __init__(self, receive: Receive, gone: asyncio.Event) -> None:
        self._receive = receive
        self._gone = gone
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._ended:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone.set()
                raise ConnectionResetError("the client left")
            self._ended = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def watch(self) -> None:
        """Waits until the client leaves."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()


def _target(scope: Scope) -> str:
    """Path and query as the client sent them, below the route of the application."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    path = path.removeprefix(scope.get("root_path", "")) or "/"
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


def _encoded(url: str) -> URL:
    return URL(url, encoded=True)


def _answer_headers(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in answer.raw_headers if name.lower() not in _OF_CONNECTION]


async def refuse(send: Send, message: str) -> None:
    """Answers with an error of the status 503."""
    error = {"message": message, "type": "server_error", "param": None, "code": "model_unavailable"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"2"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
