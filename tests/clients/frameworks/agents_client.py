"""Runs voice pipelines and a realtime session of the real `openai-agents` package against a running server.

usage: agents_client.py BASE_URL FIRST SECOND [PART]

PART is pipeline or realtime, else both run. The server has an English TTS model, an ASR model and a chat model. FIRST and SECOND
are WAV files of what a user says: "He was not an ill-disposed young man" and "He might even have been made amiable himself".
Exits with a traceback at the first deviation; prints one line for each check that passed.
"""

import asyncio
import sys

import numpy
from agents import set_tracing_disabled
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.voice import (
    AudioInput,
    OpenAIVoiceModelProvider,
    StreamedAudioInput,
    VoicePipeline,
    VoicePipelineConfig,
    VoiceWorkflowBase,
)
from common import BOOK, FIRST_WORDS, GREETING, SECOND_WORDS, STORY, TIMEOUT_S, Server, has_words, passed, recording, until

RATE = 24_000
KEY = "none"


class Script(VoiceWorkflowBase):
    """Stands in for the agents: answers each turn with the next text, word by word."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.heard = []

    async def run(self, transcription: str):
        self.heard.append(transcription)
        for word in self._answers.pop(0).split(" "):
            yield word + " "


def pipeline(server: Server, workflow: VoiceWorkflowBase, **models: str) -> VoicePipeline:
    provider = OpenAIVoiceModelProvider(base_url=server.v1, api_key=KEY)
    config = VoicePipelineConfig(model_provider=provider, tracing_disabled=True)
    return VoicePipeline(workflow=workflow, config=config, **models)


async def audio_of(events) -> bytes:
    """The audio until the end of a turn."""
    audio = b""
    async for event in events:
        if event.type == "voice_stream_event_audio" and event.data is not None:
            audio += event.data.tobytes()
        elif event.type == "voice_stream_event_error":
            raise event.error
        elif event.type == "voice_stream_event_lifecycle" and event.event in ("turn_ended", "session_ended"):
            break
    return audio


async def voice_pipeline(server: Server, first: str, second: str) -> None:
    workflow = Script(GREETING)
    result = await pipeline(server, workflow).run(AudioInput(buffer=recording(first, RATE)))
    await server.heard(await audio_of(result.stream()), RATE, GREETING)
    has_words(workflow.heard[0], FIRST_WORDS)
    passed("a recording is answered")

    # As from a microphone. The application interrupts by stopping to listen to an answer.
    workflow, microphone = Script(STORY, GREETING), StreamedAudioInput()
    result = await pipeline(server, workflow).run(microphone)

    async def say(path: str) -> None:
        audio = numpy.pad(recording(path, RATE), (0, RATE * 3 // 2))
        for start in range(0, len(audio), RATE // 50):
            await microphone.add_audio(audio[start : start + RATE // 50])
            await asyncio.sleep(0.005)

    events = result.stream()
    await say(first)
    await asyncio.wait_for(audio_of(events), TIMEOUT_S)
    await say(second)
    await microphone.add_audio(None)
    await server.heard(await asyncio.wait_for(audio_of(events), TIMEOUT_S), RATE, GREETING)
    async for _ in events:
        pass
    has_words(workflow.heard[0], FIRST_WORDS)
    has_words(workflow.heard[1], SECOND_WORDS)
    passed("two turns of a stream are answered")

    async with server.interruption():
        # One sentence is one request.
        long = BOOK.replace(".", ",")
        events = (await pipeline(server, Script(long)).run(AudioInput(buffer=recording(first, RATE)))).stream()
        async for event in events:
            if event.type == "voice_stream_event_audio":
                break
        await events.aclose()
    passed("an answer is interrupted")

    # The package keeps an error of the TTS model to itself.
    for models in [{"stt_model": "nobody"}]:
        try:
            result = await pipeline(server, Script(GREETING), **models).run(AudioInput(buffer=recording(first, RATE)))
            await asyncio.wait_for(audio_of(result.stream()), TIMEOUT_S)
        except Exception as error:
            assert "nobody" in f"{error} {error.__cause__}", error
        else:
            raise AssertionError(f"{models} is accepted")
    passed("an unknown model is reported")


async def realtime(server: Server, first: str, second: str) -> None:
    settings = {
        "model_name": "gpt-realtime",
        "audio": {
            "input": {"format": "pcm16", "transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}},
            "output": {"format": "pcm16", "voice": "marin"},
        },
    }
    agent = RealtimeAgent(name="Assistant", instructions="Be brief.")
    runner = RealtimeRunner(starting_agent=agent, config={"model_settings": settings, "tracing_disabled": True})
    url = f"{server.ws}/v1/realtime?model=gpt-realtime"
    events = []
    async with await runner.run(model_config={"url": url, "api_key": KEY}) as session:

        async def listen() -> None:
            async for event in session:
                events.append(event)

        def count(kind: str) -> int:
            return sum(event.type == kind for event in events)

        def transcripts() -> list[str]:
            history = next((event.history for event in reversed(events) if event.type == "history_updated"), [])
            contents = [part for item in history if item.type == "message" and item.role == "user" for part in item.content]
            return [part.transcript for part in contents if part.type == "input_audio" and part.transcript]

        async def say(path: str) -> None:
            audio = recording(path, RATE).tobytes() + bytes(2 * RATE * 3 // 2)
            for start in range(0, len(audio), RATE // 10):
                await session.send_audio(audio[start : start + RATE // 10])
                await asyncio.sleep(0.01)

        listening = asyncio.create_task(listen())
        await say(first)
        await until("the first turn is answered", lambda: count("audio"))
        await session.interrupt()
        await say(second)
        await until("the second turn is answered", lambda: count("agent_end") >= 2)
        await until("both turns are transcribed", lambda: len(transcripts()) == 2)
        has_words(transcripts()[0], FIRST_WORDS)
        has_words(transcripts()[1], SECOND_WORDS)
        passed("two turns by voice, and an interruption")
        before = count("agent_end")
        await session.send_message("And in one word?")
        await until("the text is answered", lambda: count("agent_end") > before)
        assert not count("error"), [event for event in events if event.type == "error"]
        passed("a turn by text")
        listening.cancel()

    try:
        async with await runner.run(model_config={"url": f"{server.ws}/v1/realtime?model=nobody", "api_key": KEY}) as session:
            async for event in session:
                assert event.type != "error", event.error
    except Exception as error:
        assert "nobody" in str(error), error
    else:
        raise AssertionError("an unknown model is accepted")
    passed("an unknown model is reported")


PARTS = {"pipeline": voice_pipeline, "realtime": realtime}


async def main(url: str, first: str, second: str, part: str | None = None) -> None:
    set_tracing_disabled(True)
    server = Server(url)
    for run in [PARTS[part]] if part else PARTS.values():
        await run(server, first, second)
    await server.idle()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
