"""Nine clients of six dialects at once against one server: each gets what it gets alone, to the byte.

usage: together_client.py BASE_URL WYOMING_HOST WYOMING_PORT RECORDING WORD

The default ASR model transcribes RECORDING, a WAV file, to a text with WORD in it. Exits with a traceback if an answer
differs; prints one line for each client, and one for all.
"""

import asyncio
import base64
import faulthandler
import json
import sys
import threading
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types.speak_v1text import SpeakV1Text
from elevenlabs.client import ElevenLabs
from websockets.sync.client import connect
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStop, wav_to_chunks
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

SEED = 7
TEXT = "Number {} of the clients speaks two sentences. Each of them takes a second or two."
RATE = 24_000


class Clients:
    def __init__(self, base_url: str, host: str, port: str, recording: str) -> None:
        self.base_url, self.web_socket = base_url, base_url.replace("http", "ws", 1)
        self.host, self.port, self.recording = host, int(port), recording
        self.openai = openai.OpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=300)
        environment = DeepgramClientEnvironment(
            base=base_url, production=self.web_socket, agent=self.web_socket, agent_rest=base_url
        )
        self.elevenlabs = ElevenLabs(base_url=base_url, api_key="unused", timeout=300)
        self.deepgram = DeepgramClient(api_key="unused", environment=environment, timeout=300)

    def openai_speech(self) -> bytes:
        audio = self.openai.audio.speech.create(
            model="tts-1", voice="alloy", input=TEXT.format("one"), response_format="pcm", extra_body={"seed": SEED}
        )
        return audio.content

    def openai_transcript(self) -> str:
        with open(self.recording, "rb") as file:
            return self.openai.audio.transcriptions.create(model="whisper-1", file=("a.wav", file.read())).text

    def elevenlabs_speech(self) -> bytes:
        # An id of the hosted service stands for the default voice.
        stream = self.elevenlabs.text_to_speech.stream(
            "JBFqnCBsd6RMkjVDRZzb", text=TEXT.format("five"), output_format="pcm_24000", seed=SEED
        )
        return b"".join(stream)

    def wyoming_speech(self) -> bytes:
        async def speak() -> bytes:
            async with AsyncTcpClient(self.host, self.port, read_timeout=300) as client:
                event = Synthesize(text=TEXT.format("two")).event()
                event.data["seed"] = SEED
                await client.write_event(event)
                audio = b""
                while not AudioStop.is_type((event := await client.read_event()).type):
                    if AudioChunk.is_type(event.type):
                        audio += event.payload
                return audio

        return asyncio.run(speak())

    def wyoming_transcript(self) -> str:
        async def transcribe() -> str:
            async with AsyncTcpClient(self.host, self.port, read_timeout=300) as client:
                await client.write_event(Transcribe(language="en").event())
                with wave.open(self.recording, "rb") as file:
                    for part in wav_to_chunks(file, 1_024, start_event=True, stop_event=True):
                        await client.write_event(part.event())
                while not Transcript.is_type((event := await client.read_event()).type):
                    pass
                return Transcript.from_event(event).text

        return asyncio.run(transcribe())

    def realtime_transcript(self) -> str:
        with wave.open(self.recording, "rb") as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
            at = np.arange(len(samples) * RATE // file.getframerate()) * file.getframerate() / RATE
        audio = np.interp(at, np.arange(len(samples)), samples).astype("<i2").tobytes()

        async def transcribe() -> str:
            client = openai.AsyncOpenAI(base_url=f"{self.base_url}/v1", api_key="unused", timeout=300)
            async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
                await connection.session.update(
                    session={
                        "type": "transcription",
                        "audio": {
                            "input": {
                                "format": {"type": "audio/pcm", "rate": RATE},
                                "transcription": {"model": "gpt-4o-mini-transcribe", "language": "en"},
                                "turn_detection": None,
                            }
                        },
                    }
                )
                for start in range(0, len(audio), 24_000):
                    piece = base64.b64encode(audio[start : start + 24_000]).decode()
                    await connection.input_audio_buffer.append(audio=piece)
                await connection.input_audio_buffer.commit()
                async for event in connection:
                    assert event.type != "error", event
                    if event.type == "conversation.item.input_audio_transcription.completed":
                        return event.transcript
            raise AssertionError("no transcript")

        return asyncio.run(transcribe())

    def deepgram_speech(self) -> bytes:
        options = {"additional_query_parameters": {"seed": str(SEED)}}
        with self.deepgram.speak.v1.connect(encoding="linear16", sample_rate=RATE, request_options=options) as socket:
            socket.send_text(SpeakV1Text(text=TEXT.format("three")))
            socket.send_close()
            return b"".join(message for message in socket if isinstance(message, bytes))

    def deepgram_transcript(self) -> str:
        with open(self.recording, "rb") as file:
            response = self.deepgram.listen.v1.media.transcribe_file(request=file.read(), language="en")
        return response.results.channels[0].alternatives[0].transcript

    def own_speech(self) -> bytes:
        with connect(f"{self.web_socket}/v1/audio/speech/stream") as socket:
            socket.send(json.dumps({"type": "speak", "text": TEXT.format("four"), "seed": SEED}))
            return b"".join(message for message in socket if isinstance(message, bytes))

    def all(self) -> dict:
        return {
            "OpenAI speaks": self.openai_speech,
            "OpenAI transcribes": self.openai_transcript,
            "ElevenLabs speaks": self.elevenlabs_speech,
            "Wyoming speaks": self.wyoming_speech,
            "Wyoming transcribes": self.wyoming_transcript,
            "Realtime transcribes": self.realtime_transcript,
            "Deepgram speaks": self.deepgram_speech,
            "Deepgram transcribes": self.deepgram_transcript,
            "Izwi's own WebSocket speaks": self.own_speech,
        }


def main(base_url: str, host: str, port: str, recording: str, word: str) -> None:
    clients = Clients(base_url, host, port, recording).all()
    alone = {name: client() for name, client in clients.items()}
    for name, answer in alone.items():
        if isinstance(answer, bytes):
            assert len(answer) > 2 * RATE and np.abs(np.frombuffer(answer, "<i2")).max() > 1_000, (name, len(answer))
        else:
            assert word in answer.lower(), (name, answer)
    begin = threading.Barrier(len(clients))

    def run(name: str) -> bytes | str:
        begin.wait()
        return clients[name]()

    for repetition in range(2):
        with ThreadPoolExecutor(len(clients)) as pool:
            together = dict(zip(clients, pool.map(run, clients)))
        for name, answer in together.items():
            assert answer == alone[name], f"{name}: differs from what it gets alone, in repetition {repetition}"
    for name in clients:
        print(f"passed: {name} beside eight others as alone")
    print("passed: nine clients of six dialects at once on one engine")


if __name__ == "__main__":
    # What hangs is shown before the test ends.
    faulthandler.dump_traceback_later(250, exit=True)
    main(*sys.argv[1:])
