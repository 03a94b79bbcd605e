"""Runs the plugins of the real `livekit-agents` package, without a room, against a running server.

usage: livekit_client.py BASE_URL FIRST SECOND [PART]

PART is openai, elevenlabs, deepgram or realtime, else all run. The server has an English TTS model, an ASR model and a chat
model. FIRST and SECOND are WAV files of what a user says: "He was not an ill-disposed young man" and "He might even have been
made amiable himself". Exits with a traceback at the first deviation; prints one line for each check that passed.
"""

import asyncio
import logging
import sys

from common import BOOK, FIRST_WORDS, GREETING, SECOND_WORDS, TIMEOUT_S, Server, has_words, passed, recording, until
from livekit import rtc
from livekit.agents import APIConnectOptions, APIStatusError, stt, utils
from livekit.agents.llm import ChatContext
from livekit.plugins import deepgram, elevenlabs, openai

RATE = 16_000
KEY = "none"
PATIENT = APIConnectOptions(max_retry=0, timeout=TIMEOUT_S)


def frames(path: str, silence_s: float = 0) -> list[rtc.AudioFrame]:
    """A recording in pieces of 20 ms, and silence after it."""
    audio = recording(path, RATE).tobytes() + bytes(2 * int(RATE * silence_s))
    size = 2 * RATE // 50
    pieces = [audio[at : at + size] for at in range(0, len(audio) - size + 1, size)]
    return [rtc.AudioFrame(piece, RATE, 1, len(piece) // 2) for piece in pieces]


async def collected(stream) -> tuple[bytes, int]:
    """All audio of a stream, and its rate."""
    parts = [event.frame async for event in stream]
    return b"".join(bytes(part.data) for part in parts), parts[0].sample_rate


async def speak(server: Server, tts) -> None:
    """Speaks whole texts and texts in pieces, is interrupted in both, and speaks again."""
    async with tts.synthesize(GREETING, conn_options=PATIENT) as stream:
        await server.heard(*await collected(stream), GREETING)
    async with server.interruption(), tts.synthesize(BOOK, conn_options=PATIENT) as stream:
        assert (await anext(stream)).frame.samples_per_channel
    if tts.capabilities.streaming:
        async with server.interruption(), tts.stream(conn_options=PATIENT) as stream:
            stream.push_text(BOOK)
            stream.flush()
            assert (await anext(stream)).frame.samples_per_channel
        # The connection is the same.
        async with tts.stream(conn_options=PATIENT) as stream:
            for word in GREETING.split(" "):
                stream.push_text(word + " ")
            stream.end_input()
            await server.heard(*await asyncio.wait_for(collected(stream), TIMEOUT_S), GREETING)
    async with tts.synthesize(GREETING, conn_options=PATIENT) as stream:
        await server.heard(*await collected(stream), GREETING)
    passed(f"{tts.label} speaks and is interrupted")


async def refuses(call) -> None:
    try:
        await asyncio.wait_for(call, TIMEOUT_S)
    except APIStatusError as error:
        # Most plugins pass the status on, and not the message.
        assert error.status_code == 404 or "nobody" in f"{error} {error.body}", (error, error.body)
    else:
        raise AssertionError("an unknown name is accepted")


async def hear(recognizer, paths: list[str]) -> None:
    """Transcribes turns as they would come from a microphone."""
    async with recognizer.stream(conn_options=PATIENT) as stream:

        async def push():
            for path in paths:
                for frame in frames(path, silence_s=1.5):
                    stream.push_frame(frame)
                    await asyncio.sleep(0.005)

        pushing = asyncio.create_task(push())
        heard = ""
        async for event in stream:
            if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT:
                heard += f" {event.alternatives[0].text}"
                if all(word in heard.lower() for word in SECOND_WORDS):
                    break
        await pushing
    has_words(heard, FIRST_WORDS + SECOND_WORDS)
    passed(f"{recognizer.label} transcribes two turns")


async def openai_plugin(server: Server, session, *paths: str) -> None:
    await speak(server, openai.TTS(base_url=server.v1, api_key=KEY))
    await refuses(openai.TTS(base_url=server.v1, api_key=KEY, model="nobody").synthesize("Hi.", conn_options=PATIENT).collect())
    passed("an unknown model is reported")

    recognizer = openai.STT(base_url=server.v1, api_key=KEY)
    event = await recognizer.recognize(frames(paths[0]), conn_options=PATIENT)
    has_words(event.alternatives[0].text, FIRST_WORDS)
    passed("a recording is transcribed")
    await refuses(openai.STT(base_url=server.v1, api_key=KEY, model="nobody").recognize(frames(paths[0]), conn_options=PATIENT))
    await hear(openai.STT(base_url=server.v1, api_key=KEY, use_realtime=True), [*paths])


async def elevenlabs_plugin(server: Server, session, *paths: str) -> None:
    options = {"base_url": server.v1, "api_key": KEY, "http_session": session}
    voice = elevenlabs.TTS(voice_id="heart", **options)
    assert "heart" in [voice.id for voice in await voice.list_voices()]
    await speak(server, voice)
    # Several connections of the plugin's life: words in a schedule instead of sentences.
    await speak(server, elevenlabs.TTS(voice_id="heart", chunk_length_schedule=[50, 80], encoding="pcm_24000", **options))
    await refuses(elevenlabs.TTS(voice_id="nobody", **options).synthesize("Hi.", conn_options=PATIENT).collect())
    passed("an unknown voice is reported")


async def deepgram_plugin(server: Server, session, *paths: str) -> None:
    speaks = {"base_url": f"{server.v1}/speak", "api_key": KEY, "http_session": session}
    await speak(server, deepgram.TTS(**speaks))
    await refuses(deepgram.TTS(model="nobody", **speaks).synthesize("Hi.", conn_options=PATIENT).collect())
    passed("an unknown voice is reported")

    listens = {"base_url": f"{server.v1}/listen", "api_key": KEY, "http_session": session}
    recognizer = deepgram.STT(**listens)
    event = await recognizer.recognize(frames(paths[0]), conn_options=PATIENT)
    has_words(event.alternatives[0].text, FIRST_WORDS)
    passed("a recording is transcribed")
    # The recognizer looks at no status, so that a bad name cannot be told by it.
    await hear(recognizer, [*paths])


async def realtime(server: Server, session, *paths: str) -> None:
    """A conversation with a chat model: two turns by voice, the first one interrupted, and one by text."""
    model = openai.realtime.RealtimeModel(base_url=server.v1, api_key=KEY, http_session=session)
    talk = model.session()
    generations, transcripts, starts, errors = [], [], [], []
    talk.on("generation_created", generations.append)
    talk.on("input_speech_started", starts.append)
    talk.on("input_audio_transcription_completed", lambda event: event.is_final and transcripts.append(event.transcript))
    talk.on("error", errors.append)
    await talk.update_instructions("Be brief.")
    speech = 0

    async def listen(generation):
        nonlocal speech
        async for message in generation.message_stream:
            async for frame in message.audio_stream:
                speech += frame.samples_per_channel

    async def say(path: str):
        for frame in frames(path, silence_s=1.5):
            talk.push_audio(frame)
            await asyncio.sleep(0.005)

    await say(paths[0])
    await until("the first turn is answered", lambda: generations)
    first = asyncio.create_task(listen(generations[0]))
    await until("the answer is heard", lambda: speech)
    talk.interrupt()
    await asyncio.wait_for(first, TIMEOUT_S)
    await say(paths[1])
    await until("the second turn is answered", lambda: len(generations) == 2)
    speech = 0
    await asyncio.wait_for(listen(generations[1]), TIMEOUT_S)
    assert speech and len(starts) == 2, (speech, starts)
    await until("both turns are transcribed", lambda: len(transcripts) == 2)
    has_words(transcripts[0], FIRST_WORDS)
    has_words(transcripts[1], SECOND_WORDS)
    passed("two turns by voice, and an interruption")

    # What the application knows of an earlier conversation, with an answer of the assistant.
    context = ChatContext(list(talk.chat_ctx.items))
    context.add_message(role="user", content="My name is Anna.")
    context.add_message(role="assistant", content="Good morning, Anna.")
    context.add_message(role="user", content="What is my name?")
    await asyncio.wait_for(talk.update_chat_ctx(context), TIMEOUT_S)
    speech = 0
    await listen(await asyncio.wait_for(talk.generate_reply(), TIMEOUT_S))
    assert speech and not errors, (speech, errors)
    await talk.aclose()
    passed("a reply after items of both roles")


class Keeper(logging.Handler):
    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(f"{record.getMessage()} {record.__dict__.get('error', '')}")


PARTS = {"openai": openai_plugin, "elevenlabs": elevenlabs_plugin, "deepgram": deepgram_plugin, "realtime": realtime}


async def main(url: str, first: str, second: str, part: str | None = None) -> None:
    server = Server(url)
    warnings = []
    logging.getLogger("livekit").addHandler(Keeper(warnings))
    async with utils.http_context.open() as session:
        for run in [PARTS[part]] if part else PARTS.values():
            await run(server, session, first, second)
    assert not any("rejected" in warning for warning in warnings), warnings
    await server.idle()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
