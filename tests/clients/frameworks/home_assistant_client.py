"""Runs the Wyoming integration of a release of Home Assistant against a running server.

usage: home_assistant_client.py WHEEL_FOLDER BASE_URL HOST PORT FIRST

The server has an English TTS model and an ASR model. FIRST is a WAV file of someone who says "He was not an ill-disposed young
man". Exits with a traceback at the first deviation; prints one line for each check that passed.
"""

import asyncio
import io
import logging
import sys
import types
import wave

import home_assistant
from common import BOOK, FIRST_WORDS, GREETING, TIMEOUT_S, Server, has_words, passed, recording

RATE = 16_000


class Entry:
    """What an entity asks of its entry in the settings."""

    entry_id = "izwi"

    def __init__(self) -> None:
        self.tasks = []

    def async_create_background_task(self, hass, task, name: str) -> None:
        self.tasks.append(asyncio.create_task(task))


async def pieces(text: str):
    """A text as a language model writes it."""
    for word in text.split(" "):
        yield word + " "


async def microphone(audio: bytes):
    for start in range(0, len(audio), 1_024):
        yield audio[start : start + 1_024]


def pcm(data: bytes) -> tuple[bytes, int]:
    """Samples of a WAV file whose header may count none, and their rate."""
    with wave.open(io.BytesIO(data)) as file:
        return data[data.index(b"data") + 8 :], file.getframerate()


async def main(folder: str, url: str, host: str, port: str, first: str) -> None:
    logging.basicConfig(level=logging.ERROR, handlers=[logging.NullHandler()])
    ha, server, entry = home_assistant.load(folder), Server(url), Entry()
    service = await ha.Service.create(host, int(port))
    assert service.has_services() and service.platforms == ["stt", "tts"], service.info
    passed(f"the integration finds {service.get_name()}")

    tts = ha.Tts(entry, types.SimpleNamespace(data=service.info), service)
    tts.hass = None
    [language] = tts._attr_supported_languages
    voices = tts.async_get_supported_voices(language)
    assert language == tts._attr_default_language and voices[0].voice_id, voices
    for options in [{}, {"voice": voices[0].voice_id}]:
        extension, data = await asyncio.wait_for(tts.async_get_tts_audio(GREETING, language, options), TIMEOUT_S)
        assert extension == "wav"
        await server.heard(*pcm(data), GREETING)
    passed("a text is spoken")

    assert tts.async_supports_streaming_input()
    stream = lambda text, **options: tts.async_stream_tts_audio(ha.tts.TTSAudioRequest(language, options, pieces(text)))
    response = await stream(GREETING)
    data = b"".join([part async for part in response.data_gen])
    await server.heard(*pcm(data), GREETING)
    passed("text in pieces is spoken")

    async with server.interruption():
        response = await stream(BOOK)
        assert (await anext(response.data_gen))[:4] == b"RIFF" and await anext(response.data_gen)
        await response.data_gen.aclose()
    passed("an answer is interrupted")

    stt = ha.Stt(entry, service)
    assert stt.supported_languages == ["en"], stt.supported_languages
    assert stt.audio_processing.requires_external_vad, stt.audio_processing
    metadata = lambda language: ha.stt.SpeechMetadata(
        language,
        ha.stt.AudioFormats.WAV,
        ha.stt.AudioCodecs.PCM,
        ha.stt.AudioBitRates.BITRATE_16,
        ha.stt.AudioSampleRates.SAMPLERATE_16000,
        ha.stt.AudioChannels.CHANNEL_MONO,
    )
    hear = lambda audio, language: asyncio.wait_for(
        stt.async_process_audio_stream(metadata(language), microphone(audio)), TIMEOUT_S
    )
    result = await hear(recording(first, RATE).tobytes(), "en")
    assert result.result is ha.stt.SpeechResultState.SUCCESS, result
    has_words(result.text, FIRST_WORDS)
    passed("a recording is transcribed")

    response = await stream("🎉 👍")
    assert b"".join([part async for part in response.data_gen])[:4] == b"RIFF"
    passed("a text without words is silence")

    try:
        await asyncio.wait_for(tts.async_get_tts_audio("Hi.", language, {"voice": "nobody"}), TIMEOUT_S)
    except ha.Error as error:
        assert "nobody" in str(error), error
    else:
        raise AssertionError("an unknown voice is accepted")
    result = await hear(recording(first, RATE).tobytes(), "tlh")
    assert result.result is ha.stt.SpeechResultState.ERROR, result
    passed("errors are reported")
    await asyncio.gather(*entry.tasks)
    await server.idle()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
