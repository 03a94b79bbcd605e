"""Talks to running servers with the `izwi` package of assets/clients/python, as an application does.

usage: izwi_client.py TTS_URL ASR_URL KEYED_URL KEY RECORDING

The models are simulated: that of ASR_URL generates one word per second. RECORDING is a WAV of speech at 16 kHz. Exits with a
traceback at the first deviation; prints one line for each check that passed.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import izwi

TEXT = "A first sentence is spoken here. And a second one follows it."
HEADER_BYTES = 44
RATE_HZ = 16_000


def passed(what: str) -> None:
    print(f"passed: {what}", flush=True)


def refused(error: izwi.IzwiError, **expected: object) -> None:
    for name, value in expected.items():
        assert getattr(error, name) == value, f"{name} of {error!r} is {getattr(error, name)!r}"
    assert error.message, error


def microphone(recording: Path) -> Iterator[bytes]:
    silence = bytes(2 * RATE_HZ)
    pcm = silence + recording.read_bytes()[HEADER_BYTES:] + silence
    for at in range(0, len(pcm), RATE_HZ // 5):
        yield pcm[at : at + RATE_HZ // 5]


def words() -> Iterator[str]:
    for word in TEXT.split():
        time.sleep(0.001)
        yield f"{word} "


def check_chunks(chunks: list[izwi.Chunk], utterances: list[izwi.Utterance], chunk_ms: int = 200) -> None:
    assert sum(chunk.samples for chunk in chunks) == sum(each.samples for each in utterances) > 0
    assert {each.finish_reason for each in utterances} == {"stop"}, utterances
    for chunk in chunks:
        assert len(chunk.data) == 2 * chunk.samples and chunk.sample_rate == 24_000, chunk
        assert chunk.is_final or chunk.samples == 24 * chunk_ms, chunk


def check_turns(events: list[izwi.LiveEvent]) -> None:
    ended = [event for event in events if isinstance(event, izwi.TurnEnd)]
    assert ended, events
    for turn in ended:
        committed = [each for each in events if isinstance(each, izwi.Committed) and each.turn == turn.turn]
        assert "".join(each.text for each in committed).strip() == turn.text, events
        assert all(word.start <= word.end for each in committed for word in each.words), events
        assert turn.start < turn.end


def speech(url: str) -> None:
    with izwi.Client(url) as client:
        wav = client.speak(TEXT, seed=1)
        assert wav[:4] == b"RIFF"
        assert client.speak(TEXT, response_format="pcm", seed=1) == wav[HEADER_BYTES:]
        assert client.speak(TEXT, response_format="mp3", priority="high")[:4] != b"RIFF"
        passed("speak gives the file of a text")

        with client.stream(TEXT, response_format="pcm") as stream:
            chunks = list(stream)
        assert stream.sample_rate == 24_000
        check_chunks(chunks, stream.utterances)
        with client.stream(words()) as pieces:
            assert sum(chunk.samples for chunk in pieces) == sum(chunk.samples for chunk in chunks)
        passed("stream gives exact chunks of a text, and of its pieces")

        with client.stream(TEXT * 20) as stream:
            next(stream)
            stream.played(50)
            heard = stream.interrupt(100)
            assert heard.played_ms == 100 and len(heard.text_remaining) > len(heard.text_spoken), heard
            assert list(stream) == []
        passed("an interruption tells what was heard")

        def broken() -> Iterator[str]:
            yield "A sentence. "
            raise LookupError("no more words")

        try:
            list(client.stream(broken()))
            raise AssertionError("a failing source ends the stream")
        except LookupError as error:
            assert str(error) == "no more words"
        passed("a source that fails is raised")

        [model] = [model for model in client.models() if model.default]
        assert "tts" in model.tasks and model.sample_rate == 24_000, model
        assert any(voice.default for voice in client.voices(model.id))
        passed("voices and models are listed")


def transcription(url: str, recording: Path) -> None:
    with izwi.Client(url) as client:
        transcript = client.transcribe(recording, word_times=True, language="en", keywords=["Izwi"])
        assert "word0" in transcript.text and transcript.segments and transcript.duration > 0, transcript
        assert transcript.words and all(word.start <= word.end for word in transcript.words)
        assert client.transcribe(recording.read_bytes()).text == transcript.text
        with recording.open("rb") as file:
            assert client.transcribe(file).text == transcript.text
        assert "-->" in client.subtitles(recording)
        assert client.subtitles(recording, response_format="vtt").startswith("WEBVTT")
        passed("transcribe takes paths, bytes and files")
        check_turns(list(client.transcribe_live(microphone(recording), word_times=True)))
        passed("live transcription commits the text of each turn")


def errors(url: str, keyed_url: str, key: str) -> None:
    def fails(call: object, **expected: object) -> None:
        try:
            call()  # type: ignore[operator]
        except izwi.IzwiError as error:
            refused(error, **expected)
        else:
            raise AssertionError(f"accepted, where {expected} is due")

    client = izwi.Client(url)
    fails(lambda: client.speak(" "), status=400, param="input")
    fails(lambda: client.voices("nothing"), status=404, code="model_not_found")
    fails(lambda: list(client.stream(TEXT, speed=9.0)), code="invalid_value", param="speed")
    nobody = izwi.Client("127.0.0.1:1")
    fails(nobody.models, code="unreachable", status=None)
    fails(lambda: nobody.stream("a"), code="unreachable")
    stranger = izwi.Client(keyed_url)
    fails(stranger.models, status=401, code="invalid_api_key")
    fails(lambda: stranger.stream("a"), status=401, code="invalid_api_key")
    with izwi.Client(keyed_url, api_key=key) as known:
        assert known.models() and list(known.stream(TEXT))
    passed("errors name the field, and a key opens requests and sessions")


async def asynchronous(url: str, asr_url: str, recording: Path) -> None:
    async def later() -> AsyncIterator[str]:
        for word in words():
            await asyncio.sleep(0.001)
            yield word

    async with izwi.AsyncClient(url) as client:
        wav, models, voices = await asyncio.gather(client.speak(TEXT), client.models(), client.voices())
        assert wav[:4] == b"RIFF" and models and voices
        async with client.stream(later()) as stream:
            check_chunks([chunk async for chunk in stream], stream.utterances)
        async with client.stream(TEXT * 20) as stream:
            await anext(stream)
            await stream.played(50)
            heard = await stream.interrupt(100)
            assert heard.played_ms == 100 and heard.text_remaining, heard
        try:
            await client.speak(" ")
            raise AssertionError("blank text is refused")
        except izwi.IzwiError as error:
            refused(error, status=400, param="input")
    async with izwi.AsyncClient(asr_url) as client:
        assert "word0" in (await client.transcribe(recording)).text
        assert "-->" in await client.subtitles(recording)
        check_turns([event async for event in client.transcribe_live(microphone(recording), word_times=True)])
    passed("the client for asyncio does the same")


def main(tts_url: str, asr_url: str, keyed_url: str, key: str, recording: str) -> None:
    speech(tts_url)
    transcription(asr_url, Path(recording))
    errors(tts_url, keyed_url, key)
    asyncio.run(asynchronous(tts_url, asr_url, Path(recording)))


main(*sys.argv[1:])
