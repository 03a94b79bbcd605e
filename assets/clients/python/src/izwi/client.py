"""The client for programs without asyncio."""

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

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


class Client:
    """A server at `base_url`. `timeout` is in seconds and bounds each wait for an answer or a frame."""

    def __init__(self, base_url: str = _wire.DEFAULT_URL, *, api_key: str | None = None, timeout: float = 300.0) -> None:
        self.base_url = _wire.base_url(base_url)
        self._headers = _wire.authorization(api_key)
        self._timeout = timeout
        self._http = httpx.Client(base_url=self.base_url, headers=self._headers, timeout=timeout)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def speak(
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
        return self._request("POST", "/v1/audio/speech", json=body).content

    def stream(
        self,
        text: str | Iterable[str],
        *,
        model: str = "tts-1",
        voice: str | None = None,
        response_format: StreamFormat = "pcm",
        **options: Unpack[SpeechOptions],
    ) -> "SpeechStream":
        """Chunks of audio while it is generated. `text` may come in pieces, as a language model writes it."""
        config = _wire.speech_config(model, voice, response_format, options)
        socket = self._open(_wire.SPEECH_STREAM)
        return SpeechStream(socket, config, [text] if isinstance(text, str) else text, self._timeout)

    def transcribe(
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
        return transcript_of(self._transcription(audio, fields).json())

    def subtitles(
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
        return self._transcription(audio, fields).text

    def transcribe_live(
        self,
        audio: Iterable[bytes],
        *,
        sample_rate: int = 16_000,
        word_times: bool = False,
        **options: Unpack[LiveOptions],
    ) -> Iterator[LiveEvent]:
        """Text while it is spoken. `audio` gives mono PCM of 16 bits, as it is recorded; its end ends the session."""
        config = _wire.message("session.config", sample_rate=sample_rate, word_times=word_times, **options)
        socket = self._open(_wire.LIVE_STREAM)
        feeder = _Feeder(socket, [config], audio, [_wire.message("input.done")])
        try:
            while (fields := _wire.event(str(feeder.receive(self._timeout))))["type"] != "session.done":
                if (event := live_event_of(fields)) is not None:
                    yield event
        finally:
            feeder.close()

    def voices(self, model: str | None = None) -> list[Voice]:
        """Voices of a loaded model, or of all of them, and saved voices."""
        params = {"model": model} if model is not None else {}
        listed = self._request("GET", "/v1/audio/voices", params=params).json()
        return [voice_of(fields) for fields in listed["voices"]]

    def models(self) -> list[Model]:
        return [model_of(fields) for fields in self._request("GET", "/v1/models").json()["data"]]

    def _transcription(self, audio: Recording, fields: dict[str, Any]) -> httpx.Response:
        files = {"file": _wire.file_of(audio)}
        return self._request("POST", "/v1/audio/transcriptions", data=fields, files=files)

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.TransportError as why:
            raise errors.unreachable(self.base_url, why) from why
        if response.is_success:
            return response
        raise errors.of_response(response.status_code, response.headers, response.content)

    def _open(self, path: str) -> ClientConnection:
        url = _wire.socket_url(self.base_url, path)
        try:
            return connect(
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


class SpeechStream:
    """Iterates over the chunks of a speech session. Leaving its `with` block closes the session.

    Each chunk that is handed out reports playback to the server: by the clock, as if the first one were played when it was
    taken. A player that knows better calls `played`. `utterances` has those that ended.
    """

    def __init__(self, socket: ClientConnection, config: str, text: Iterable[str], timeout: float) -> None:
        self._session = _wire.Speech()
        self._timeout = timeout
        pieces = (_wire.message("input.text", text=piece) for piece in text)
        self._feeder = _Feeder(socket, [config], pieces, [_wire.message("input.done")])

    @property
    def utterances(self) -> list[Utterance]:
        return self._session.utterances

    @property
    def sample_rate(self) -> int:
        """Of the chunks, in Hz; 0 before the first one."""
        return self._session.sample_rate

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        while not self._session.is_done:
            taken = self._take()
            if isinstance(taken, Chunk):
                self._report()
                return taken
        self.close()
        raise StopIteration

    def played(self, played_ms: int, gap_ms: int | None = None) -> None:
        """Reports how much of the utterance of the last chunk was played, in place of the clock, and the silence that was
        heard in it because audio was missing."""
        self._feeder.send(self._session.played(played_ms, gap_ms))

    def interrupt(self, played_ms: int | None = None) -> Interrupted:
        """Ends the speech, and tells what was heard of it. Without `played_ms` the last report decides."""
        self._feeder.send(self._session.interrupt(played_ms))
        while not isinstance(taken := self._take(), dict) or taken["type"] != "interrupted":
            if self._session.is_done:
                raise errors.cut_off("the session was over before the interruption")
        self._session.is_done = True
        self.close()
        return interrupted_of(taken)

    def close(self) -> None:
        self._session.is_done = True
        self._feeder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _take(self) -> Chunk | dict[str, Any]:
        try:
            return self._session.take(self._feeder.receive(self._timeout))
        except BaseException:
            self.close()
            raise

    def _report(self) -> None:
        # A report is worth nothing once the session ends.
        if (report := self._session.report()) is not None:
            with suppress(errors.IzwiError):
                self._feeder.send(report)


class _Feeder:
    """Sends what a session is fed from a thread of its own, so that a slow source holds up no audio."""

    def __init__(self, socket: ClientConnection, first: list[str], source: Iterable[str | bytes], last: list[str]) -> None:
        self._socket = socket
        self._failure: BaseException | None = None
        frames = itertools.chain(first, source, last)
        # It may wait for its source when the program ends.
        threading.Thread(target=self._feed, args=(frames,), name="izwi-feeder", daemon=True).start()

    def _feed(self, frames: Iterator[str | bytes]) -> None:
        try:
            for frame in frames:
                self._socket.send(frame)
        except ConnectionClosed:
            # The receiving side tells why.
            return
        except BaseException as failure:  # of the source: it is raised where frames are received
            self._failure = failure
            self._socket.close()

    def send(self, frame: str) -> None:
        try:
            self._socket.send(frame)
        except ConnectionClosed as why:
            raise errors.cut_off(why) from why

    def receive(self, timeout: float) -> str | bytes:
        try:
            return self._socket.recv(timeout=timeout)
        except TimeoutError as why:
            raise errors.cut_off(f"no frame came within {timeout:g} s") from why
        except ConnectionClosed as why:
            if self._failure is not None:
                raise self._failure from None
            raise errors.cut_off(why) from why

    def close(self) -> None:
        self._socket.close()
