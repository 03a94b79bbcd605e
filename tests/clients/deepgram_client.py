"""Talks to a running server with the real `deepgram-sdk` package, as an application does.

usage: deepgram_client.py BASE_URL KEY RECORDING WORD

The default ASR model transcribes RECORDING, a WAV file, to a text with WORD in it. Exits with a traceback at the first
deviation; prints one line for each check that passed.
"""

import faulthandler
import io
import sys
import threading
import wave

import av
import numpy as np
from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types.speak_v1text import SpeakV1Text

TEXT = "The server speaks through one more package."


def passed(what: str) -> None:
    print(f"passed: {what}", flush=True)


def main(base_url: str, key: str, recording: str, word: str) -> None:
    web_socket = base_url.replace("http", "ws", 1)
    environment = DeepgramClientEnvironment(base=base_url, production=web_socket, agent=web_socket, agent_rest=base_url)
    client = DeepgramClient(api_key=key, environment=environment, timeout=120)
    speech(client)
    spoken(client)
    transcripts(client, recording, word)
    live(client, recording, word)
    errors(client, environment, recording)


def say(client: DeepgramClient, **options: object) -> bytes:
    return b"".join(client.speak.v1.audio.generate(text=TEXT, **options))


def decoded(audio: bytes) -> tuple[float, int]:
    """Seconds and rate, by FFmpeg."""
    with av.open(io.BytesIO(audio)) as container:
        frames = list(container.decode(audio=0))
    return sum(frame.samples for frame in frames) / frames[0].sample_rate, frames[0].sample_rate


def speech(client: DeepgramClient) -> None:
    seed = {"additional_query_parameters": {"seed": "7"}}
    raw = say(client, model="aura-2-thalia-en", encoding="linear16", container="none", request_options=seed)
    seconds = len(raw) / 2 / 24_000
    assert 1 < seconds < 10, seconds
    for options, rate in [
        ({}, None),
        ({"encoding": "mp3", "bit_rate": 48_000}, None),
        ({"encoding": "linear16", "sample_rate": 16_000}, 16_000),
        ({"encoding": "linear16", "container": "wav", "mip_opt_out": True, "tag": "a"}, 24_000),
        ({"encoding": "opus", "container": "ogg"}, 48_000),
        ({"encoding": "flac", "sample_rate": 24_000}, 24_000),
    ]:
        length, found = decoded(say(client, request_options=seed, **options))
        assert abs(length - seconds) < 0.15 and rate in [None, found], (options, length, seconds, found)
    for encoding in ["mulaw", "alaw"]:
        audio = say(client, encoding=encoding, container="none", sample_rate=8_000, request_options=seed)
        assert abs(len(audio) / 8_000 - seconds) < 0.01, (encoding, len(audio), seconds)
    passed("speech in every format")


def spoken(client: DeepgramClient) -> None:
    with client.speak.v1.connect(model="aura-2-thalia-en", encoding="linear16", sample_rate=24_000) as socket:
        metadata = socket.recv()
        assert metadata.type == "Metadata" and metadata.request_id and metadata.model_name, metadata
        lengths = []
        for number, text in enumerate(["This is the first part, which is long enough.", "A second."]):
            for piece in [text[:9], text[9:]]:
                socket.send_text(SpeakV1Text(text=piece))
            socket.send_flush()
            audio = b""
            while isinstance(message := socket.recv(), bytes):
                audio += message
            assert message.type == "Flushed" and message.sequence_id == number, message
            lengths.append(len(audio))
        assert lengths[0] > lengths[1] > 10_000, lengths
        socket.send_text(SpeakV1Text(text="This is cleared before it is spoken completely. " * 20))
        assert isinstance(socket.recv(), bytes)
        socket.send_clear()
        while isinstance(message := socket.recv(), bytes):
            pass
        assert message.type == "Cleared", message
        socket._send({"type": "Sing"})
        warning = socket.recv()
        assert warning.type == "Warning" and "Sing" in warning.description, warning
        socket.send_text(SpeakV1Text(text="The end."))
        socket.send_close()
        rest = list(socket)
        assert rest and all(isinstance(message, bytes) for message in rest), rest
    with client.speak.v1.connect(encoding="mulaw", sample_rate=8_000) as socket:
        socket.recv()
        socket.send_text(SpeakV1Text(text=TEXT))
        socket.send_close()
        assert 8_000 < sum(len(message) for message in socket) < 80_000
    passed("speech over the WebSocket")


def transcripts(client: DeepgramClient, recording: str, word: str) -> None:
    with open(recording, "rb") as file:
        audio = file.read()
    response = client.listen.v1.media.transcribe_file(
        request=audio,
        model="nova-3",
        language="en-US",
        punctuate=True,
        smart_format=True,
        utterances=True,
        diarize=False,
        keyterm=["America"],
    )
    with wave.open(recording) as file:
        seconds = file.getnframes() / file.getframerate()
    assert abs(response.metadata.duration - seconds) < 0.1 and response.metadata.channels == 1, response.metadata
    assert response.metadata.request_id and len(response.metadata.sha256) == 64, response.metadata
    [channel] = response.results.channels
    [best] = channel.alternatives
    assert word in best.transcript.lower() and 0 < best.confidence <= 1, best
    assert any(item.word == word for item in best.words), best.words
    assert all(0 <= item.start <= item.end <= seconds + 0.1 for item in best.words), best.words
    assert len(best.words) == len(best.transcript.split()), best
    joined = " ".join(utterance.transcript for utterance in response.results.utterances)
    assert joined == best.transcript, (joined, best.transcript)
    plain = client.listen.v1.media.transcribe_file(request=audio)
    assert word in plain.results.channels[0].alternatives[0].transcript.lower(), plain
    assert plain.results.utterances is None, plain
    samples, rate = pcm(recording, 0)
    rates = {"additional_query_parameters": {"sample_rate": rate}}
    raw = client.listen.v1.media.transcribe_file(request=samples, encoding="linear16", request_options=rates)
    assert raw.results.channels[0].alternatives[0].transcript == plain.results.channels[0].alternatives[0].transcript, raw
    passed("transcripts with words")


def pcm(recording: str, silence_s: float) -> tuple[bytes, int]:
    with wave.open(recording) as file:
        rate = file.getframerate()
        return file.readframes(file.getnframes()) + bytes(int(silence_s * rate) * 2), rate


def live(client: DeepgramClient, recording: str, word: str) -> None:
    audio, rate = pcm(recording, 2.5)
    options = {
        "model": "nova-3",
        "encoding": "linear16",
        "sample_rate": rate,
        "channels": 1,
        "interim_results": True,
        "vad_events": True,
        "endpointing": 600,
        "utterance_end_ms": 1_000,
    }
    with client.listen.v1.connect(**options) as socket:
        received = []
        reader = threading.Thread(target=lambda: received.extend(socket))
        reader.start()
        for at in range(0, len(audio), 6_400):
            socket.send_media(audio[at : at + 6_400])
        socket.send_keep_alive()
        socket.send_close_stream()
        reader.join(timeout=240)
        assert not reader.is_alive(), received
    kinds = [message.type for message in received]
    results = [message for message in received if message.type == "Results"]
    finals = [message for message in results if message.is_final]
    text = " ".join(message.channel.alternatives[0].transcript for message in finals)
    assert word in text.lower(), text
    assert kinds[0] == "SpeechStarted" and kinds[-1] == "Metadata", kinds
    assert all(a.start + a.duration <= b.start + 0.01 for a, b in zip(finals, finals[1:])), finals
    assert finals[-1].speech_final and not any(message.speech_final for message in results if not message.is_final), results
    interim = [message for message in results if not message.is_final]
    assert interim and all(message.channel.alternatives[0].transcript for message in interim), results
    words = [item for message in finals for item in message.channel.alternatives[0].words]
    assert any(item.word == word for item in words), words
    assert all(a.start <= b.start for a, b in zip(words, words[1:])), words
    assert abs(received[-1].duration - len(audio) / 2 / rate) < 0.1, received[-1]

    # A turn that is ended by the client, and a client that is done.
    with client.listen.v1.connect(model="nova-3", encoding="linear16", sample_rate=rate) as socket:
        socket.send_media(audio[: 2 * rate * 2])
        socket.send_finalize()
        message = socket.recv()
        assert message.type == "Results" and message.is_final and message.from_finalize, message
        assert message.channel.alternatives[0].transcript, message
        socket._send({"type": "Configure"})
        refused = socket.recv()
        assert refused.type == "Error" and "Configure" in refused.description, refused
        socket.send_finalize()
        assert socket.recv().from_finalize
        socket.send_close_stream()
        assert [message.type for message in socket] == ["Metadata"]
    passed("a live transcript")


def refused(status: int, word: str, call) -> None:
    try:
        call()
    except ApiError as error:
        body = error.body if isinstance(error.body, dict) else vars(error.body)
        assert error.status_code == status and body.get("err_code") and body.get("request_id"), (error.status_code, body)
        assert word in body["err_msg"], body
        return
    raise AssertionError(f"not refused: {word}")


def errors(client: DeepgramClient, environment: DeepgramClientEnvironment, recording: str) -> None:
    with open(recording, "rb") as file:
        audio = file.read()
    listen, generate = client.listen.v1.media, client.speak.v1.audio.generate
    refused(400, "fetched", lambda: listen.transcribe_url(url="https://example.com/a.wav"))
    for name, value in [("multichannel", True), ("redact", "pii"), ("callback", "https://example.com")]:
        refused(400, name, lambda: listen.transcribe_file(request=audio, **{name: value}))
    refused(400, "sample_rate", lambda: listen.transcribe_file(request=audio, encoding="linear16"))
    fast = {"additional_query_parameters": {"sample_rate": 4_294_967_295}}
    refused(400, "sample_rate", lambda: listen.transcribe_file(request=audio, encoding="mulaw", request_options=fast))
    refused(400, "amr-nb", lambda: listen.transcribe_file(request=audio, encoding="amr-nb"))
    refused(404, "no-such-model", lambda: listen.transcribe_file(request=audio, model="no-such-model"))
    refused(415, "", lambda: listen.transcribe_file(request=b"no recording at all"))
    refused(400, "aac", lambda: list(generate(text=TEXT, encoding="aac")))
    refused(400, "callback", lambda: list(generate(text=TEXT, callback="https://example.com")))
    refused(400, "text", lambda: list(generate(text=" ")))
    refused(400, "sample rate", lambda: list(generate(text=TEXT, encoding="linear16", sample_rate=12_345)))
    passed("errors in Deepgram's shape")
    stranger = DeepgramClient(api_key="not-the-right-key", environment=environment, timeout=60)
    try:
        list(stranger.speak.v1.audio.generate(text=TEXT))
    except ApiError as error:
        assert error.status_code == 401, error
    else:
        raise AssertionError("a wrong key is accepted")
    passed("keys as tokens")


if __name__ == "__main__":
    # What hangs is shown before the test ends.
    faulthandler.dump_traceback_later(250, exit=True)
    main(*sys.argv[1:])
