"""What the clients of frameworks share: recordings, and the server's own ear for what it spoke."""

import asyncio
import contextlib
import difflib
import io
import json
import re
import urllib.request
import wave

import numpy
import openai

# A hang guard, not an expectation.
TIMEOUT_S = 120

GREETING = "Good morning. The doctor is in the garden, and the taxi waits outside."
# Long enough to be interrupted.
STORY = (
    "The river begins as a small stream between the hills. It runs through the old town, under nine stone bridges. "
    "Below the mill it becomes wide and slow. The fishermen sit there every evening. In winter it is covered with ice, "
    "and the children cross it on their way to school. In the end it reaches the sea, far behind the last houses."
)
# What the two recordings have in every transcript.
FIRST_WORDS, SECOND_WORDS = ["not", "young man"], ["amiable", "himself"]
# Minutes of speech: what is left of it when somebody interrupts is not generated.
BOOK = f"{STORY} " * 12


def passed(what: str) -> None:
    print(f"passed: {what}", flush=True)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def recording(path: str, rate: int) -> numpy.ndarray:
    """Samples of a WAV file as 16-bit integers at this rate."""
    with wave.open(path) as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2")
        at = numpy.arange(len(samples) * rate // file.getframerate()) * file.getframerate() / rate
    return numpy.interp(at, numpy.arange(len(samples)), samples).astype("<i2")


def wav(pcm: bytes, rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, 0, "NONE", ""))
        writer.writeframes(pcm)
    return file.getvalue()


def same_words(found: str, expected: str, share: float = 0.75) -> None:
    """Fails unless most words of both texts are the same, and the last ones too: what is cut off is cut at the end."""
    found_words, expected_words = words(found), words(expected)
    matcher = difflib.SequenceMatcher(None, found_words, expected_words, autojunk=False)
    assert matcher.ratio() >= share, f"'{found}' is not '{expected}'"
    assert set(expected_words[-2:]) & set(found_words[-2:]), f"'{found}' does not end as '{expected}'"


def has_words(text: str, wanted: list[str]) -> None:
    assert all(word in text.lower() for word in wanted), text


class Server:
    def __init__(self, url: str) -> None:
        self.url = url
        self.v1 = f"{url}/v1"
        self.ws = url.replace("http", "ws", 1)
        self._client = openai.AsyncOpenAI(base_url=self.v1, api_key="none", timeout=TIMEOUT_S, max_retries=0)

    async def heard(self, pcm: bytes, rate: int, expected: str) -> None:
        """Fails unless the server's ASR model hears this text."""
        return await self.heard_file(("speech.wav", wav(pcm, rate)), expected)

    async def heard_file(self, file: tuple[str, bytes], expected: str) -> None:
        transcript = await self._client.audio.transcriptions.create(model="whisper-1", file=file)
        same_words(transcript.text, expected)

    async def idle(self) -> None:
        """Waits until the server has nothing to do."""
        await until("the server is idle", lambda: self._is_idle() and self._health()["sessions_open"] == 0)

    def _is_idle(self) -> bool:
        return self._health()["requests_open"] == 0

    def _health(self) -> dict:
        return json.loads(self._page("/health"))

    @contextlib.asynccontextmanager
    async def interruption(self):
        """Waits, at its end, until the server has given up a generation that began within, or had finished it before."""
        before = self._given_up()
        yield
        await until("the server gives up", lambda: self._given_up() > before or self._is_idle())

    def _given_up(self) -> float:
        counts = re.findall(r"^izwi_aborts_total\{.*\} (\d+)$", self._page("/metrics"), re.MULTILINE)
        return sum(map(int, counts))

    def _page(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path) as response:
            return response.read().decode()


async def until(what: str, holds) -> None:
    for _ in range(TIMEOUT_S * 50):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"waited in vain until {what}")
