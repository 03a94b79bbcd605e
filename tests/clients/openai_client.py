"""Talks to a running server with the real `openai` package, as an application does.

usage: client.py BASE_URL RECORDING ASR_MODEL WORD TRANSLATOR

ASR_MODEL, the default, transcribes RECORDING to a text with WORD in it. TRANSLATOR is a model that translates; ASR_MODEL is
not expected to, unless it is the same. Exits with a traceback at the first deviation from the API; prints one line for each
check that passed.
"""

import asyncio
import io
import sys
import wave

import openai

VOICE_TEXT = "The server speaks through the same package."


def main(base_url: str, recording: str, asr_model: str, word: str, translator: str) -> None:
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=120)
    with open(recording, "rb") as file:
        audio = file.read()
    transcriptions(client, audio, asr_model, word)
    streams(client, audio, word)
    translations(client, audio, asr_model, translator)
    speech(client)
    models(client, asr_model)
    errors(client, audio, asr_model)
    asynchronous(base_url, audio, word)


def passed(what: str) -> None:
    print(f"passed: {what}")


def file_of(audio: bytes) -> tuple[str, bytes]:
    return ("recording.wav", audio)


def transcriptions(client: openai.OpenAI, audio: bytes, asr_model: str, word: str) -> None:
    for model in ["whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", asr_model]:
        transcript = client.audio.transcriptions.create(model=model, file=file_of(audio))
        assert word in transcript.text.lower(), transcript
        assert transcript.usage.type == "duration" and transcript.usage.seconds > 0, transcript
    passed("transcription as json, by every name")

    text = client.audio.transcriptions.create(model="whisper-1", file=file_of(audio), response_format="text")
    assert isinstance(text, str) and text == transcript.text, text
    srt = client.audio.transcriptions.create(model="whisper-1", file=file_of(audio), response_format="srt")
    assert srt.startswith("1\n00:00:0") and " --> " in srt and word in srt.lower(), srt
    vtt = client.audio.transcriptions.create(model="whisper-1", file=file_of(audio), response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:0") and word in vtt.lower(), vtt
    passed("transcription as text, srt and vtt")

    verbose = client.audio.transcriptions.create(
        model="whisper-1",
        file=file_of(audio),
        response_format="verbose_json",
        language="en",
        prompt="A recording.",
        temperature=0,
    )
    assert word in verbose.text.lower() and verbose.language and verbose.duration > 0, verbose
    assert verbose.segments and verbose.segments[0].end > verbose.segments[0].start, verbose
    assert "".join(segment.text for segment in verbose.segments).strip() == verbose.text, verbose
    assert not verbose.words, verbose
    passed("transcription as verbose_json")

    words = client.audio.transcriptions.create(
        model="whisper-1",
        file=file_of(audio),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    ).words
    assert words and any(word in item.word.lower() for item in words), words
    assert all(a.start <= b.start and a.start <= a.end for a, b in zip(words, words[1:])), words
    passed("transcription with words")


def streams(client: openai.OpenAI, audio: bytes, word: str) -> None:
    for form in ["json", "text"]:
        stream = client.audio.transcriptions.create(
            model="gpt-4o-mini-transcribe", file=file_of(audio), response_format=form, stream=True
        )
        events = list(stream)
        assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1), events
        done = events[-1]
        assert done.type == "transcript.text.done" and word in done.text.lower(), done
        assert "".join(event.delta for event in events[:-1]) == done.text, events
    passed("transcription as a stream")


def translations(client: openai.OpenAI, audio: bytes, asr_model: str, translator: str) -> None:
    create = client.audio.translations.create
    if translator != asr_model:
        refused(openai.BadRequestError, "model", lambda: create(model="whisper-1", file=file_of(audio)), asr_model)
        passed("translation is refused by a model that cannot")
    transcript = create(model=translator, file=file_of(audio))
    assert transcript.text, transcript
    for form in ["text", "srt", "vtt"]:
        text = create(model=translator, file=file_of(audio), response_format=form)
        assert isinstance(text, str) and text, text
    verbose = create(
        model=translator, file=file_of(audio), response_format="verbose_json", prompt="A prompt.", temperature=0.2
    )
    assert verbose.text and verbose.duration > 0, verbose
    passed("translation in every form")


def speech(client: openai.OpenAI) -> None:
    sizes = {}
    for form in ["wav", "pcm"]:
        with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input=VOICE_TEXT, response_format=form, extra_body={"seed": 1}
        ) as response:
            pieces = list(response.iter_bytes())
            assert response.headers["content-type"] == f"audio/{form}", response.headers
        audio = b"".join(pieces)
        assert (audio[:4] == b"RIFF") == (form == "wav"), audio[:16]
        sizes[form] = len(audio)
    assert sizes["wav"] == sizes["pcm"] + 44 and sizes["pcm"] > 24_000, sizes
    whole = client.audio.speech.create(model="tts-1", voice="alloy", input=VOICE_TEXT, response_format="pcm")
    assert len(whole.content) > 24_000
    default = client.audio.speech.create(model="tts-1", voice="alloy", input=VOICE_TEXT)
    assert default.response.headers["content-type"] == "audio/mpeg", default.response.headers
    passed("speech as wav and pcm")
    refused(
        openai.BadRequestError,
        "response_format",
        lambda: client.audio.speech.create(model="tts-1", voice="alloy", input="Hi.", response_format="aac"),
        "mp3, opus, flac, wav, pcm",
    )
    passed("speech as aac is refused, not mislabelled")


def models(client: openai.OpenAI, asr_model: str) -> None:
    known = {model.id for model in client.models.list()}
    assert asr_model in known, known
    assert client.models.retrieve(asr_model).id == asr_model
    passed("models")


def errors(client: openai.OpenAI, audio: bytes, asr_model: str) -> None:
    create = client.audio.transcriptions.create
    refused(openai.NotFoundError, "model", lambda: create(model="no-such-model", file=file_of(audio)), "no-such-model")
    refused(openai.NotFoundError, None, lambda: client.models.retrieve("no-such-model"), "no-such-model")
    refused(openai.BadRequestError, "file", lambda: create(model=asr_model, file=("a.wav", b"")), "empty")
    refused(
        openai.BadRequestError,
        "temperature",
        lambda: create(model=asr_model, file=file_of(audio), temperature=1.5),
        "between 0 and 1",
    )
    refused(
        openai.BadRequestError,
        "timestamp_granularities",
        lambda: create(model=asr_model, file=file_of(audio), timestamp_granularities=["word"]),
        "verbose_json",
    )
    refused(
        openai.BadRequestError,
        "response_format",
        lambda: create(model=asr_model, file=file_of(audio), response_format="diarized_json"),
        "verbose_json",
    )
    refused(openai.APIStatusError, "file", lambda: create(model=asr_model, file=("a.bin", b"no sound" * 99)), "wav, flac")
    refused(openai.UnprocessableEntityError, "file", lambda: create(model=asr_model, file=file_of(nothing())), "no samples")
    refused(openai.BadRequestError, "model", lambda: create(model="tts-1", file=file_of(audio)), "task asr")
    passed("errors map to the package's exceptions")


def nothing() -> bytes:
    """A WAV without samples."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16_000, 0, "NONE", ""))
    return file.getvalue()


def refused(kind: type[openai.APIStatusError], param: str | None, call, word: str) -> None:
    try:
        call()
    except kind as error:
        assert word in error.message, error
        assert param is None or error.param == param, (error.param, error)
        assert error.code and error.type == "invalid_request_error", error
        assert error.response.headers["x-request-id"].startswith("req-"), error.response.headers
    else:
        raise AssertionError(f"{kind.__name__} was expected, about {param}")


def asynchronous(base_url: str, audio: bytes, word: str) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0) as client:
            create = client.audio.transcriptions.create
            requests = [create(model="whisper-1", file=file_of(audio)) for _ in range(4)]
            for transcript in await asyncio.gather(*requests):
                assert word in transcript.text.lower(), transcript

    asyncio.run(run())
    passed("concurrent requests")


if __name__ == "__main__":
    main(*sys.argv[1:])
