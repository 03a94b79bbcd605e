"""Reference data for the end of a turn: writes tests/golden/smart_turn/.

Run from the repository root, in a virtual environment with numpy, onnx, onnxruntime and safetensors of
scripts/golden/requirements.txt and `pip install --no-deps pipecat-ai==1.14.0`:

    python -P scripts/golden/smart_turn.py

    model.safetensors    small random weights under the names that a pull gives them
    goldens/*            rows and probabilities of the package's ONNX graph with those weights, and its spectra
    clips.json           probabilities of the graph with its own weights for parts of the recordings of assets/speech: `exact`
                         as the family computes them, and `rounded` as the package does

The graph rounds what passes between its layers to 8 bits, by one scale for each place, which changes probabilities by up to 0.7.
The family does not, so the reference is the graph without these pairs of operations; the weights stay those of 8 bits.
"""

import importlib.util
import json
import sys
import wave
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from safetensors.numpy import save_file

OUT = Path("tests/golden/smart_turn")
PACKAGE = Path(importlib.util.find_spec("pipecat").submodule_search_locations[0])
FOLDER = PACKAGE / "audio/turn/smart_turn"
GRAPH = FOLDER / "data/smart-turn-v3.2-cpu.onnx"
CLIPS = ["jfk"] + [f"sense_and_sensibility_01_austen_64kb-{name}" for name in ("0870", "0880", "0890", "0920", "0930")]
PARTS = [0.3, 0.6, 0.8, 1.0]
SILENCE = 3200  # samples after each part
RATE, POSITIONS = 16000, 400
SMALL = {"width": 128, "heads": 2, "positions": 40, "bins": 16, "hidden": 96, "pool": 24, "classes": 32, "last": 16}


def mel_features(bins):
    """The package's spectra, with another number of bins."""
    spec = importlib.util.spec_from_file_location("features", FOLDER / "_whisper_features.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._MEL_FILTERS = module._build_mel_filterbank(201, bins, 0.0, 8000.0, RATE)
    return module


def spectra(module, samples, positions):
    """`[bins, 2 * positions]` of the last samples, with zeros before them."""
    length = positions * 2 * 160
    samples = np.pad(samples[-length:], (max(0, length - len(samples)), 0))
    module._SAMPLING_RATE = length // 8
    return module.compute_whisper_log_mel_features(samples.astype(np.float32))


def without_rounding():
    """The graph with floats between its layers."""
    model = onnx.load(GRAPH)
    graph, other, kept = model.graph, {}, []
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            other[node.output[0]] = node.input[0]
        elif node.op_type == "DequantizeLinear" and node.input[0] in other:
            other[node.output[0]] = other[node.input[0]]
        else:
            kept.append(node)
    for node in kept:
        for at, name in enumerate(node.input):
            node.input[at] = other.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)
    return model


def weights(model):
    """Each weight's name in the graph and after a pull, and whether it is transposed."""
    stored = {tensor.name for tensor in model.graph.initializer}
    after = {}
    for node in model.graph.node:
        for name in node.input:
            after.setdefault(name, []).append(node)
    found = []
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            product = after[node.output[0]][0]
            if product.op_type != "MatMul":
                found.append((node, node.output[0], node.input[0].removesuffix("_quantized"), False))
                continue
            add = next((add for add in after[product.output[0]] if add.op_type == "Add"), None)
            bias = next((name for name in add.input if name.endswith(".bias")), None) if add else None
            stem = bias.removesuffix(".bias") if bias else product.output[0]
            found.append((node, node.output[0], f"{stem}.weight", True))
    for name in sorted(name for name in stored if name.startswith("inner.") and name.endswith((".weight", ".bias"))):
        found.append((None, name, name, False))
    return found


def random_model(model):
    """The graph with small random weights, and these by the names after a pull."""
    rng = np.random.default_rng(11)
    sizes = {384: SMALL["width"], 6: SMALL["heads"], 400: SMALL["positions"]}
    graph, tensors, replaced = model.graph, {}, {}
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    names = {"fc1": SMALL["hidden"], "pool_attention.0": SMALL["pool"], "classifier.0": SMALL["classes"]}
    names |= {"classifier.1": SMALL["classes"], "classifier.4": SMALL["last"], "classifier.6": 1, "pool_attention.2": 1}
    inputs = {"fc2": SMALL["hidden"], "pool_attention.2": SMALL["pool"], "classifier.4": SMALL["classes"]}
    inputs |= {"classifier.6": SMALL["last"], "conv1": SMALL["bins"]}
    for node, value, name, is_turned in weights(model):
        if name in tensors:
            continue
        rank = len(shapes[node.input[0] if node else value])
        part = name.rsplit(".", 1)[0]
        of = lambda table: next((size for key, size in table.items() if part.endswith(key)), SMALL["width"])
        shape = [of(names)] if rank == 1 else [of(names), of(inputs)] + ([3] if rank == 3 else [])
        if name.endswith("embed_positions.weight"):
            shape = [SMALL["positions"], SMALL["width"]]
        scale = 0.2 if rank == 1 else 1.5 / np.sqrt(np.prod(shape[1:]))
        values = rng.normal(0, scale, shape).astype(np.float32)
        if "norm.weight" in name or name == "inner.classifier.1.weight":
            values += 1
        tensors[name] = values
        replaced[value] = np.ascontiguousarray(values.T) if is_turned else values
    kept = [node for node in graph.node if not (node.op_type == "DequantizeLinear" and node.output[0] in replaced)]
    initial = [tensor for tensor in graph.initializer if tensor.name not in replaced]
    for at, tensor in enumerate(initial):
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.int64 and values.size == 1 and int(values.flat[0]) in sizes:
            initial[at] = numpy_helper.from_array(np.full_like(values, sizes[int(values.flat[0])]), tensor.name)
    initial += [numpy_helper.from_array(values, name) for name, values in replaced.items()]
    floats = lambda name, dims: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
    last = next(node.output[0] for node in kept if node.op_type == "LayerNormalization" and "encoder.layer_norm" in node.input[1])
    small = helper.make_graph(
        kept,
        "small",
        [floats("input_features", [None, SMALL["bins"], 2 * SMALL["positions"]])],
        [floats("logits", None), floats(last, None)],
        initial,
    )
    return helper.make_model(small, opset_imports=model.opset_import, ir_version=10), tensors


def session(model, is_optimised=False):
    """Optimised, the products of 8-bit weights are made of rounded rows, which changes probabilities by up to 0.03."""
    options = onnxruntime.SessionOptions()
    if not is_optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def recording(name):
    with wave.open(f"assets/speech/{name}.wav") as file:
        assert file.getframerate() == RATE and file.getnchannels() == 1
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def noise(count):
    """Knuth's generator, as in the test, louder by and by."""
    state, values = 5, []
    for at in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        value = np.float32(state >> 40) / np.float32(2**23) - np.float32(1)
        values.append(value * np.float32(at % 4096) / np.float32(8192))
    return np.array(values, np.float32)


def main():
    (OUT / "goldens").mkdir(parents=True, exist_ok=True)
    small, tensors = random_model(without_rounding())
    save_file(tensors, OUT / "model.safetensors")
    run, features = session(small), mel_features(SMALL["bins"])
    goldens = {}
    for name, count in (("long", 14000), ("short", 3000)):
        mel = spectra(features, noise(count), SMALL["positions"])
        probability, rows = run.run(None, {"input_features": mel[None]})
        goldens |= {f"{name}.spectra": np.ascontiguousarray(mel.T), f"{name}.rows": rows[0], f"{name}.probability": probability[0]}
    save_file(goldens, OUT / "goldens/all.safetensors")

    exact, rounded, features, clips = session(without_rounding()), session(onnx.load(GRAPH), is_optimised=True), mel_features(80), []
    for name in CLIPS:
        samples = recording(name)
        for part in PARTS:
            count = int(len(samples) * part)
            heard = np.concatenate([samples[:count], np.zeros(SILENCE, np.float32)])
            mel = {"input_features": spectra(features, heard, POSITIONS)[None]}
            values = [float(one.run(None, mel)[0].item()) for one in (exact, rounded)]
            clips.append({"name": name, "samples": count, "exact": values[0], "rounded": values[1]})
    (OUT / "clips.json").write_text(json.dumps(clips, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
