"""Speak, report playback, survive a lost connection, and fall silent when the user talks (pip install websockets).

    python barge_in.py [ws://127.0.0.1:8080/v1/audio/speech/stream]

A real client plays the audio; here a clock stands for the player. docs/protocol.md describes every message.
"""

import asyncio
import json
import sys
import time

import websockets

URL = "ws://127.0.0.1:8080/v1/audio/speech/stream"
TEXT = "This is a long answer that nobody wants to hear to its end. It goes on and on until the user interrupts it."


class Player:
    """Plays one utterance as its audio arrives."""

    def __init__(self, rate):
        self.rate, self.samples, self.started = rate, 0, None

    def play(self, pcm):
        self.started = self.started or time.monotonic()
        self.samples += len(pcm) // 2

    def played_ms(self):
        elapsed = time.monotonic() - (self.started or time.monotonic())
        return min(int(elapsed * 1000), self.samples * 1000 // self.rate)


class Session:
    def __init__(self, url):
        self.url, self.created, self.player, self.received = url, None, None, 0

    async def open(self):
        """Connects; a session that has begun continues at the first sample it has not received."""
        self.socket = await websockets.connect(self.url)
        if self.created:
            secret = {name: self.created[name] for name in ("session_id", "resume_token")}
            await self.send("session.resume", next_sample=self.received, **secret)
        else:
            await self.send("session.config", first_chunk_ms=80)

    async def send(self, kind, **members):
        await self.socket.send(json.dumps({"type": kind, **members}))

    async def next(self):
        """The next event; audio goes to the player."""
        while True:
            frame = await self.socket.recv()
            if isinstance(frame, bytes):
                self.received += len(frame) // 2
                self.player.play(frame)
                await self.send("playback.ack", utterance=self.utterance, played_ms=self.player.played_ms())
                return {"type": "audio"}
            event = json.loads(frame)
            if event["type"] == "session.created":
                self.created = event
            elif event["type"] == "audio.start":
                self.player, self.utterance = Player(self.created["sample_rate"]), event["utterance"]
            elif event["type"] == "error":
                sys.exit(event["message"])
            return event

    async def until(self, kind):
        while (event := await self.next())["type"] != kind:
            pass
        return event


async def main(url):
    session = Session(url)
    await session.open()
    await session.send("input.text", text=TEXT)
    await session.send("input.flush")
    await session.until("audio")
    await session.until("audio")

    session.socket.transport.abort()  # the network fails
    await session.open()
    resumed = await session.until("session.resumed")
    print(f"resumed at sample {resumed['next_sample']}")
    await session.until("audio")

    # The user talks: stop the player, and ask what was heard.
    await session.send("interrupt", utterance=session.utterance, played_ms=session.player.played_ms())
    heard = await session.until("interrupted")
    print(f"heard {heard['played_ms']} ms: {heard['text_spoken']!r}, not heard: {heard['text_remaining']!r}")
    await session.send("input.done")
    await session.until("session.done")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else URL))
