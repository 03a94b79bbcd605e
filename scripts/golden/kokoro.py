"""Reference data for the kokoro family: writes tests/golden/kokoro/.

Run from the repository root, in a virtual environment with scripts/golden/requirements-kokoro.txt installed:

    python -P scripts/golden/kokoro.py                       # a tiny network with random weights
    python -P scripts/golden/kokoro.py MODEL_FOLDER OUT      # the weights of an installed model, not committed

(-P, because this file's folder would hide the package of the same name.) The second form reads `config.json`,
`model.safetensors` and `voices/` of an installed model and writes OUT/goldens/; with a link OUT/model to that folder, the
test `kokoro_golden_network` reads both where IZWI_GOLDEN_KOKORO names OUT.

The network is the package's own: only the widths that its decoder fixes (1024, 64) are made smaller, by a subclass that
builds the same modules. Noise is random in the package; here it is

    noise(sample, harmonic) = ((sample * 31 + harmonic * 17) mod 64) / 32 - 1

on both sides. Every tensor is float32 and named after the stage that computes it, for each case i of network.json:
    i.bert [ids, hidden]       i.duration_features [ids, hidden + style]   i.durations [ids]   i.text [ids, hidden]
    i.pitch [2 * frames]       i.energy [2 * frames]   i.decoded [2 * frames, channels]   i.spectrum [rows, fft + 2]
    i.source [samples]         i.samples [samples]     i.source_spectra [rows, fft + 2]
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

# The package's __init__ imports its text front end; the network needs neither.
spec = importlib.util.find_spec("kokoro")
package = types.ModuleType("kokoro")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["kokoro"] = package

from kokoro import istftnet, model as kmodel, modules  # noqa: E402

STYLE = 128
TINY = {
    "istftnet": {
        "upsample_kernel_sizes": [8, 4],
        "upsample_rates": [4, 2],
        "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
        "resblock_kernel_sizes": [3, 7],
        "upsample_initial_channel": 32,
    },
    "dim_in": 64,
    "dropout": 0.2,
    "hidden_dim": 32,
    "max_conv_dim": 512,
    "max_dur": 6,
    "multispeaker": True,
    "n_layer": 2,
    "n_mels": 80,
    "n_token": 30,
    "style_dim": STYLE,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 48,
        "embedding_size": 16,
        "num_attention_heads": 3,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "num_hidden_layers": 3,
        "dropout": 0.1,
    },
    "decoder_dim": 40,
    "asr_res_dim": 8,
    "vocab": {symbol: at + 1 for at, symbol in enumerate(" .,!?abcdefghijklmnopqrstuvwx")},
}
CASES = [
    ([0, 6, 7, 8, 1, 9, 10, 6, 2, 0], 1.0),
    ([0, 12, 28, 0], 1.0),
    ([0, *range(3, 30), *range(29, 3, -2), 0], 1.3),
    ([0, 20, 21, 22, 1, 23, 24, 0], 0.6),
]
WEIGHTS_CASES = [
    ("həlˈO ðˈɛɹ.", 1.0, "af_heart"),
    ("ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˌOvəɹ ðə lˈAzi dˈɔɡ.", 1.2, "am_adam"),
]


class Decoder(istftnet.Decoder):
    """The package's decoder with other widths."""

    def __init__(self, dim_in, style_dim, dim_out, decoder_dim, asr_res_dim, **istft):
        torch.nn.Module.__init__(self)
        norm, conv, block = istftnet.weight_norm, torch.nn.Conv1d, istftnet.AdainResBlk1d
        out = istft["upsample_initial_channel"]
        inner = decoder_dim + 2 + asr_res_dim
        self.encode = block(dim_in + 2, decoder_dim, style_dim)
        self.decode = torch.nn.ModuleList([block(inner, decoder_dim, style_dim) for _ in range(3)])
        self.decode.append(block(inner, out, style_dim, upsample=True))
        self.F0_conv = norm(conv(1, 1, kernel_size=3, stride=2, groups=1, padding=1))
        self.N_conv = norm(conv(1, 1, kernel_size=3, stride=2, groups=1, padding=1))
        self.asr_res = torch.nn.Sequential(norm(conv(dim_in, asr_res_dim, kernel_size=1)))
        self.generator = istftnet.Generator(style_dim, **istft)


class Network(kmodel.KModel):
    """The package's model without its download."""

    def __init__(self, config):
        torch.nn.Module.__init__(self)
        self.vocab = config["vocab"]
        self.bert = modules.CustomAlbert(kmodel.AlbertConfig(vocab_size=config["n_token"], **config["plbert"]))
        self.bert_encoder = torch.nn.Linear(self.bert.config.hidden_size, config["hidden_dim"])
        hidden, layers = config["hidden_dim"], config["n_layer"]
        self.predictor = modules.ProsodyPredictor(
            style_dim=config["style_dim"], d_hid=hidden, nlayers=layers, max_dur=config["max_dur"], dropout=0.0
        )
        self.text_encoder = modules.TextEncoder(
            channels=hidden, kernel_size=config["text_encoder_kernel_size"], depth=layers, n_symbols=config["n_token"]
        )
        self.decoder = Decoder(
            hidden, config["style_dim"], config["n_mels"], config.get("decoder_dim", 1024),
            config.get("asr_res_dim", 64), **config["istftnet"],
        )
        for module in list(self.modules()):
            if hasattr(module, "weight_g"):
                torch.nn.utils.remove_weight_norm(module)
        self.eval()


def unread(name):
    """Parameters that the network does not use: its instance norms are never trained, BERT's pooler not called."""
    return ".norm1.norm." in name or ".norm2.norm." in name or ".norm.weight" in name or ".norm.bias" in name \
        or name.startswith("bert.pooler.") or "position_ids" in name


def fill(network):
    """Random weights of sizes that keep every stage alive."""
    generator = torch.Generator().manual_seed(17)
    for name, parameter in network.named_parameters():
        if unread(name):
            continue
        random = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
        if "alpha" in name:
            random = 1.0 + 0.3 * random.abs()
        elif name.endswith(("LayerNorm.weight", "layer_norm.weight", "gamma")):
            random = 1.0 + 0.1 * random
        elif parameter.dim() > 1:
            random = random / fan_in**0.5
        else:
            random = 0.1 * random
        if name == "predictor.F0_proj.bias":
            random = random + 180.0
        if name == "predictor.F0_proj.weight":
            random = random * 200.0
        if name == "decoder.generator.conv_post.weight":
            random = random * 0.05
        parameter.data.copy_(random.half())


def fixed_noise(like):
    """As the documentation of this file says."""
    rows = torch.arange(like.shape[1]).view(1, -1, 1)
    return (((rows * 31 + torch.arange(like.shape[2]).view(1, 1, -1) * 17) % 64) / 32 - 1).to(like)


def run(network, ids, style, speed):
    """The stages of one sequence."""
    kept = {}

    def keep(name, change=lambda value: value):
        return lambda _module, _inputs, output: kept.__setitem__(name, change(output).detach())

    hooks = [
        network.bert.register_forward_hook(keep("bert", lambda x: x[0])),
        network.predictor.text_encoder.register_forward_hook(keep("duration_features", lambda x: x[0])),
        network.text_encoder.register_forward_hook(keep("text", lambda x: x[0].T)),
        network.predictor.F0_proj.register_forward_hook(keep("pitch", lambda x: x[0, 0])),
        network.predictor.N_proj.register_forward_hook(keep("energy", lambda x: x[0, 0])),
        network.decoder.decode[3].register_forward_hook(keep("decoded", lambda x: x[0].T)),
        network.decoder.generator.conv_post.register_forward_hook(keep("spectrum", lambda x: x[0].T)),
        network.decoder.generator.m_source.register_forward_hook(keep("source", lambda x: x[0][0, :, 0])),
    ]
    transform = network.decoder.generator.stft.transform

    def kept_transform(samples):
        parts = transform(samples)
        kept["source_spectra"] = torch.cat(parts, dim=1)[0].T
        return parts

    network.decoder.generator.stft.transform = kept_transform
    randn_like, torch.randn_like = torch.randn_like, fixed_noise
    samples, durations = network.forward_with_tokens(torch.tensor([ids]), style.view(1, -1), speed)
    torch.randn_like = randn_like
    network.decoder.generator.stft.transform = transform
    for hook in hooks:
        hook.remove()
    kept["samples"], kept["durations"] = samples, durations.float().view(-1)
    return {name: value.float().contiguous() for name, value in kept.items()}


def installed(folder):
    """The tensors of an installed model under the package's names, multiplied out."""
    tensors = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():
            if not (name.endswith("_scale") and name.removesuffix("_scale") in file.keys()):
                value = file.get_tensor(name)
                if value.dtype == torch.int8:
                    scale = file.get_tensor(f"{name}_scale")
                    value = value.float() * scale.view(-1, *[1] * (value.dim() - 1))
                tensors[official(name)] = value
    return tensors


def official(name):
    """The name in the package's layout of a tensor of the ONNX export."""
    for prefix in ["encoder.bert", "encoder.text_encoder.", "encoder.predictor."]:
        if name.startswith(prefix):
            return name.removeprefix("encoder.")
    if name.startswith("encoder."):
        return "predictor." + name.removeprefix("encoder.")
    return name.removeprefix("decoder.") if name.startswith("decoder.decoder.") else name


def write(out, network, cases):
    """Runs the cases, `(ids, style, speed, voice)` each."""
    goldens = out / "goldens"
    goldens.mkdir(parents=True, exist_ok=True)
    tensors, listed = {}, []
    for at, (ids, style, speed, voice) in enumerate(cases):
        stages = run(network, ids, style, speed)
        tensors |= {f"{at}.{name}": value for name, value in stages.items()}
        tensors[f"{at}.style"] = style.contiguous()
        listed.append({"ids": ids, "speed": speed, "voice": voice})
        print(len(ids), "ids,", {name: tuple(value.shape) for name, value in stages.items()},
              "rms", stages["samples"].square().mean().sqrt().item(), "pitch", stages["pitch"][:4].tolist())
    save_file(tensors, goldens / "network.safetensors")
    (goldens / "network.json").write_text(json.dumps({"cases": listed}) + "\n")


def main():
    """See the top of this file."""
    torch.manual_seed(3)
    if len(sys.argv) == 3:
        folder, out = Path(sys.argv[1]), Path(sys.argv[2])
        config = json.loads((folder / "config.json").read_text())
        network = Network(config)
        missing, unknown = network.load_state_dict(installed(folder), strict=False)
        print("missing:", [name for name in missing if not unread(name)], "unknown:", unknown)
        cases = []
        for phonemes, speed, voice in WEIGHTS_CASES:
            ids = [0, *(config["vocab"][symbol] for symbol in phonemes), 0]
            styles = torch.frombuffer(bytearray((folder / f"voices/{voice}.bin").read_bytes()), dtype=torch.float32)
            cases.append((ids, styles.view(-1, 2 * STYLE)[len(ids) - 3], speed, voice))
        write(out, network, cases)
        return
    out = Path("tests/golden/kokoro")
    out.mkdir(parents=True, exist_ok=True)
    network = Network(TINY)
    fill(network)
    (out / "config.json").write_text(json.dumps(TINY, ensure_ascii=False, indent=1) + "\n")
    tensors = {name: value for name, value in network.state_dict().items() if not unread(name)}
    save_file({name: value.half().contiguous() for name, value in tensors.items()}, out / "model.safetensors")
    voices = {name: torch.randn(40, 2 * STYLE, generator=torch.Generator().manual_seed(seed)) * 0.3
              for seed, name in enumerate(["af_one", "am_two"])}
    (out / "voices").mkdir(exist_ok=True)
    for name, styles in voices.items():
        (out / f"voices/{name}.bin").write_bytes(styles.numpy().tobytes())
    names = list(voices)
    write(out, network, [
        (ids, voices[names[at % 2]][len(ids) - 3], speed, names[at % 2]) for at, (ids, speed) in enumerate(CASES)
    ])


main()
