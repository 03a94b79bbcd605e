"""Talks to a running server with the real `openai` package, as an application does.

usage: client.py BASE_URL RECORDING ASR_MODEL WORD TRANSLATOR CLONER

ASR_MODEL, the default, transcribes RECORDING to a text with WORD in it. TRANSLATOR is a model that translates; ASR_MODEL is
not expected to, unless it is the same. CLONER is one that clones voices. Exits with a traceback at the first deviation from
the API; prints one line for each check that passed.
"""

import asyncio
import io
import sys
import time
import urllib.request
import wave

import openai

VOICE_TEXT = "The server speaks through the same package."


def main(base_url: str, recording: str, asr_model: str, word: str, translator: str, cloner: str) -> None:
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=120)
    with open(recording, "rb") as file:
        audio = file.read()
    transcriptions(client, audio, asr_model, word)
    streams(client, audio, word)
    translations(client, audio, asr_model, translator)
    speech(client)
    cancelling(client, base_url)
    voices(client, audio, cloner)
    models(client, asr_model)
    errors(client, audio, asr_model)
    asynchronous(base_url, audio, word)


def passed(what: str) -> None:
    print(f"passed: {what}")


def file_of(audio: bytes) -> tuple[str, bytes]:
    return ("recording.wav", audio)


def transcriptions(client: openai.OpenAI, audio: bytes, asr_model: str, word: str) -> None:
    dated = "gpt-4o-mini-transcribe-2025-12-15"
    for model in ["gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", dated, "whisper-1", asr_model]:
        transcript = client.audio.transcriptions.create(model=model, file=file_of(audio))
        assert word in transcript.text.lower() and transcript.logprobs is None, transcript
        if model.startswith("gpt-"):
            assert transcript.usage.type == "tokens" and transcript.usage.output_tokens > 0, transcript
        else:
            assert transcript.usage.type == "duration" and transcript.usage.seconds > 0, transcript
        languages = transcript.languages and [language.code for language in transcript.languages]
        assert languages == (["en"] if model == "gpt-transcribe" else None), transcript
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
    assert word in verbose.text.lower() and verbose.language == "english" and verbose.duration > 0, verbose
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

    create = client.audio.transcriptions.create
    likely = create(model="gpt-4o-transcribe", file=file_of(audio), include=["logprobs"])
    text = b"".join(bytes(map(int, token.bytes)) for token in likely.logprobs).decode()
    assert text.strip() == likely.text, likely
    assert all(token.logprob <= 0 for token in likely.logprobs), likely
    assert "".join(token.token for token in likely.logprobs) == text, likely
    passed("transcription with log-probabilities")

    vad = {"type": "server_vad", "threshold": 0.4, "prefix_padding_ms": 200, "silence_duration_ms": 600}
    for strategy in ["auto", vad]:
        cut = create(model="gpt-transcribe", file=file_of(audio), chunking_strategy=strategy, languages=["en"], keywords=["country"])
        assert word in cut.text.lower(), cut
    passed("transcription with a chunking strategy, languages and keywords")


def streams(client: openai.OpenAI, audio: bytes, word: str) -> None:
    for form in ["json", "text"]:
        stream = client.audio.transcriptions.create(
            model="gpt-4o-mini-transcribe",
            file=file_of(audio),
            response_format=form,
            stream=True,
            include=["logprobs"] if form == "json" else [],
        )
        events = list(stream)
        assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1), events
        done = events[-1]
        assert done.type == "transcript.text.done" and word in done.text.lower(), done
        assert "".join(event.delta for event in events[:-1]) == done.text, events
        assert done.usage.type == "tokens" and done.usage.total_tokens > done.usage.output_tokens > 0, done
        if form == "json":
            plain = [(token.token, token.bytes, token.logprob) for token in done.logprobs]
            told = [(t.token, t.bytes, t.logprob) for event in events[:-1] for t in event.logprobs]
            assert told == plain, (told, plain)
            assert b"".join(bytes(token.bytes) for token in done.logprobs).decode().strip() == done.text, done
        else:
            assert done.logprobs is None, done
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


def cancelling(client: openai.OpenAI, base_url: str) -> None:
    def aborts() -> float:
        with urllib.request.urlopen(f"{base_url}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("izwi_aborts_total"))

    before = aborts()
    with client.audio.speech.with_streaming_response.create(
        model="tts-1-1106", voice="alloy", input=" ".join([VOICE_TEXT] * 90), response_format="pcm"
    ) as response:
        assert next(response.iter_bytes())
    while aborts() == before:
        time.sleep(0.05)
    passed("speech is cancelled midway")


def voices(client: openai.OpenAI, audio: bytes, cloner: str) -> None:
    made = client.audio.voices.with_raw_response.create(
        name="py-voice", consent="cons_1234", audio_sample=file_of(audio), type="audio_sample", model=cloner
    )
    assert made.headers["x-ignored-fields"] == "consent", made.headers
    voice = made.parse()
    assert (voice.object, voice.type, voice.id, voice.name) == ("audio.voice", "audio_sample", "py-voice", "py-voice")
    assert voice.created_at == 1_767_225_600, voice
    spoken = client.audio.speech.create(model=cloner, voice={"id": voice.id}, input="Hi.", response_format="pcm")
    assert spoken.content
    deleted = client.audio.voices.delete(voice.id)
    assert deleted.deleted and deleted.object == "audio.voice.deleted" and deleted.id == voice.id, deleted
    refused(openai.NotFoundError, "voice", lambda: client.audio.voices.delete(voice.id), "py-voice")
    refused(
        openai.BadRequestError,
        "type",
        lambda: client.audio.voices.create(name="x", type="prompt", prompt="A calm voice."),
        "recordings only",
    )
    passed("voices are created, used and deleted")


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
        "tells speakers apart",
    )
    refused(
        openai.BadRequestError,
        "known_speaker_names",
        lambda: create(model=asr_model, file=file_of(audio), known_speaker_names=["agent"]),
        "speakers",
    )
    refused(
        openai.BadRequestError,
        "include",
        lambda: create(model=asr_model, file=file_of(audio), include=["logprobs"], response_format="srt"),
        "response_format json",
    )
    refused(
        openai.BadRequestError,
        "language",
        lambda: create(model=asr_model, file=file_of(audio), language="de"),
        "use one of en",
    )
    say = client.audio.speech.create
    refused(openai.BadRequestError, "speed", lambda: say(model="tts-1", voice="alloy", input="Hi.", speed="fast"), "f32")
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
