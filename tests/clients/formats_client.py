"""Decodes what Izwi encodes with the decoders of FFmpeg (PyAV), and compares it with the same speech as PCM.

usage: formats_client.py server BASE_URL    every format over HTTP and WebSocket
       formats_client.py early FOLDER       the beginnings NAME.FORMAT of streams that were cut
       formats_client.py files FOLDER       speech.EXTENSION beside speech.wav

Exits with a traceback at the first deviation; prints one line for each check that passed.
"""

import io
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import av
import numpy as np
from websockets.sync.client import connect

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests."
MODEL_RATE = 24_000
RATES = [8_000, 16_000, 22_050, 24_000, 44_100, 48_000]
# Format: media type, sample rate of what is sent, lowest signal-to-noise ratio in dB against PCM of that rate.
FORMATS = {
    "mp3": ("audio/mpeg", 24_000, 25),
    "opus": ("audio/ogg", 48_000, 15),
    "flac": ("audio/flac", 24_000, 80),
    "wav": ("audio/wav", 24_000, 80),
    "pcm": ("audio/pcm", 24_000, 80),
    "ulaw": ("audio/basic", 8_000, 30),
    "alaw": ("audio/x-alaw-basic", 8_000, 30),
}
# A frame of MP3 up to 24 kHz: an MP3 that is sent before its length is known ends with a whole one.
MP3_FRAME = 576
DEMUXERS = {"ulaw": "mulaw", "alaw": "alaw"}


def passed(what: str) -> None:
    print(f"passed: {what}")


def decode(data: bytes, name: str, cut: bool = False) -> tuple[np.ndarray, int]:
    """Samples in -1..1 and their rate. With `cut`, what comes before the end of the data."""
    if cut and name.startswith("pcm"):
        data = data[: len(data) // 4 * 4]
    if name == "pcm":
        return np.frombuffer(data, "<i2") / 32_768, MODEL_RATE
    if name == "pcm_f32":
        return np.frombuffer(data, "<f4").astype(np.float64), MODEL_RATE
    if name in DEMUXERS:
        container = av.open(io.BytesIO(data), format=DEMUXERS[name], options={"sample_rate": "8000"})
    else:
        container = av.open(io.BytesIO(data))
    samples, rate = [], 0
    try:
        for frame in container.decode(audio=0):
            assert frame.layout.nb_channels == 1, frame.layout
            values = frame.to_ndarray().reshape(-1)
            scale = 1.0 if values.dtype.kind == "f" else float(np.iinfo(values.dtype).max) + 1
            samples.append(values / scale)
            rate = frame.sample_rate
    except av.error.FFmpegError:
        if not cut:
            raise
    return (np.concatenate(samples) if samples else np.zeros(0)), rate


def snr_db(expected: np.ndarray, found: np.ndarray) -> float:
    noise = expected - found[: len(expected)]
    return 10 * np.log10(np.sum(expected**2) / max(np.sum(noise**2), 1e-20))


def low_band(samples: np.ndarray, rate: int, limit: float) -> np.ndarray:
    """Spectrum below `limit` Hz, scaled to be independent of the rate.

    Zeros after the signal keep its ends apart, and fill whole seconds: then the same index is the same frequency at every rate.
    """
    seconds = -(-2 * len(samples) // rate)
    return np.fft.rfft(samples, seconds * rate)[: int(limit * seconds)] / rate


def band_snr_db(a: np.ndarray, rate_a: int, b: np.ndarray, rate_b: int) -> float:
    """Signal-to-noise ratio of two signals of different rates, in the band that both have."""
    limit = 0.4 * min(rate_a, rate_b)
    x, y = low_band(a, rate_a, limit), low_band(b, rate_b, limit)
    length = min(len(x), len(y))
    return 10 * np.log10(np.sum(abs(x[:length]) ** 2) / max(np.sum(abs(x[:length] - y[:length]) ** 2), 1e-30))


def scaled(samples: int, rate: int) -> int:
    return (samples * rate + MODEL_RATE // 2) // MODEL_RATE


def speech(base_url: str, **fields: object) -> tuple[bytes, dict[str, str]]:
    body = json.dumps({"model": "tts-1", "input": TEXT, "seed": 1, **fields}).encode()
    request = urllib.request.Request(f"{base_url}/v1/audio/speech", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return response.read(), {name.lower(): value for name, value in response.headers.items()}


def session(base_url: str, **config: object) -> tuple[dict, list[tuple[dict, bytes]], dict]:
    """`session.created`, the chunks of one utterance, `audio.done`."""
    url = base_url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    with connect(url, open_timeout=60) as socket:
        socket.send(json.dumps({"type": "speak", "text": TEXT, "seed": 1, **config}))
        created, chunks = json.loads(socket.recv(60)), []
        assert created["type"] == "session.created", created
        while (frame := json.loads(socket.recv(60)))["type"] != "audio.done":
            if frame["type"] == "audio.chunk":
                chunks.append((frame, socket.recv(60)))
            else:
                assert frame["type"] == "audio.start", frame
        return created, chunks, frame


def check_length(found: int, expected: int, is_streamed_mp3: bool, what: str) -> None:
    lengths = range(expected, expected + (MP3_FRAME if is_streamed_mp3 else 1))
    assert found in lengths, f"{what}: {found} samples, expected {lengths}"


def server(base_url: str) -> None:
    references = {}
    for rate in RATES:
        data, headers = speech(base_url, response_format="pcm", sample_rate=rate)
        references[rate] = np.frombuffer(data, "<i2") / 32_768
        assert headers["x-sample-rate"] == str(rate), headers
    own = references[MODEL_RATE]
    plain, _ = speech(base_url, response_format="pcm")
    assert np.array_equal(own, np.frombuffer(plain, "<i2") / 32_768)
    for rate in RATES:
        assert len(references[rate]) == scaled(len(own), rate), rate
        snr = band_snr_db(own, MODEL_RATE, references[rate], rate)
        assert snr > 40, f"{rate} Hz: {snr:.1f} dB"
        for name in ["wav", "flac"]:
            data, headers = speech(base_url, response_format=name, sample_rate=rate)
            samples, found_rate = decode(data, name)
            assert found_rate == rate and headers["x-sample-rate"] == str(rate), (name, found_rate)
            assert np.array_equal(samples, references[rate]), f"{name} at {rate} Hz is not the same as pcm"
    passed("sample rates of pcm, wav and flac over HTTP")

    bodies = {}
    for name, (media_type, rate, floor) in FORMATS.items():
        data, headers = speech(base_url, response_format=name)
        bodies[name] = data
        assert headers["content-type"] == media_type, headers
        assert headers["x-sample-rate"] == str(rate), headers
        samples, found_rate = decode(data, name)
        assert found_rate == rate, (name, found_rate)
        check_length(len(samples), len(references[rate]), name == "mp3", name)
        snr = snr_db(references[rate], samples)
        assert snr > floor, f"{name}: {snr:.1f} dB"
        passed(f"{name} over HTTP: {len(data)} bytes, {snr:.1f} dB")
    assert speech(base_url)[0] == bodies["mp3"], "mp3 is not the default"
    passed("mp3 is the default over HTTP")

    for name in [*FORMATS, "pcm_f32"]:
        rate = FORMATS.get(name, ("", MODEL_RATE, 0))[1]
        created, chunks, done = session(base_url, response_format=name)
        assert created["sample_rate"] == rate and created["channels"] == 1, created
        expected = len(references[rate])
        check_chunks(name, rate, chunks, done, expected)
        data = b"".join(audio for _, audio in chunks)
        if name == "pcm_f32":
            assert snr_db(own, decode(data, name)[0]) > 60
        else:
            assert data == bodies[name], f"{name}: the WebSocket does not send the bytes of HTTP"
        passed(f"{name} over WebSocket")
    for rate in RATES:
        created, chunks, done = session(base_url, response_format="pcm", sample_rate=rate)
        assert created["sample_rate"] == rate, created
        check_chunks("pcm", rate, chunks, done, len(references[rate]))
        assert np.array_equal(np.frombuffer(b"".join(audio for _, audio in chunks), "<i2") / 32_768, references[rate])
    passed("sample rates over WebSocket")

    for fields, param in [
        ({"response_format": "aac"}, "response_format"),
        ({"response_format": "wav", "sample_rate": 12_345}, "sample_rate"),
        ({"response_format": "opus", "bit_rate": 1}, "bit_rate"),
    ]:
        try:
            speech(base_url, **fields)
        except urllib.error.HTTPError as error:
            assert error.code == 400, error
            assert json.load(error)["error"]["param"] == param
        else:
            raise AssertionError(f"{fields} is not refused")
    passed("formats and rates that do not exist are refused")


def check_chunks(name: str, rate: int, chunks: list[tuple[dict, bytes]], done: dict, expected: int) -> None:
    """Descriptions without gaps, at the session's rate, of exactly 200 ms."""
    offset = 0
    for number, (frame, audio) in enumerate(chunks):
        assert frame["seq"] == number and frame["sample_offset"] == offset, (name, frame)
        assert frame["samples"] == rate // 5 or number == len(chunks) - 1, (name, frame)
        offset += frame["samples"]
    assert offset == expected == done["samples"], (name, offset, expected, done)


def early(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        name = path.suffix[1:]
        samples, rate = decode(path.read_bytes(), name, cut=True)
        assert len(samples) >= 0.03 * rate > 0, f"{path.name}: {len(samples)} samples"
        passed(f"early audio of {path.name}")


def files(folder: Path) -> None:
    own, own_rate = decode((folder / "speech.wav").read_bytes(), "wav")
    assert own_rate == MODEL_RATE
    for path in sorted(folder.glob("speech.*")):
        extension = path.suffix[1:]
        name = {"ul": "ulaw", "al": "alaw"}.get(extension, extension)
        samples, rate = decode(path.read_bytes(), name)
        assert len(samples) == scaled(len(own), rate), f"{path.name}: {len(samples)} samples of {len(own)}"
        snr = band_snr_db(own, own_rate, samples, rate)
        assert snr > (10 if extension in ["opus", "ogg", "oga", "mp3"] else 25), f"{path.name}: {snr:.1f} dB"
        passed(f"{path.name}: {snr:.1f} dB")


if __name__ == "__main__":
    kind, argument = sys.argv[1:]
    {"server": server, "early": lambda it: early(Path(it)), "files": lambda it: files(Path(it))}[kind](argument)
    passed("everything")
