"""Runs voice agents of the real `pipecat-ai` package against a running server.

usage: pipecat_client.py BASE_URL FIRST SECOND [PART]

The server has an English TTS model, an ASR model and a chat model. FIRST and SECOND are WAV files of what a user says: "He was
not an ill-disposed young man" and "He might even have been made amiable himself". In each conversation the user speaks, the
agent answers, the user speaks again and interrupts it, and the agent answers the second turn. The conversations take place at
once, since they last as long as people speak; PART (openai, deepgram, elevenlabs, elevenlabs_http, realtime or errors) is one
of them. Exits with a traceback at the first deviation; prints one line for each check that passed.
"""

import asyncio
import itertools
import sys

import aiohttp
import numpy
from common import (
    BOOK,
    FIRST_WORDS,
    GREETING,
    SECOND_WORDS,
    STORY,
    TIMEOUT_S,
    Server,
    has_words,
    passed,
    recording,
    until,
    words,
)
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSSpeakFrame,
)
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.openai.realtime.events import AudioConfiguration, AudioInput, InputAudioTranscription, SessionProperties
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService, OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

IN_RATE, OUT_RATE = 16_000, 24_000
FRAME_S = 0.02
KEY, VOICE = "none", "heart"


class Microphone(BaseInputTransport):
    """Hands in what the user says, in real time, and silence where nobody speaks."""

    said = numpy.zeros(0, "<i2")

    async def start(self, frame):
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._task = self.create_task(self._speak())

    async def cleanup(self):
        await super().cleanup()
        await self.cancel_task(self._task)

    async def _speak(self):
        count = int(IN_RATE * FRAME_S)
        while True:
            frame, self.said = self.said[:count], self.said[count:]
            audio = numpy.pad(frame, (0, count - len(frame))).tobytes()
            await self.push_audio_frame(InputAudioRawFrame(audio=audio, sample_rate=IN_RATE, num_channels=1))
            await asyncio.sleep(FRAME_S)


class Loudspeaker(BaseOutputTransport):
    """Keeps what is played, in real time."""

    def __init__(self, params):
        super().__init__(params)
        self.played = b""

    async def start(self, frame):
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame) -> bool:
        await asyncio.sleep(len(frame.audio) / (2 * OUT_RATE))
        # What the transport sends while nothing is to be played is zero.
        if any(frame.audio):
            self.played += frame.audio
        return True


class Phone(BaseTransport):
    def __init__(self):
        super().__init__()
        params = TransportParams(audio_in_enabled=True, audio_out_enabled=True, audio_out_end_silence_secs=0)
        self.microphone, self.loudspeaker = Microphone(params), Loudspeaker(params)

    def input(self):
        return self.microphone

    def output(self):
        return self.loudspeaker


class Script(FrameProcessor):
    """Stands in for a language model: answers each turn with the next text, word by word."""

    def __init__(self, *answers: str):
        super().__init__()
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        for word in next(self._answers).split(" "):
            await self.push_frame(LLMTextFrame(word + " "))
            await asyncio.sleep(0.005)
        await self.push_frame(LLMFullResponseEndFrame())


class Observer(BaseObserver):
    def __init__(self):
        super().__init__()
        self.errors, self.interruptions = {}, set()

    async def on_push_frame(self, data):
        if isinstance(data.frame, ErrorFrame):
            self.errors[data.frame.id] = data.frame.error
        elif isinstance(data.frame, InterruptionFrame):
            self.interruptions.add(data.frame.id)


class Run:
    """A pipeline that runs."""

    def __init__(self, processors: list, context: LLMContext | None = None):
        self.observer, self.context = Observer(), context
        params = PipelineParams(audio_in_sample_rate=IN_RATE, audio_out_sample_rate=OUT_RATE)
        self.worker = PipelineWorker(Pipeline(processors), params=params, observers=[self.observer], enable_rtvi=False)

    async def __aenter__(self):
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        self._task = asyncio.create_task(runner.run())
        return self

    async def __aexit__(self, kind, error, trace):
        if error:
            messages = self.context and self.context.get_messages()
            print(f"errors: {list(self.observer.errors.values())}; messages: {messages}", file=sys.stderr)
        await self.worker.queue_frame(EndFrame())
        await asyncio.wait_for(self._task, TIMEOUT_S)


def text_of(message: dict) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


async def converse(server: Server, name: str, stt, tts, times_words: bool, first: str, second: str) -> None:
    # The agent remembers what was generated where it does not know which words were heard: that takes longer than a turn.
    story = STORY if times_words else BOOK
    phone, context = Phone(), LLMContext()
    params = LLMUserAggregatorParams(user_turn_stop_timeout=TIMEOUT_S)
    if not isinstance(stt, OpenAIRealtimeSTTService):
        params.vad_analyzer = SileroVADAnalyzer()
        params.user_turn_strategies = UserTurnStrategies(stop=[SpeechTimeoutUserTurnStopStrategy()])
    user, assistant = LLMContextAggregatorPair(context, user_params=params)
    processors = [phone.input(), stt, user, Script(story, GREETING), tts, phone.output(), assistant]
    said = lambda role: [text_of(message) for message in context.get_messages() if message["role"] == role]
    silent = lambda: not phone.loudspeaker._media_senders[None]._bot_speaking
    async with Run(processors, context) as run:
        phone.microphone.said = recording(first, IN_RATE)
        await until("the first turn is answered", lambda: len(phone.loudspeaker.played) > 2 * OUT_RATE)
        before = len(run.observer.interruptions)
        phone.microphone.said = recording(second, IN_RATE)
        await until("the answer is interrupted", lambda: len(run.observer.interruptions) > before)
        await until("the agent is silent", silent)
        played = len(phone.loudspeaker.played)
        answered = lambda: len(said("user")) == 2 and said("assistant") and words(said("assistant")[-1]) == words(GREETING)
        await until("the second turn is answered", answered)
        await until("the agent has spoken", silent)
        await server.heard(phone.loudspeaker.played[played:], OUT_RATE, GREETING)
    for transcript, wanted in zip(said("user"), [FIRST_WORDS, SECOND_WORDS], strict=True):
        has_words(transcript, wanted)
    # Where the service times words, the agent remembers those that were heard; elsewhere, whole sentences.
    cut = words(" ".join(said("assistant")[:-1]))
    assert words(story)[: len(cut)] == cut and len(cut) < len(words(story)), said("assistant")
    assert cut or not times_words, said("assistant")
    assert not run.observer.errors, run.observer.errors
    passed(f"a conversation with an interruption over {name}")


async def openai(server: Server, *recordings: str) -> None:
    stt = OpenAISTTService(api_key=KEY, base_url=server.v1)
    tts = OpenAITTSService(api_key=KEY, base_url=server.v1)
    await converse(server, "OpenAI's STT and TTS", stt, tts, False, *recordings)


async def deepgram(server: Server, *recordings: str) -> None:
    stt = DeepgramSTTService(api_key=KEY, base_url=server.ws)
    tts = DeepgramTTSService(api_key=KEY, base_url=server.ws)
    await converse(server, "Deepgram's STT and TTS", stt, tts, False, *recordings)


async def elevenlabs(server: Server, *recordings: str) -> None:
    # The server finds the turns.
    stt = OpenAIRealtimeSTTService(api_key=KEY, base_url=f"{server.ws}/v1/realtime", turn_detection=None)
    tts = ElevenLabsTTSService(api_key=KEY, url=server.ws, settings=ElevenLabsTTSService.Settings(voice=VOICE))
    await converse(server, "OpenAI's realtime STT and ElevenLabs' WebSocket", stt, tts, True, *recordings)


async def elevenlabs_http(server: Server, *recordings: str) -> None:
    async with aiohttp.ClientSession() as session:
        stt = OpenAISTTService(api_key=KEY, base_url=server.v1)
        settings = ElevenLabsHttpTTSService.Settings(voice=VOICE)
        tts = ElevenLabsHttpTTSService(api_key=KEY, base_url=server.url, aiohttp_session=session, settings=settings)
        await converse(server, "OpenAI's STT and ElevenLabs over HTTP", stt, tts, True, *recordings)


async def realtime(server: Server, first: str, second: str) -> None:
    """A conversation with a chat model that hears and speaks itself."""
    audio = AudioConfiguration(input=AudioInput(transcription=InputAudioTranscription(model="whisper-1")))
    service = OpenAIRealtimeLLMService(
        api_key=KEY,
        base_url=f"{server.ws}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(
            model="gpt-realtime",
            system_instruction="Be brief.",
            session_properties=SessionProperties(audio=audio),
        ),
    )
    phone, context = Phone(), LLMContext()
    user, assistant = LLMContextAggregatorPair(context)
    said = lambda role: [text_of(message) for message in context.get_messages() if message["role"] == role]
    async with Run([phone.input(), user, service, phone.output(), assistant]) as run:
        phone.microphone.said = recording(first, IN_RATE)
        await until("the first turn is answered", lambda: len(phone.loudspeaker.played) > OUT_RATE)
        before = len(run.observer.interruptions)
        phone.microphone.said = recording(second, IN_RATE)
        await until("the answer is interrupted", lambda: len(run.observer.interruptions) > before)
        played = len(phone.loudspeaker.played)
        # A transcript that comes more than a second after the answer has begun is added to the next turn.
        heard = lambda: " ".join(said("user"))
        await until("both turns are heard", lambda: SECOND_WORDS[-1] in heard())
        await until("the second turn is answered", lambda: len(phone.loudspeaker.played) > played + OUT_RATE)
    has_words(heard(), [*FIRST_WORDS, *SECOND_WORDS])
    assert not run.observer.errors, run.observer.errors
    passed("a conversation over OpenAI Realtime")


async def errors(server: Server, *_: str) -> None:
    """A bad name is an error that names it."""
    for name, tts in [
        ("OpenAI", OpenAITTSService(api_key=KEY, base_url=server.v1, settings=OpenAITTSService.Settings(model="nobody"))),
        (
            "ElevenLabs",
            ElevenLabsTTSService(api_key=KEY, url=server.ws, settings=ElevenLabsTTSService.Settings(voice="nobody")),
        ),
        (
            "Deepgram",
            DeepgramTTSService(api_key=KEY, base_url=server.ws, settings=DeepgramTTSService.Settings(voice="nobody")),
        ),
    ]:
        async with Run([tts]) as run:
            await run.worker.queue_frame(TTSSpeakFrame("Hello."))
            # The reason of a close is in the log, and not in the frame of the error.
            told = lambda: [*run.observer.errors.values(), *warnings]  # noqa: B023
            await until(f"{name} tells the name", lambda: any("nobody" in error for error in told()))  # noqa: B023
        warnings.clear()
    passed("an unknown name is reported by every TTS service")


warnings = []
PARTS = [errors, openai, elevenlabs_http, deepgram, elevenlabs, realtime]


async def main(url: str, first: str, second: str, *part: str) -> None:
    logger.remove()
    logger.add(warnings.append, level="WARNING")
    server = Server(url)
    try:
        for run in PARTS:
            if not part or run.__name__ in part:
                await run(server, first, second)
    finally:
        print(*warnings, sep="", end="", file=sys.stderr)
    assert not any("Dropping word" in warning for warning in warnings), "words of the alignment are not those of the text"
    await server.idle()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
