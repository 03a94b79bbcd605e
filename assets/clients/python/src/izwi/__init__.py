"""A client for a server of Izwi, which `izwi serve` starts.

import izwi

with izwi.Client() as client:
    open("hello.wav", "wb").write(client.speak("Hello."))
    print(client.transcribe("hello.wav").text)
    with client.stream("This plays while it is generated.") as chunks:
        for chunk in chunks:
            play(chunk.data)  # 200 ms of 16-bit PCM at chunk.sample_rate
"""

from importlib.metadata import PackageNotFoundError, version

from .aio import AsyncClient, AsyncSpeechStream
from .client import Client, SpeechStream
from .errors import IzwiError
from .types import (
    AudioFormat,
    Chunk,
    Committed,
    Encoding,
    Interrupted,
    LiveEvent,
    LiveOptions,
    Model,
    Partial,
    Priority,
    Segment,
    SpeechOptions,
    SpeechStarted,
    Spoken,
    StreamFormat,
    SubtitleFormat,
    Transcript,
    TranscriptionOptions,
    TurnEnd,
    TurnSpeakers,
    Utterance,
    Voice,
    Word,
)

try:
    __version__ = version("izwi")
except PackageNotFoundError:  # run from the source tree
    __version__ = "0"

__all__ = [
    "AsyncClient",
    "AsyncSpeechStream",
    "AudioFormat",
    "Chunk",
    "Client",
    "Committed",
    "Encoding",
    "Interrupted",
    "IzwiError",
    "LiveEvent",
    "LiveOptions",
    "Model",
    "Partial",
    "Priority",
    "Segment",
    "SpeechOptions",
    "SpeechStarted",
    "SpeechStream",
    "Spoken",
    "StreamFormat",
    "SubtitleFormat",
    "Transcript",
    "TranscriptionOptions",
    "TurnEnd",
    "TurnSpeakers",
    "Utterance",
    "Voice",
    "Word",
]
