"""The client for asyncio: the methods of `Client`, awaited."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from . import _wire, errors
from ._wire import Recording
from .types import (
    AudioFormat,
    Chunk,
    Interrupted,
    LiveEvent,
    LiveOptions,
    Model,
    SpeechOptions,
    StreamFormat,
    SubtitleFormat,
    Transcript,
    TranscriptionOptions,
    Utterance,
    Voice,
    interrupted_of,
    live_event_of,
    model_of,
    transcript_of,
    voice_of,
)

_T = TypeVar("_T")


class AsyncClient:
    """A server at `base_url`. `timeout` is in seconds and bounds each wait for an answer or a frame."""

    def __init__(self, base_url: str = _wire.DEFAULT_URL, *, api_key: str | None = None, timeout: float = 300.0) -> None:
        self.base_url = _wire.base_url(base_url)
        self._headers = _wire.authorization(api_key)
        self._timeout = timeout
        self._http = httpx.AsyncClient(base_url=self.base_url, headers=self._headers, timeout=timeout)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def speak(
        self,
        text: str,
        *,
        model: str = "tts-1",
        voice: str | None = None,
        response_format: AudioFormat = "wav",
        **options: Unpack[SpeechOptions],
    ) -> bytes:
        """The whole audio of a text."""
        body = _wire.speech_body(text, model, voice, response_format, options)
        return (await self._request("POST", "/v1/audio/speech", json=body)).content

    def stream(
        self,
        text: str | Iterable[str] | AsyncIterable[str],
        *,
        model: str = "tts-1",
        voice: str | None = None,
        response_format: StreamFormat = "pcm",
        **options: Unpack[SpeechOptions],
    ) -> "AsyncSpeechStream":
        """Chunks of audio while it is generated. `text` may come in pieces, as a language model writes it."""
        config = _wire.speech_config(model, voice, response_format, options)
        return AsyncSpeechStream(self, config, [text] if isinstance(text, str) else text)

    async def transcribe(
        self,
        audio: Recording,
        *,
        model: str = "whisper-1",
        language: str | None = None,
        word_times: bool = False,
        **options: Unpack[TranscriptionOptions],
    ) -> Transcript:
        """The text of a recording with its segments, and with its words where `word_times` is set."""
        fields = _wire.form_of(model, "verbose_json", language, word_times, options)
        return transcript_of((await self._transcription(audio, fields)).json())

    async def subtitles(
        self,
        audio: Recording,
        *,
        response_format: SubtitleFormat = "srt",
        model: str = "whisper-1",
        language: str | None = None,
        **options: Unpack[TranscriptionOptions],
    ) -> str:
        """The text of a recording as subtitles."""
        fields = _wire.form_of(model, response_format, language, False, options)
        return (await self._transcription(audio, fields)).text

    async def transcribe_live(
        self,
        audio: Iterable[bytes] | AsyncIterable[bytes],
        *,
        sample_rate: int = 16_000,
        word_times: bool = False,
        **options: Unpack[LiveOptions],
    ) -> AsyncIterator[LiveEvent]:
        """Text while it is spoken. `audio` gives mono PCM of 16 bits, as it is recorded; its end ends the session."""
        config = _wire.message("session.config", sample_rate=sample_rate, word_times=word_times, **options)
        socket = await self._open(_wire.LIVE_STREAM)
        feeder = _Feeder(socket, config, _each(audio))
        try:
            while (fields := _wire.event(str(await feeder.receive(self._timeout))))["type"] != "session.done":
                if (event := live_event_of(fields)) is not None:
                    yield event
        finally:
            await feeder.close()

    async def voices(self, model: str | None = None) -> list[Voice]:
        """Voices of a loaded model, or of all of them, and saved voices."""
        params = {"model": model} if model is not None else {}
        listed = (await self._request("GET", "/v1/audio/voices", params=params)).json()
        return [voice_of(fields) for fields in listed["voices"]]

    async def models(self) -> list[Model]:
        return [model_of(fields) for fields in (await self._request("GET", "/v1/models")).json()["data"]]

    async def _transcription(self, audio: Recording, fields: dict[str, Any]) -> httpx.Response:
        files = {"file": await asyncio.to_thread(_wire.file_of, audio)}
        return await self._request("POST", "/v1/audio/transcriptions", data=fields, files=files)

    async def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **arguments)
        except httpx.TransportError as why:
            raise errors.unreachable(self.base_url, why) from why
        if response.is_success:
            return response
        raise errors.of_response(response.status_code, response.headers, response.content)

    async def _open(self, path: str) -> ClientConnection:
        url = _wire.socket_url(self.base_url, path)
        try:
            return await connect(
                url,
                additional_headers=self._headers,
                max_size=None,
                open_timeout=self._timeout,
                close_timeout=_wire.CLOSE_TIMEOUT_S,
            )
        except InvalidStatus as refused:
            response = refused.response
            body = bytes(response.body or b"")
            raise errors.of_response(response.status_code, response.headers, body) from refused
        except (OSError, WebSocketException) as why:
            raise errors.unreachable(self.base_url, why) from why


class AsyncSpeechStream:
    """As `SpeechStream`: `async for` gives its chunks, `async with` closes it."""

    def __init__(self, client: AsyncClient, config: str, text: Iterable[str] | AsyncIterable[str]) -> None:
        self._client = client
        self._config = config
        self._text = text
        self._session = _wire.Speech()
        self._feeder: _Feeder | None = None

    @property
    def utterances(self) -> list[Utterance]:
        return self._session.utterances

    @property
    def sample_rate(self) -> int:
        """Of the chunks, in Hz; 0 before the first one."""
        return self._session.sample_rate

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._session.is_done:
            taken = await self._take()
            if isinstance(taken, Chunk):
                await self._report()
                return taken
        await self.close()
        raise StopAsyncIteration

    async def played(self, played_ms: int, gap_ms: int | None = None) -> None:
        """Reports how much of the utterance of the last chunk was played, in place of the clock, and the silence that was
        heard in it because audio was missing."""
        await (await self._connected()).send(self._session.played(played_ms, gap_ms))

    async def interrupt(self, played_ms: int | None = None) -> Interrupted:
        """Ends the speech, and tells what was heard of it. Without `played_ms` the last report decides."""
        await (await self._connected()).send(self._session.interrupt(played_ms))
        while not isinstance(taken := await self._take(), dict) or taken["type"] != "interrupted":
            if self._session.is_done:
                raise errors.cut_off("the session was over before the interruption")
        await self.close()
        return interrupted_of(taken)

    async def close(self) -> None:
        self._session.is_done = True
        if self._feeder is not None:
            await self._feeder.close()

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connected(self) -> "_Feeder":
        if self._feeder is None:
            socket = await self._client._open(_wire.SPEECH_STREAM)
            self._feeder = _Feeder(socket, self._config, _pieces(self._text))
        return self._feeder

    async def _take(self) -> Chunk | dict[str, Any]:
        try:
            feeder = await self._connected()
            return self._session.take(await feeder.receive(self._client._timeout))
        except BaseException:
            await self.close()
            raise

    async def _report(self) -> None:
        # A report is worth nothing once the session ends.
        if (report := self._session.report()) is not None and self._feeder is not None:
            with suppress(errors.IzwiError):
                await self._feeder.send(report)


class _Feeder:
    """Sends what a session is fed in a task of its own, so that a slow source holds up no audio."""

    def __init__(self, socket: ClientConnection, config: str, source: AsyncIterator[str | bytes]) -> None:
        self._socket = socket
        self._failure: BaseException | None = None
        self._task = asyncio.create_task(self._feed(config, source))

    async def _feed(self, config: str, source: AsyncIterator[str | bytes]) -> None:
        try:
            await self._socket.send(config)
            async for frame in source:
                await self._socket.send(frame)
            await self._socket.send(_wire.message("input.done"))
        except ConnectionClosed:
            # The receiving side tells why.
            return
        except Exception as failure:  # of the source: it is raised where frames are received
            self._failure = failure
            await self._socket.close()

    async def send(self, frame: str) -> None:
        try:
            await self._socket.send(frame)
        except ConnectionClosed as why:
            raise errors.cut_off(why) from why

    async def receive(self, timeout: float) -> str | bytes:
        try:
            async with asyncio.timeout(timeout):
                return await self._socket.recv()
        except TimeoutError as why:
            raise errors.cut_off(f"no frame came within {timeout:g} s") from why
        except ConnectionClosed as why:
            if self._failure is not None:
                raise self._failure from None
            raise errors.cut_off(why) from why

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._socket.close()


async def _pieces(text: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    async for piece in _each(text):
        yield _wire.message("input.text", text=piece)


async def _each(source: Iterable[_T] | AsyncIterable[_T]) -> AsyncIterator[_T]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for item in source:
            yield item
