"""Reference data for voice activity detection: writes tests/golden/silero_vad/.

Run from the repository root, in a virtual environment with numpy, onnx, onnxruntime and safetensors of
scripts/golden/requirements.txt and `pip install --no-deps silero-vad==6.2.3`:

    python -P scripts/golden/silero_vad.py

    random.txt   scores of the package's ONNX graph with random weights, which the test makes by the same formula;
                 checked by `cargo test -p izwi-audio golden`
    NAME.txt     scores of the same graph with the weights of the package's safetensors file, for
                 assets/speech/NAME.wav; checked by `cargo test -p izwi-tests golden` (the ONNX file itself holds the
                 weights of another training)
"""

import importlib.util
import wave
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from safetensors.numpy import load_file

OUT = Path("tests/golden/silero_vad")
PACKAGE = Path(importlib.util.find_spec("silero_vad").submodule_search_locations[0])
GRAPH = PACKAGE / "data" / "silero_vad_16k_sequence.onnx"
CLIPS = ["jfk", "sense_and_sensibility_01_austen_64kb-0880"]
FRAME, CONTEXT, FRAMES = 512, 64, 48

SHAPES = [
    ("stft_conv.weight", (258, 1, 256), 0.2),
    ("conv1.weight", (128, 129, 3), 0.2),
    ("conv1.bias", (128,), 0.2),
    ("conv2.weight", (64, 128, 3), 0.1),
    ("conv2.bias", (64,), 0.2),
    ("conv3.weight", (64, 64, 3), 0.15),
    ("conv3.bias", (64,), 0.2),
    ("conv4.weight", (128, 64, 3), 0.3),
    ("conv4.bias", (128,), 0.2),
    ("lstm_cell.weight_ih", (512, 128), 0.2),
    ("lstm_cell.weight_hh", (512, 128), 0.2),
    ("lstm_cell.bias_ih", (512,), 0.2),
    ("lstm_cell.bias_hh", (512,), 0.2),
    ("final_conv.weight", (1, 128, 1), 0.5),
    ("final_conv.bias", (1,), 0.2),
]


class Numbers:
    """Knuth's generator, as in the test."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return np.float32(self.state >> 40) / np.float32(2**23) - np.float32(1)

    def array(self, shape, scale=1.0):
        count = int(np.prod(shape))
        values = np.array([self.next() for _ in range(count)], np.float32) * np.float32(scale)
        return values.reshape(shape)


def onnx_weights(weights):
    """The weights by the names of the graph. ONNX orders the gates of an LSTM i, o, f, c; torch i, f, c, o."""
    gates = lambda values: np.concatenate([np.split(values, 4)[at] for at in (0, 3, 1, 2)])
    named = {"stft.forward_basis_buffer": weights["stft_conv.weight"]}
    for layer in range(4):
        for part in ("weight", "bias"):
            named[f"encoder.{layer}.{part}"] = weights[f"conv{layer + 1}.{part}"]
    for part in ("weight", "bias"):
        named[f"output.{part}"] = weights[f"final_conv.{part}"]
    named["onnx::LSTM_209"] = gates(weights["lstm_cell.weight_ih"])[None]
    named["onnx::LSTM_210"] = gates(weights["lstm_cell.weight_hh"])[None]
    biases = [gates(weights[f"lstm_cell.bias_{of}"]) for of in ("ih", "hh")]
    named["onnx::LSTM_211"] = np.concatenate(biases)[None]
    return named


def write(name, scores):
    (OUT / f"{name}.txt").write_text("".join(f"{score:.7g}\n" for score in scores))


def session(weights):
    weights = onnx_weights(weights)
    model = onnx.load(GRAPH)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(weights.pop(tensor.name), tensor.name))
    assert not weights
    return onnxruntime.InferenceSession(model.SerializeToString())


def random_scores():
    numbers = Numbers(7)
    weights = {name: numbers.array(shape, scale) for name, shape, scale in SHAPES}
    level = np.float32(0.3) * ((np.arange(FRAMES * FRAME) // (2 * FRAME)) % 3).astype(np.float32)
    samples = Numbers(8).array((FRAMES * FRAME,)) * level
    return scores(session(weights), samples)


def clip(name):
    with wave.open(f"assets/speech/{name}.wav") as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def scores(session, samples):
    frames = np.zeros((-(-len(samples) // FRAME), FRAME), np.float32)
    frames.reshape(-1)[: len(samples)] = samples
    context = np.zeros((len(frames), CONTEXT), np.float32)
    context[1:] = frames[:-1, -CONTEXT:]
    zeros = np.zeros((1, 1, 128), np.float32)
    feed = {"input": np.concatenate([context, frames], 1), "h": zeros, "c": zeros}
    return session.run(["speech_probs"], feed)[0].reshape(-1)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    write("random", random_scores())
    published = session(load_file(PACKAGE / "data" / "silero_vad_16k.safetensors"))
    for name in CLIPS:
        write(name, scores(published, clip(name)))


if __name__ == "__main__":
    main()
