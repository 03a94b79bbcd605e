"""Reference data for the hibari family: writes tests/golden/hibari/.

Run from the repository root, in a virtual environment with scripts/golden/requirements.txt installed:

    python -P scripts/golden/hibari.py

(-P, because this file's folder would hide the package of the same name.)

What each file is checked against by `cargo test -p izwi-models golden`:
    network.json     phoneme ids, speeds, durations and F0 from a float32 forward pass in numpy over the weights of
                     hibari.onnx (its int8 weights multiplied out; no activation quantisation)
    network.f32      the five spectral heads at every FRAME_STEP-th frame and BIN_STEP-th bin, little-endian float32
    waveform.json    parameters of a synthetic input that both sides build by the same exact formula
    waveform.f32     its samples from a numpy waveform stage, every SAMPLE_STEP-th
    oov.tsv          words and their phonemes from oov.onnx under ONNX Runtime
    sentences.tsv    sentences and their phonemes from hibari's own front end
"""

import json
import math
import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
from hibari.g2p import G2P
from hibari.g2p.oov import OOV
from onnx import numpy_helper

OUT = Path("tests/golden/hibari")
ASSETS = files("hibari") / "assets"
BINS, FRAME_STEP, BIN_STEP, SAMPLE_STEP = 601, 7, 5, 3
HOP, FFT, RATE = 300, 1200, 24000
F = np.float32
DILATIONS = (1, 2, 4, 8, 1, 2)

SEQUENCES = [
    ("həlˈO ðˈɛɹ.", 1.0),
    ("ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˌOvəɹ ðə lˈAzi dˈɔɡ wˌIl ˈɪt ɹˈAnz.", 1.3),
    (
        "ðə kəmˈɪTi wɪl mˈit əɡˈɛn ˌɔn θˈɜɹzdˌA mˈɔɹnɪŋ tə ɹəvjˈu ðə nˈu bˈʌʤət, ænd ˈɛvɹiwˌʌn hˌu wˈɜɹks ɪn ðə "
        "bˈɪldɪŋ ɪz ɪnvˈITᵻd tə bɹˈɪŋ kwˈɛsʧənz, IdˈiəZ, ænd ɐ kˈʌp ʌv stɹˈɔŋ kˈɔfi.",
        1.0,
    ),
]

OOV_WORDS = """izwi hibari Kokoro qzxwv Rustacean tokio axum candle's Zyxel Nguyen Siobhan quokka blorpt snarfle
Wroclaw Xochitl grok kubernetes nginx Zdzislaw flibbertigibbet Llanfair doge yeet Kraków naïveté Åre smörgåsbord
HTTPie eBPF vLLM tRPC zsh xkcd qwerty o'zbek ŌSAKA brrr mmhmm Ekwueme""".split()

SENTENCES = """The quick brown fox jumps over the lazy dog.
Hello there, how are you today?
She sells sea shells by the sea shore.
Please read the report I read yesterday.
They record a record every week.
The committee will meet again on Thursday morning to review the new budget.
I live near a live music venue, and I used to go there often.
On March 3, 2024, 1,250 people paid $9.99 each to hear it at 7:30 pm.
Dr. Smith lives at 221 Baker St. in London.
Chapter IV describes how Henry VIII ruled in 1536.
The temperature was -3°C, about 26.6°F, at 5 km from the coast.
It cost $3.5 million, roughly 12% more than in 2019.
Call 555-123-4567 before 9:00 or after 17:45.
Mix 1/2 cup of sugar with 3/4 cup of flour.
Pages 10-20 cover approx. 5 topics, etc.
He won the 1st, 2nd and 23rd rounds.
The FBI and NASA denied it; the CEO of IBM didn't.
"Wait," she said, "isn't that Sarah's book?"
A state-of-the-art, well-known method.
What?! No way... I don't believe it!
World War II ended in 1945.
The U.S. economy grew 2.5% in Q3.
My e-mail didn't arrive until 10 AM.
Meet me on 2024-12-25 or 1/2/2025.
I've got 99 problems, but they're all mine.
The iPhone was introduced by Apple in 2007.
We flew Boeing 747s over the Alps at 30,000 feet.
He paid £5.50 for coffee and €20 for lunch.
She's the author of "The Great Escape" (1999).
The dogs' owner, Mr. Jones, won't go to St. Louis.
Kokoro and hibari are small speech models.
The bass player caught a bass; the wind will wind down.
Turn left onto Main St. and drive for 2.5 mi.
Is 2 + 2 = 4? Yes & no.
A cup of tea, an hour, the apple, the pear, to eat, to drink.
The 1990s were great, weren't they?
Nguyen and Siobhan visited Kraków in Sept. 2021.
Version 2.0.1 fixes bug #42.
They produce fresh produce and object to the object.
I'm going to present the present.""".splitlines()


def weights():
    """Named float32 tensors of hibari.onnx; a quantised product is named after the bias of the addition that follows."""
    graph = onnx.load(str(ASSETS / "hibari.onnx")).graph
    raw = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    users = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    named = {k: v.astype(F) for k, v in raw.items() if k.startswith(("m.", "pn."))}
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        base = node.input[1].removesuffix("_quantized")
        follower = node
        while follower.op_type != "Add":
            follower = users[follower.output[0]][0]
        bias = next(name for name in follower.input if name in raw)
        steps = raw[node.input[1]].astype(F) - F(raw[base + "_zero_point"])
        named[bias.removesuffix("bias") + "weight"] = np.ascontiguousarray((steps * raw[base + "_scale"]).T)
    return named


class Reference:
    """The network, activations as [time, channels]."""

    def __init__(self):
        self.w = weights()

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + F(1e-5))
        return scaled * self.w[name + ".weight"] + self.w[name + ".bias"]

    def linear(self, x, name, weight=".weight", bias=".bias"):
        return x @ self.w[name + weight].T + self.w[name + bias]

    def conv(self, x, name, dilation=1):
        kernel = self.w[name + ".weight"]  # [out, in or 1, taps]
        taps = kernel.shape[2]
        reach = taps // 2 * dilation
        padded = np.pad(x, ((reach, reach), (0, 0)))
        out = np.zeros((len(x), kernel.shape[0]), F)
        for tap in range(taps):
            shifted = padded[tap * dilation : tap * dilation + len(x)]
            out += shifted * kernel[:, 0, tap] if kernel.shape[1] == 1 else shifted @ kernel[:, :, tap].T
        return out + self.w[name + ".bias"]

    def block(self, x, name, dilation=1):
        hidden = self.norm(self.conv(x, name + ".dw", dilation), name + ".norm")
        hidden = self.linear(gelu(self.linear(hidden, name + ".pw1")), name + ".pw2")
        return x + hidden * self.w[name + ".gamma"]

    def attention(self, x, name, heads=2):
        time, width = x.shape
        qkv = self.linear(self.norm(x, name + ".norm1"), name + ".self_attn", ".in_proj_weight", ".in_proj_bias")
        q, k, v = qkv.reshape(time, 3, heads, width // heads).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / F(math.sqrt(width // heads))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        x = x + self.linear(mixed.transpose(1, 0, 2).reshape(time, width), name + ".self_attn.out_proj")
        hidden = gelu(self.linear(self.norm(x, name + ".norm2"), name + ".linear1"))
        return x + self.linear(hidden, name + ".linear2")

    def text(self, ids, name, loops):
        x = self.w[name + ".emb.weight"][ids]
        for index in range(2):
            x = self.block(x, f"{name}.convs.{index}")
        for _ in range(loops):
            x = self.attention(x, name + ".attn")
        return self.norm(x, name + ".norm")

    def forward(self, ids, speed):
        acoustic, prosodic = self.text(ids, "m.text", 4), self.text(ids, "pn.text", 6)
        log = self.conv(gelu(self.conv(prosodic, "pn.dur.0")), "pn.dur.2")[:, 0]
        durations = np.maximum(np.round((np.exp(log) - 1) / F(speed)), 1).astype(int)
        source = np.repeat(np.arange(len(ids)), durations)
        x = self.conv(prosodic[source], "pn.pro_in")
        for index, dilation in enumerate(DILATIONS):
            x = self.block(x, f"pn.pro.{index}", dilation)
        contours = self.conv(x, "pn.pro_out")  # [T, 4]: two pitches, two energies
        pitch, energy = contours[:, :2].reshape(-1) * F(100), contours[:, 2:].reshape(-1) * F(5)
        features = np.stack([np.log(1 + np.maximum(pitch, 0)) / F(5), energy / F(5)], 1)
        x = self.conv(np.concatenate([np.repeat(acoustic[source], 2, 0), features], 1).astype(F), "m.dec_in")
        for index in range(8):
            x = self.block(x, f"m.dec.{index}")
        return durations, pitch, self.linear(self.norm(x, "m.dec_norm"), "m.head")


def gelu(x):
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return (x * (1 + erf(x / math.sqrt(2))) / 2).astype(F)


def network():
    vocabulary = json.loads((ASSETS / "vocab.json").read_text(encoding="utf-8"))
    reference, cases, heads = Reference(), [], []
    for phonemes, speed in SEQUENCES:
        ids = [0, *[vocabulary[c] for c in phonemes if c in vocabulary], 0]
        durations, pitch, values = reference.forward(np.array(ids), speed)
        sampled = values.reshape(-1, 5, BINS)[::FRAME_STEP, :, ::BIN_STEP]
        heads.append(sampled.astype("<f4").tobytes())
        cases.append(
            {"ids": ids, "speed": speed, "durations": durations.tolist(), "pitch_hz": [float(f) for f in pitch]}
        )
    steps = {"frame_step": FRAME_STEP, "bin_step": BIN_STEP}
    (OUT / "network.json").write_text(json.dumps(steps | {"cases": cases}) + "\n")
    (OUT / "network.f32").write_bytes(b"".join(heads))


def waveform():
    """Every input value is a small integer over a power of two: exact in float32, so nothing needs storing."""
    frames = 40
    frame, bin_ = np.arange(frames)[:, None], np.arange(BINS)[None, :]
    wave = lambda a, b, m: ((frame * a + bin_ * b) % m).astype(F)
    heads = [
        wave(3, 5, 33) / 16 - F(2),
        wave(7, 2, 65) / 32 - F(1),
        wave(5, 3, 17) / 8 - F(5),
        wave(11, 7, 29) / 8 - F(6),
        wave(2, 13, 97) / 16 - F(3),
    ]
    noise = (wave(31, 17, 64) / 32 - F(1)) + 1j * (wave(13, 29, 64) / 32 - F(1))
    pitch = np.array([0 if k % 11 == 10 else 90 + (k * 13) % 160 for k in range(frames)], F)
    samples = synthesise(heads, pitch, noise)
    (OUT / "waveform.json").write_text(json.dumps({"frames": frames, "sample_step": SAMPLE_STEP}) + "\n")
    (OUT / "waveform.f32").write_bytes(samples[::SAMPLE_STEP].astype("<f4").tobytes())


def synthesise(heads, pitch, noise):
    log_harmonic, warp, log_noise, log_residual, phase = (head.astype(np.float64) for head in heads)
    frames = len(pitch)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)
    source = np.pad(pulses(pitch), FFT // 2, mode="reflect")
    framed = np.stack([source[k * HOP : k * HOP + FFT] for k in range(frames)])
    spectrum = np.fft.rfft(framed * window / (FFT / 4))
    magnitude = lambda log: np.exp(np.minimum(log, 7))
    spectrum = magnitude(log_harmonic) * np.exp(1j * np.pi * np.tanh(warp)) * spectrum
    spectrum = spectrum + magnitude(log_noise) * noise + magnitude(log_residual) * np.exp(1j * phase)
    out, weight = np.zeros((frames + 3) * HOP), np.zeros((frames + 3) * HOP)
    for k, samples in enumerate(np.fft.irfft(spectrum, FFT)):
        out[k * HOP : k * HOP + FFT] += samples * window
        weight[k * HOP : k * HOP + FFT] += window**2
    return (out / np.maximum(weight, 1e-11))[FFT // 2 :][: frames * HOP]


def pulses(pitch):
    """All harmonics below 11 kHz at unit amplitude, in closed form, with the limit where its divisor is near zero."""
    at = (np.arange(len(pitch) * HOP) + 0.5) / HOP - 0.5
    held = np.interp(at, np.arange(len(pitch)), pitch.astype(np.float64))
    voiced, held = held > 40, np.maximum(held, 40)
    phase = 2 * np.pi * np.modf(np.cumsum(held) / RATE)[0]
    order = np.floor(11000 / held) + 0.5
    below = 2 * np.sin(phase / 2)
    singular = np.abs(below) <= 2e-3
    ratio = np.where(singular, order, np.sin(order * phase) / np.where(singular, 1, below))
    return np.where(voiced, ratio - 0.5, 0)


def table(name, rows):
    lines = [f"{written}\t{spoken}\n" for written, spoken in rows]
    (OUT / name).write_text("".join(lines), encoding="utf-8")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    network()
    waveform()
    oov = OOV(os.fspath(ASSETS / "oov.onnx"))
    table("oov.tsv", [(word, oov(word) or "") for word in OOV_WORDS])
    g2p = G2P()
    table("sentences.tsv", [(sentence, g2p(sentence)) for sentence in SENTENCES])


if __name__ == "__main__":
    main()
