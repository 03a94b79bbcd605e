"""Stream speech over the WebSocket and write the chunks to a WAV file as they arrive (pip install websockets)."""

import asyncio
import json
import sys
import time
import wave

import websockets

URL = "ws://127.0.0.1:8080/v1/audio/speech/stream"


async def main(text, path):
    start = time.monotonic()
    async with websockets.connect(URL) as socket:
        await socket.send(json.dumps({"type": "speak", "text": text}))
        with wave.open(path, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            async for frame in socket:
                if isinstance(frame, bytes):  # 200 ms of 16-bit PCM; the last chunk may be shorter
                    out.writeframes(frame)
                    print(f"{time.monotonic() - start:6.3f} s  {len(frame) // 2} samples")
                    continue
                event = json.loads(frame)
                if event["type"] == "session.created":
                    out.setframerate(event["sample_rate"])
                elif event["type"] == "audio.done":
                    print(f"{event['duration_s']:.2f} s of audio, RTF {event['rtf']:.3f}, first after {event['ttfa_ms']:.0f} ms")
                elif event["type"] == "error":
                    sys.exit(event["message"])
                elif event["type"] == "session.done":
                    break


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Hello from Izwi. This streams during generation.", "stream.wav"))
