"""Talks to a running server with the real `wyoming` package, as Home Assistant does.

usage: wyoming_client.py BASE_URL HOST PORT RECORDING WORD

RECORDING is a WAV file whose transcript by the default ASR model has WORD in it. Exits with a traceback at the first
deviation from the protocol; prints one line for each check that passed.
"""

import asyncio
import faulthandler
import json
import sys
import urllib.request
import wave

import numpy as np
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop, wav_to_chunks
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info, SelectProgram
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

TEXT = "The kitchen lights are on."
ANSWER = ["The kitchen lights ", "are on, and the heating ", "is off. ", "Shall I open ", "the garden door?"]
# No single word of the answer is certain, but most of them are.
ANSWER_WORDS = {"kitchen", "lights", "heating", "off", "open", "garden", "door"}


class Server:
    def __init__(self, base_url: str, host: str, port: int) -> None:
        self.base_url, self.host, self.port = base_url, host, port

    def connect(self) -> AsyncTcpClient:
        return AsyncTcpClient(self.host, self.port, connect_timeout=60, read_timeout=120)

    async def answers(self, *events: Event) -> list[Event]:
        """Sends events on a connection of their own and returns what comes until the server closes."""
        async with self.connect() as client:
            for event in events:
                await client.write_event(event)
            answers = []
            while (event := await client.read_event()) is not None:
                answers.append(event)
            return answers

    async def refused(self, code: str, word: str, *events: Event) -> None:
        answers = await self.answers(*events)
        error = Error.from_event(answers[-1])
        assert Error.is_type(answers[-1].type) and error.code == code and word in error.text, answers

    async def until_idle(self) -> None:
        for _ in range(600):
            with urllib.request.urlopen(f"{self.base_url}/health") as response:
                if json.load(response)["sessions_open"] == 0:
                    return
            await asyncio.sleep(0.1)
        raise AssertionError("the sessions stay open")


def passed(what: str) -> None:
    print(f"passed: {what}", flush=True)


async def main(base_url: str, host: str, port: str, recording: str, word: str) -> None:
    server = Server(base_url, host, int(port))
    info = await description(server)
    await speech(server, info)
    await streamed_speech(server)
    await transcripts(server, recording, word)
    await formats(server, recording, word)
    await conversation(server, recording, word)
    await cancellation(server)
    await errors(server)


async def description(server: Server) -> Info:
    async with server.connect() as client:
        await client.write_event(Ping(text="are you there?").event())
        pong = await client.read_event()
        assert Pong.is_type(pong.type) and Pong.from_event(pong).text == "are you there?", pong
        await client.write_event(Describe().event())
        event = await client.read_event()
        assert Info.is_type(event.type), event
    info = Info.from_event(event)
    asr, tts = info.asr[0], info.tts[0]
    assert asr.installed and asr.models[0].installed and "en" in asr.models[0].languages, asr
    assert asr.supports_transcript_streaming and asr.requires_external_vad, asr
    assert tts.installed and tts.supports_synthesize_streaming and tts.voices, tts
    assert all(voice.installed and voice.languages and voice.description for voice in tts.voices), tts
    assert tts.attribution.name and tts.version, tts
    passed("describe")
    return info


async def read_speech(client: AsyncTcpClient) -> tuple[AudioStart, bytes]:
    """One audio-start, chunks of its format without gaps in time, one audio-stop."""
    event = await client.read_event()
    assert event is not None and AudioStart.is_type(event.type), event
    start = AudioStart.from_event(event)
    assert (start.width, start.channels, start.timestamp) == (2, 1, 0), start
    audio = b""
    while True:
        event = await client.read_event()
        assert event is not None, "the connection ended within speech"
        at_ms = len(audio) * 1000 // (2 * start.rate)
        if AudioStop.is_type(event.type):
            assert AudioStop.from_event(event).timestamp == at_ms, event
            return start, audio
        chunk = AudioChunk.from_event(event)
        assert (chunk.rate, chunk.width, chunk.channels, chunk.timestamp) == (start.rate, 2, 1, at_ms), event.data
        audio += chunk.audio


async def speak(server: Server, text: str, voice: SynthesizeVoice | None = None) -> tuple[AudioStart, bytes]:
    async with server.connect() as client:
        await client.write_event(Synthesize(text=text, voice=voice).event())
        return await read_speech(client)


async def speech(server: Server, info: Info) -> None:
    start, audio = await speak(server, TEXT)
    assert len(audio) > start.rate and np.abs(np.frombuffer(audio, "<i2")).max() > 1_000, len(audio)
    passed("speech")
    voice = info.tts[0].voices[-1]
    named = await speak(server, TEXT, SynthesizeVoice(name=voice.name))
    by_language = await speak(server, TEXT, SynthesizeVoice(language=voice.languages[0]))
    assert len(named[1]) > start.rate and len(by_language[1]) > start.rate
    passed("speech by name and language of the voice")
    async with server.connect() as client:
        await client.write_event(SelectProgram(name=info.tts[0].name).event())
        await client.write_event(Synthesize(text="One.").event())
        await client.write_event(Event(type="detect", data={"names": ["x"]}))
        await client.write_event(Synthesize(text="Two.").event())
        one, two = await read_speech(client), await read_speech(client)
        assert len(one[1]) > 4_000 and len(two[1]) > 4_000
    passed("several requests on one connection, and events of other services are dropped")


async def streamed_speech(server: Server) -> None:
    async with server.connect() as client:
        await client.write_event(SynthesizeStart().event())
        first = "This sentence is long enough to be spoken before the others arrive. "
        for piece in [first[:10], first[10:], "And "]:
            await client.write_event(SynthesizeChunk(text=piece).event())
        events = []
        # The rest is sent only after audio of the beginning has come.
        while not any(AudioChunk.is_type(event.type) for event in events):
            events.append(await client.read_event())
        await client.write_event(SynthesizeChunk(text="this is the end.").event())
        # Home Assistant sends the whole text as well, for servers without streams.
        await client.write_event(Synthesize(text=f"{first}And this is the end.").event())
        await client.write_event(SynthesizeStop().event())
        while not SynthesizeStopped.is_type(events[-1].type):
            events.append(await client.read_event())
        kinds = [event.type for event in events]
        assert kinds == ["audio-start"] + ["audio-chunk"] * (len(kinds) - 3) + ["audio-stop", "synthesize-stopped"], kinds
        seconds = sum(AudioChunk.from_event(event).seconds for event in events[1:-2])
        # The text was spoken once: some 90 characters.
        assert 3 < seconds < 11, seconds
        # The connection continues.
        for event in [SynthesizeStart().event(), SynthesizeStop().event(), Ping().event()]:
            await client.write_event(event)
        assert SynthesizeStopped.is_type((await client.read_event()).type)
        assert Pong.is_type((await client.read_event()).type)
    passed("speech of text in pieces, from its first sentence on")


async def transcribe(server: Server, chunks: list[Event], **fields: object) -> Transcript:
    async with server.connect() as client:
        await client.write_event(Transcribe(**fields).event())
        for chunk in chunks:
            await client.write_event(chunk)
        event = await client.read_event()
        assert event is not None and TranscriptStart.is_type(event.type), event
        pieces = []
        while TranscriptChunk.is_type((event := await client.read_event()).type):
            pieces.append(TranscriptChunk.from_event(event).text)
        assert Transcript.is_type(event.type), event
        transcript = Transcript.from_event(event)
        assert "".join(pieces) == transcript.text, (pieces, transcript)
        assert TranscriptStop.is_type((await client.read_event()).type)
        return transcript


def chunks_of(path: str) -> list[Event]:
    with wave.open(path, "rb") as file:
        return [part.event() for part in wav_to_chunks(file, 1_024, start_event=True, stop_event=True)]


def pcm_chunks(samples: np.ndarray, rate: int, width: int, channels: int) -> list[Event]:
    """Events of samples in -1..1 as PCM of this format."""
    scaled = np.clip(np.repeat(samples[:, None], channels, axis=1), -1, 0.999_999)
    if width == 1:
        audio = (scaled * 128 + 128).astype(np.uint8).tobytes()
    else:
        whole = (scaled * (1 << (8 * width - 1))).astype("<i8")
        audio = whole[..., None].view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    frame = width * channels
    pieces = [audio[at : at + 2_000 * frame] for at in range(0, len(audio), 2_000 * frame)]
    chunks = [AudioChunk(rate=rate, width=width, channels=channels, audio=piece).event() for piece in pieces]
    return [AudioStart(rate=rate, width=width, channels=channels).event(), *chunks, AudioStop().event()]


def samples_of(path: str) -> tuple[np.ndarray, int]:
    with wave.open(path, "rb") as file:
        audio = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return audio.reshape(-1, file.getnchannels()).mean(axis=1) / 32_768, file.getframerate()


async def transcripts(server: Server, recording: str, word: str) -> None:
    transcript = await transcribe(server, chunks_of(recording), language="en")
    assert word in transcript.text.lower() and transcript.language == "en", transcript
    async with server.connect() as client:
        await client.write_event(Describe().event())
        model = Info.from_event(await client.read_event()).asr[0].models[0].name
    hinted = await transcribe(
        server,
        chunks_of(recording),
        name=model,
        transcript_names=["America"],
        transcript_terms=["fellow citizens"],
        vad_sensitivity="relaxed",
        context={"id": 1},
    )
    assert word in hinted.text.lower(), hinted
    passed("transcripts, streamed and whole")


async def formats(server: Server, recording: str, word: str) -> None:
    samples, rate = samples_of(recording)
    thrice = np.interp(np.arange(3 * len(samples)) / 3, np.arange(len(samples)), samples)
    for data, data_rate, width, channels in [
        (samples, rate, 1, 1),
        (samples, rate, 3, 2),
        (samples, rate, 4, 1),
        (thrice, 3 * rate, 2, 2),
    ]:
        transcript = await transcribe(server, pcm_chunks(data, data_rate, width, channels))
        assert word in transcript.text.lower(), (data_rate, width, channels, transcript)
    passed("recordings of every width, and of other rates and channels")


async def conversation(server: Server, recording: str, word: str) -> None:
    """As Home Assistant: each step on a connection of its own."""
    info = await description(server)
    question = await transcribe(server, chunks_of(recording), language=info.asr[0].models[0].languages[0])
    assert word in question.text.lower(), question
    voice = SynthesizeVoice(name=info.tts[0].voices[0].name)
    async with server.connect() as client:
        await client.write_event(SynthesizeStart(voice=voice).event())
        for piece in ANSWER:
            await client.write_event(SynthesizeChunk(text=piece).event())
        await client.write_event(Synthesize(text="".join(ANSWER), voice=voice).event())
        await client.write_event(SynthesizeStop().event())
        start, audio = await read_speech(client)
        assert SynthesizeStopped.is_type((await client.read_event()).type)
    chunk = AudioChunk(rate=start.rate, width=2, channels=1, audio=audio)
    pieces = [chunk.audio[at : at + 8_192] for at in range(0, len(audio), 8_192)]
    events = [AudioChunk(rate=start.rate, width=2, channels=1, audio=piece).event() for piece in pieces]
    begin = AudioStart(rate=start.rate, width=2, channels=1).event()
    understood = await transcribe(server, [begin, *events, AudioStop().event()])
    words = {word.strip(".,?!").lower() for word in understood.text.split()}
    assert len(words & ANSWER_WORDS) >= 5, understood
    passed("a conversation like Home Assistant's")


async def cancellation(server: Server) -> None:
    client = server.connect()
    await client.connect()
    await client.write_event(Synthesize(text="This text is spoken to nobody. " * 60).event())
    while not AudioChunk.is_type((await client.read_event()).type):
        pass
    await client.disconnect()
    await server.until_idle()
    passed("a client that leaves ends its request")


async def errors(server: Server) -> None:
    await server.refused("voice_not_found", "nobody", Synthesize(text="Hi.", voice=SynthesizeVoice(name="nobody")).event())
    voice = SynthesizeVoice(name="x", speaker="someone")
    await server.refused("invalid_value", "someone", Synthesize(text="Hi.", voice=voice).event())
    await server.refused("invalid_value", "'xx'", Synthesize(text="Hi.", voice=SynthesizeVoice(language="xx")).event())
    await server.refused("invalid_value", "ssml", Synthesize(text="<speak/>", text_format="ssml").event())
    await server.refused("invalid_value", "text", Synthesize(text="  ").event())
    await server.refused("model_not_found", "nothing", SelectProgram(name="nothing").event())
    await server.refused("out_of_order", "synthesize-start", SynthesizeChunk(text="Hi.").event())
    await server.refused("out_of_order", "audio-start", AudioStop().event())
    start = AudioStart(rate=16_000, width=2, channels=1).event()
    await server.refused("invalid_value", "whole frames", start, AudioChunk(16_000, 2, 1, b"abc").event())
    await server.refused("out_of_order", "format", start, AudioChunk(8_000, 2, 1, b"ab").event())
    await server.refused("invalid_value", "rate", AudioStart(rate=1, width=2, channels=1).event())
    await server.refused("invalid_value", "language", Transcribe(language="tlh").event(), start, SPEECHLESS, AudioStop().event())
    passed("errors are reported, and end the connection")


SPEECHLESS = AudioChunk(16_000, 2, 1, bytes(32_000)).event()

if __name__ == "__main__":
    # What hangs is shown before the test ends.
    faulthandler.dump_traceback_later(250, exit=True)
    asyncio.run(main(*sys.argv[1:]))
