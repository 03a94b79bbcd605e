#!/usr/bin/env python3
"""Golden generator for LFM2-Audio / LFM2.5-Audio: random checkpoint in the official layout + reference dumps.

  lfm2_audio.py --seed 1 --size tiny --out DIR
  lfm2_audio.py --seed 1 --size real --out DIR   full-size random bf16 main model (+ detokenizer, Mimi), no goldens

Official layout: config.json, model.safetensors, tokenizer.json, tokenizer_config.json, special_tokens_map.json,
tokenizer-e351c8d8-checkpoint125.safetensors (Mimi), audio_detokenizer/{config.json,model.safetensors}.
Even seeds store only depth_embeddings.*.embedding.weight (tied head omitted), odd seeds store both names.
"""
import argparse, json, math, shutil, sys, warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import common as C
import torch
from torch import nn
from safetensors.torch import save_file, load_file
from transformers.utils import logging as hf_logging
hf_logging.set_verbosity_error()
warnings.filterwarnings("ignore")

import liquid_audio
from liquid_audio import ChatState, LFM2AudioModel, LFM2AudioProcessor, LFMModality
from liquid_audio.detokenizer import LFM2AudioDetokenizer, FusedEmbedding, ISTFT
from liquid_audio.model.conformer.encoder import ConformerEncoderConfig
from liquid_audio.model.lfm2_audio import LFM2AudioConfig, DepthformerConfig
from liquid_audio.moshi.models import loaders
from liquid_audio.utils import mel2emb_len
from transformers import Lfm2Config, Lfm2Model, PreTrainedTokenizerFast
import torchaudio

MIMI_NAME = "tokenizer-e351c8d8-checkpoint125.safetensors"
NAMED = {0: "<|pad|>", 1: "<|startoftext|>", 2: "<|endoftext|>", 3: "<|fim_pre|>", 4: "<|fim_mid|>", 5: "<|fim_suf|>",
         6: "<|im_start|>", 7: "<|im_end|>", 128: "<|audio_start|>", 130: "<|text_end|>"}
LLAMA3_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def build_tokenizer(out, total):
    """256 special ids first (only those named above have meaning), then byte-level BPE. NOT the official vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, Regex, AddedToken
    src = json.loads(C.byte_bpe(600, LLAMA3_REGEX, nfc=False).to_str())["model"]
    toks = sorted(src["vocab"], key=src["vocab"].get)
    specials = [NAMED.get(i, f"<|reserved_{i}|>") for i in range(256)]
    vocab = {t: i for i, t in enumerate(specials + toks)}
    while len(vocab) < total and total > 4096:
        vocab[f"\u0120\u0120filler\u0120{len(vocab)}"] = len(vocab)
    tk = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in src["merges"]]))
    tk.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_REGEX), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tk.decoder = decoders.ByteLevel()
    tk.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    f = PreTrainedTokenizerFast(tokenizer_object=tk, bos_token="<|startoftext|>", eos_token="<|im_end|>", pad_token="<|pad|>")
    f.save_pretrained(out)
    assert f.convert_tokens_to_ids("<|text_end|>") == 130 and f.convert_tokens_to_ids("<|audio_start|>") == 128
    return len(vocab)


def configs(size):
    real = size == "real"
    hid = 2048 if real else 48
    nl = 16 if real else 4
    lfm = dict(architectures=["Lfm2ForCausalLM"], block_auto_adjust_ff_dim=True, block_dim=hid,
               block_ff_dim=12288 if real else 150, block_ffn_dim_multiplier=1.0, block_mlp_init_scale=1.0,
               block_multiple_of=256 if real else 32, block_norm_eps=1e-5, block_out_init_scale=1.0,
               block_use_swiglu=True, block_use_xavier_init=True, bos_token_id=1, conv_L_cache=3, conv_bias=False,
               conv_dim=hid, conv_dim_out=hid, conv_use_xavier_init=True, eos_token_id=7, hidden_size=hid,
               initializer_range=0.02, max_position_embeddings=128000, model_type="lfm2", norm_eps=1e-5,
               num_attention_heads=32 if real else 4, num_heads=32 if real else 4, num_hidden_layers=nl,
               num_key_value_heads=8 if real else 2, pad_token_id=0, rope_theta=1000000.0, use_cache=True,
               use_pos_enc=True, vocab_size=65536 if real else 1024,
               full_attn_idxs=[2, 5, 8, 10, 12, 14] if real else [1, 3])
    enc = dict(feat_in=128, feat_out=-1, n_layers=17 if real else 2, d_model=512 if real else 48,
               subsampling="dw_striding", subsampling_factor=8, subsampling_conv_channels=256 if real else 12,
               causal_downsampling=False, reduction=None, reduction_position=None, reduction_factor=1,
               ff_expansion_factor=4, self_attention_model="rel_pos", n_heads=8 if real else 4,
               att_context_size=[-1, -1], xscaling=False, untie_biases=True, pos_emb_max_len=5000, conv_kernel_size=9,
               conv_norm_type="batch_norm", conv_context_size=None, dropout=0.1, dropout_pre_encoder=0.1,
               dropout_emb=0.0, dropout_att=0.1)
    pre = dict(sample_rate=16000, normalize="per_feature", window_size=0.025, window_stride=0.01, window="hann",
               features=128, n_fft=512, log=True, frame_splicing=1, dither=1e-5, pad_to=0, pad_value=0.0)
    main = dict(architectures=["Lfm2AudioForConditionalGeneration"], codebooks=8, tie_audio_embeddings=False,
                semantic_codebook_factor=100, codebook_weight="log", interleaved_n_text=6 if real else 3,
                interleaved_n_audio=12 if real else 4, preprocessor=pre, encoder=enc, lfm=lfm,
                depthformer=dict(layers=6 if real else 2, dim=1024 if real else 128, tie=True))
    det_h = 512 if real else 48
    det = dict(architectures=["Lfm2Model"], model_type="lfm2", hidden_size=det_h, num_hidden_layers=8 if real else 4,
               num_attention_heads=16 if real else 4, num_key_value_heads=8 if real else 2,
               intermediate_size=3328 if real else 192, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0,
               block_multiple_of=256 if real else 32, conv_L_cache=3, conv_bias=False, norm_eps=1e-5,
               rope_theta=1000000.0, max_position_embeddings=128000, vocab_size=65536 if real else 64, sliding_window=30,
               layer_types=(["conv", "conv", "sliding_attention", "conv", "sliding_attention", "conv", "sliding_attention", "conv"]
                            if real else ["conv", "sliding_attention", "conv", "sliding_attention"]))
    mimi = None if real else dict(seanet=dict(n_filters=4, dimension=32),
                                  quant=dict(dimension=8, n_q=10, input_dimension=32, output_dimension=32),
                                  tr=dict(d_model=32, num_heads=4, num_layers=2, context=16, dim_feedforward=64,
                                          input_dimension=32, output_dimensions=[32]))
    return main, det, mimi


class Detok(LFM2AudioDetokenizer):
    """Official class with the hard-coded 512 replaced by the backbone width (forward is inherited unchanged)."""
    def __init__(self, cfg):
        nn.Module.__init__(self)
        self.emb = FusedEmbedding(cfg.hidden_size)
        self.lfm = Lfm2Model(cfg)
        self.lin = nn.Linear(cfg.hidden_size, 1282)
        self.istft = ISTFT(1280, 320, 1280, padding="same")
        self.sliding_window_size = getattr(cfg, "sliding_window", 30)


def load_detok(d):
    cfg = Lfm2Config.from_pretrained(d / "config.json")
    cfg.layer_types = [{"sliding_attention": "full_attention"}.get(t, t) for t in cfg.layer_types]
    m = Detok(cfg).eval()
    m.load_state_dict(load_file(str(d / "model.safetensors")))
    return m


def set_mimi(over):
    if over:
        loaders._seanet_kwargs.update(over["seanet"])
        loaders._quantizer_kwargs.update(over["quant"])
        loaders._transformer_kwargs.update(over["tr"])


def init_main(model, seed):
    def ov(name, p, owner):
        leaf = name.rsplit(".", 1)[-1]
        if name.endswith(("codebook_offsets", "audio_loss_weights")):
            return p.clone()
        if "embed_tokens" in name:
            return C.randn(seed, name, p.shape, 0.3)
        if ".audio_embedding.embedding." in "." + name:
            return C.randn(seed, name, p.shape, 0.25)
        if "depth_embeddings" in name and p.dim() == 2:
            n = name.replace("to_logits", "embedding")
            return C.randn(seed, n, p.shape, 0.35)
        if "pos_bias" in name:
            return C.randn(seed, name, p.shape, 0.5)
        return None
    C.fill(model, seed, override=ov)


def main_state(model, seed):
    sd = {k: v for k, v in model.state_dict().items()}
    out = {}
    for k, v in sorted(sd.items()):
        if k.startswith("depth_embeddings") and k.endswith("to_logits.weight") and seed % 2 == 0:
            continue
        out[k] = (v.to(torch.bfloat16) if torch.is_floating_point(v) else v).clone().contiguous()
    return out


def mimi_state(m):
    """Key names as in Kyutai's published file: fused in_proj_weight / out_proj.weight."""
    return {k.replace(".in_projs.0.weight", ".in_proj_weight").replace(".out_projs.0.weight", ".out_proj.weight"): v.clone().contiguous()
            for k, v in sorted(m.state_dict().items())}


def init_mimi(m, seed):
    def ov(name, p, owner):
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "cluster_usage":
            return C.rand(seed, name, p.shape, 0.5, 3.0)
        if leaf == "_initialized":
            return torch.ones_like(p)
        if leaf == "embedding_sum":
            u = C.rand(seed, name.replace("embedding_sum", "cluster_usage"), (p.shape[0],), 0.5, 3.0)
            return C.randn(seed, name, p.shape, 0.7 * 0.9 ** int(name.split(".layers.")[1].split(".")[0])) * u[:, None]
        if leaf == "scale":
            return C.randn(seed, name, p.shape, 0.1, 0.4)
        if name.endswith("/decoder.model.14.conv.conv.weight"):
            return C.randn(seed, name, p.shape, 0.3 / p[0].numel() ** 0.5)
        return None
    C.fill(m, seed, prefix="mimi/", override=ov)


def make_checkpoint(seed, size, out):
    out.mkdir(parents=True, exist_ok=True)
    main, det, mimi = configs(size)
    n = build_tokenizer(out, main["lfm"]["vocab_size"])
    assert n <= main["lfm"]["vocab_size"]
    conf = LFM2AudioConfig(**{**main, "lfm": Lfm2Config(**main["lfm"]), "encoder": ConformerEncoderConfig(**main["encoder"]),
                              "depthformer": DepthformerConfig(**main["depthformer"])})
    model = LFM2AudioModel(conf).eval()
    init_main(model, seed)
    C.round_bf16_(model)
    (out / "config.json").write_text(json.dumps(main, indent=2) + "\n")
    save_file(main_state(model, seed), str(out / "model.safetensors"), metadata={"format": "pt"})
    del model
    set_mimi(mimi)
    m = loaders.get_mimi(None, device="cpu")
    init_mimi(m, seed)
    save_file(mimi_state(m), str(out / MIMI_NAME))
    del m
    dd = out / "audio_detokenizer"
    dd.mkdir(exist_ok=True)
    (dd / "config.json").write_text(json.dumps(det, indent=2) + "\n")
    dc = Lfm2Config(**{**det, "layer_types": [{"sliding_attention": "full_attention"}.get(t, t) for t in det["layer_types"]]})
    dt = Detok(dc).eval()

    def ov(name, p, owner):
        if name.endswith("window"):
            return p.clone()
        if name.endswith("lin.weight"):
            return C.randn(seed, name, p.shape, 1.0 / p.shape[1] ** 0.5)
        if name.endswith("lin.bias"):   # first half = log-magnitude, keep it small
            b = C.randn(seed, name, p.shape, 0.3); b[:641] -= 1.0
            return b
        return None
    C.fill(dt, seed, prefix="detok/", override=ov)
    C.round_bf16_(dt)
    dt.istft.window.copy_(torch.hann_window(1280))
    sd = {k: (v.to(torch.bfloat16) if k != "istft.window" else v).clone().contiguous() for k, v in sorted(dt.state_dict().items())}
    save_file(sd, str(dd / "model.safetensors"), metadata={"format": "pt"})


# ------------------------------------------------------------------------------------------------ runs
class Run:
    def __init__(self, model):
        self.m = model

    def go(self, mode, chat, n, **kw):
        m = self.m
        tap = C.Tap()
        tap.inp(m.lfm, "lfm.in", lambda a, k: k["inputs_embeds"])
        for i, l in enumerate(m.lfm.layers):
            tap.out(l, f"lfm.layer{i}", C.first)
        tap.out(m.lfm, "lfm.out", lambda o: o.last_hidden_state)
        tap.out(m.conformer.pre_encode, "enc.pre_encode", C.first)
        for i, l in enumerate(m.conformer.layers):
            tap.out(l, f"enc.layer{i}")
        tap.out(m.conformer, "enc.out", C.first)
        tap.out(m.conformer, "enc.len", lambda o: o[1])
        tap.out(m.audio_adapter, "adapter")
        tap.out(m.depth_linear, "depth_linear")
        dl = []
        origs = [e.get_logits for e in m.depth_embeddings]
        gs = []
        for i, e in enumerate(m.depth_embeddings):
            def f(x, e=e, i=i, o=origs[i]):
                r = o(x)
                dl.append(C.c(r)); gs.append(C.c(e.embedding_norm(x)))
                return r
            e.get_logits = f
        text_logits = []
        ost = m._sample_text_token

        def st(logits, **k):
            text_logits.append(C.c(logits))
            return ost(logits, **k)
        m._sample_text_token = st
        toks = list(getattr(m, "generate_" + mode)(**chat, max_new_tokens=n, **kw))
        for e, o in zip(m.depth_embeddings, origs):
            e.get_logits = o
        m._sample_text_token = ost
        tap.close()
        return toks, tap.store, text_logits, dl, gs


def pack(chat, toks, s, tl, dl, frames_logits=4, layers=True):
    o = {"in.text": chat.text, "in.audio_in": chat.audio_in.float(), "in.audio_in_lens": chat.audio_in_lens,
         "in.audio_out": chat.audio_out, "in.modality_flag": chat.modality_flag}
    text = [t for t in toks if t.numel() == 1]
    aud = [t for t in toks if t.numel() > 1]
    o["out.text"] = torch.cat(text) if text else torch.zeros(0, dtype=torch.long)
    o["out.audio"] = torch.stack(aud, 1) if aud else torch.zeros((8, 0), dtype=torch.long)
    o["out.modality"] = torch.tensor([1 if t.numel() == 1 else 3 for t in toks])
    o["prefill.in_emb"] = s["lfm.in"][0]
    if layers:
        for k in [k for k in s if k.startswith("lfm.layer")]:
            o["prefill." + k[4:]] = s[k][0]
    o["prefill.out"] = s["lfm.out"][0]
    o["steps.in_emb"] = torch.cat(s["lfm.in"][1:], 1) if len(s["lfm.in"]) > 1 else torch.zeros(0)
    o["steps.out"] = torch.cat([x[:, -1:] for x in s["lfm.out"]], 1)
    o["text_logits"] = torch.stack(tl)
    if dl:
        nf = len(dl) // 8
        o["depth_logits"] = torch.stack(dl[: 8 * min(nf, frames_logits)]).reshape(-1, 8, dl[0].shape[-1])
        o["depth_linear"] = torch.stack(s["depth_linear"][:min(nf, frames_logits)])
    if layers:
        for k in [k for k in s if k.startswith(("enc.", "adapter"))]:
            if s[k][0].numel():
                o[k] = s[k][0]
    m = dict(tokens=len(toks), text_tokens=len(text), audio_frames=len(aud),
             min_margin_text=float(min(C.top2_margin(x) for x in tl)) if tl else None,
             min_margin_audio=float(min(C.top2_margin(x) for x in dl)) if dl else None)
    return o, m


def chat_for(proc, kind, w1=None, w2=None):
    ch = ChatState(proc, dtype=torch.float32)
    ch.new_turn("system")
    if kind == "asr":
        ch.add_text("Perform ASR."); ch.end_turn(); ch.new_turn("user"); ch.add_audio(w1[None], 16000)
    elif kind == "asr24":
        ch.add_text("Perform ASR."); ch.end_turn(); ch.new_turn("user"); ch.add_audio(w1[None], 24000)
    elif kind == "tts":
        ch.add_text("Perform TTS. Use the UK male voice."); ch.end_turn(); ch.new_turn("user"); ch.add_text("Hello world, this is a test.")
    else:
        ch.add_text("Respond with interleaved text and audio."); ch.end_turn(); ch.new_turn("user"); ch.add_audio(w1[None], 16000)
    ch.end_turn(); ch.new_turn("assistant")
    return ch


def min_norm_row(vs, targets):
    G = torch.stack(vs)
    return (G.T @ torch.linalg.solve(G @ G.T, torch.tensor(targets))).to(torch.bfloat16).float()


def engineer(seed, out, proc, w1):
    """Give the random model meaningful control flow: <|im_end|>, <|audio_start|>, <|text_end|> and EOAudio do fire."""
    model = LFM2AudioModel.from_pretrained(out, dtype=torch.float32, device="cpu").eval()
    R = Run(model)
    E = model.lfm.embed_tokens.weight.data
    done = {}
    # 1. <|im_end|> (row 7 also appears in prompts): random search until ASR stops by itself
    for a in range(200):
        E[7] = C.randn(seed, f"row7/{a}", (E.shape[1],), 0.3 * (1.3 + 0.01 * a)).to(torch.bfloat16).float()
        toks, *_ = R.go("sequential", chat_for(proc, "asr", w1), 20)
        ids = [int(t[0]) for t in toks]
        if 5 <= len(ids) <= 18 and ids[-1] == 7 and 128 not in ids:
            done["asr_len"] = len(ids); break
    # 2. audio_embedding rows of code 2048: push towards <|im_end|> so that text after EOAudio ends the turn
    AE = model.audio_embedding.embedding.weight.data
    for k in range(8):
        AE[k * 2049 + 2048] = (E[7] / E[7].norm() * 3.0 + C.randn(seed, f"ae{k}", (E.shape[1],), 0.05)).to(torch.bfloat16).float()
    # 3. <|audio_start|> on the first step of the TTS prompt; <|text_end|> at text token 5 of the chat
    chat = chat_for(proc, "chat", w1)
    tts = chat_for(proc, "tts")
    toks, s, tl, *_ = R.go("sequential", tts, 1)
    h_tts = s["lfm.out"][0][0, -1]
    toks_c, s_c, tl_c, *_ = R.go("interleaved", chat, 24)
    mods = [t.numel() == 1 for t in toks_c]
    hs = [x[0, -1] for x in s_c["lfm.out"]][: len(toks_c)]
    th = [h for h, m in zip(hs, mods) if m]
    E[128] = min_norm_row([h_tts] + th[:5], [float(tl[0].max()) + 3.0] + [-3.0] * len(th[:5]))
    E[130] = min_norm_row([th[4]] + th[:4] + [h_tts], [float(tl_c[4].max()) + 3.0] + [-3.0] * 4 + [-3.0])
    # 4. EOAudio: codebook-0 row 2048 fires at TTS frame 6 and at the 3rd audio frame after <|text_end|> in the chat
    W = model.depth_embeddings[0].embedding.weight.data
    W[2048] = 0; W[2048, 0] = -1.0
    toks, s, tl, dl, gs = R.go("sequential", tts, 16)
    g_t = gs[0::8]; l_t = dl[0::8]
    toks_c, s_c, tl_c, dl_c, gs_c = R.go("interleaved", chat, 40)
    te = [i for i, t in enumerate(toks_c) if t.numel() == 1 and int(t[0]) == 130]
    na = sum(1 for t in toks_c[: te[0]] if t.numel() > 1)
    g_c = gs_c[0::8]; l_c = dl_c[0::8]
    j = na + 2
    vs = [g_t[6], g_c[j]] + g_t[:6] + g_c[:j]
    tg = [float(l_t[6].max()) + 4.0, float(l_c[j].max()) + 4.0] + [-2.0] * (6 + j)
    W[2048] = min_norm_row(vs, tg)
    done.update(text_end_at=te[0], audio_before=na)
    save_file(main_state(model, seed), str(out / "model.safetensors"), metadata={"format": "pt"})
    return done


def gen_tiny(seed, out):
    C.setup(1)
    make_checkpoint(seed, "tiny", out)
    gold = out / "goldens"
    proc = LFM2AudioProcessor.from_pretrained(out, device="cpu").eval()
    w1 = C.synth_wave(seed, "w1", 16000 + 4321, 16000)
    w2 = C.synth_wave(seed, "w2", 9000, 16000)
    w24 = C.synth_wave(seed, "w24", 24000 + 777, 24000)
    info = {"versions": C.versions("torch", "torchaudio", "transformers", "liquid-audio", "librosa", "accelerate", "safetensors"),
            "seed": seed, "cases": {}, "engineered": engineer(seed, out, proc, w1),
            "tied_head_stored": bool(seed % 2), "lfm_attn": "sdpa", "compute_dtype": "float32"}
    model = LFM2AudioModel.from_pretrained(out, dtype=torch.float32, device="cpu").eval()
    R = Run(model)
    (gold).mkdir(parents=True, exist_ok=True)
    (gold / "model.tensors.json").write_text(json.dumps({k: list(v.shape) for k, v in sorted(model.state_dict().items())}, indent=0) + "\n")

    def case(name, mode, chat, n, layers=True, **kw):
        toks, s, tl, dl, gs = R.go(mode, chat, n, **kw)
        o, m = pack(chat, toks, s, tl, dl, layers=layers)
        m["args"] = dict(mode=mode, max_new_tokens=n, **{k: v for k, v in kw.items()})
        C.dump(gold / f"{name}.safetensors", o, m)
        info["cases"][name] = {k: v for k, v in m.items() if k != "args"}
        info["cases"][name]["text"] = proc.text.decode(o["out.text"])
        return o, toks

    # mel front-end
    mel, ml = proc.audio(w1[None], torch.tensor([w1.numel()]))
    r = torchaudio.functional.resample(w24[None], 24000, 16000)
    mel24, ml24 = proc.audio(r, torch.tensor([r.shape[1]]))
    C.dump(gold / "mel.safetensors", {"w1": w1, "mel1": mel, "mel1_len": ml, "w2": w2, "w24": w24, "w24_resampled_16k": r[0],
                                      "mel24": mel24, "mel24_len": ml24, "filterbank": proc.audio.featurizer.fb[0],
                                      "window": proc.audio.featurizer.window},
           dict(note="mel has floor(n/160)+1 frames; mel_len = floor(n/160); the last frame is zeroed but ChatState.add_audio feeds all frames"))

    case("asr", "sequential", chat_for(proc, "asr", w1), 32)
    case("asr24", "sequential", chat_for(proc, "asr24", w24), 16, layers=False)
    o, _ = case("tts", "sequential", chat_for(proc, "tts"), 32)
    codes_tts = o["out.audio"]
    chat = chat_for(proc, "chat", w1)
    o, toks = case("chat1", "interleaved", chat, 48)
    # second turn: history holds generated text + audio, then a text turn and a second (shorter) audio clip
    mods = torch.tensor([LFMModality.TEXT if t.numel() == 1 else LFMModality.AUDIO_OUT for t in toks])
    chat.append(text=torch.stack([t for t in toks if t.numel() == 1], 1), audio_out=torch.stack([t for t in toks if t.numel() > 1], 1), modality_flag=mods)
    chat.end_turn(); chat.new_turn("user"); chat.add_text("Please speak slowly."); chat.add_audio(w2[None], 16000)
    chat.end_turn(); chat.new_turn("assistant")
    case("chat2", "interleaved", chat, 24)
    # sampled, injected uniforms
    u = C.rand(seed, "uniforms", (4096,)).double()
    it = iter(u.tolist())

    def mult(p, n):
        cdf = torch.cumsum(p.double(), 0); x = next(it) * float(cdf[-1])
        return (cdf > x).int().argmax()[None]
    orig = torch.multinomial
    torch.multinomial = mult
    try:
        o, toks = case("chat_sampled", "interleaved", chat_for(proc, "chat", w1), 30, layers=False, audio_temperature=1.0, audio_top_k=4, text_temperature=0.8, text_top_k=20)
    finally:
        torch.multinomial = orig
    C.dump(gold / "uniforms.safetensors", {"u": u[:400]}, dict(note="chat_sampled: every draw (text or codebook) = first index whose float64 CDF exceeds u*total, in call order"))
    # bf16 compute
    mb = LFM2AudioModel.from_pretrained(out, dtype=torch.bfloat16, device="cpu").eval()
    chb = chat_for(proc, "asr", w1); chb.dtype = torch.bfloat16; chb.audio_in = chb.audio_in.to(torch.bfloat16)
    toks, s, tl, dl, gs = Run(mb).go("sequential", chb, 32)
    C.dump(gold / "asr_bf16.safetensors", {"out.text": torch.cat(toks), "text_logits": torch.stack(tl), "prefill.out": s["lfm.out"][0], "adapter": s["adapter"][0]}, dict(note="bf16 compute on CPU, for tolerances"))

    # detokenizer
    dt = load_detok(out / "audio_detokenizer")
    codes = C.randint(seed, "detok", 0, 2048, (1, 8, 18))
    tap = C.Tap()
    tap.out(dt.emb, "emb")
    for i, l in enumerate(dt.lfm.layers):
        tap.out(l, f"layer{i}", C.first)
    tap.out(dt.lfm, "lfm", lambda o: o.last_hidden_state); tap.out(dt.lin, "lin")
    wav = dt(codes); tap.close()
    pre = dt(codes[..., :11])
    C.dump(gold / "detok.safetensors", {"codes": codes, "wav": wav, "wav_first11": pre, **{k: v[0] for k, v in tap.store.items()}},
           dict(sample_rate=24000, samples=int(wav.shape[1]), prefix_agree_samples=int((~torch.isclose(wav[0, :pre.shape[1]], pre[0], atol=1e-5)).int().argmax()) if not torch.allclose(wav[0, :pre.shape[1]], pre[0], atol=1e-5) else int(pre.shape[1]),
                note="the real model hard-codes width 512; here it is the config hidden_size"))
    if codes_tts.shape[1] > 1:
        C.dump(gold / "detok_tts.safetensors", {"codes": codes_tts[None, :, :-1], "wav": dt(codes_tts[None, :, :-1])}, dict(note="audio of case tts, last (EOAudio) frame dropped as in the README"))
    # Mimi
    mi = proc.mimi
    mi.eval()
    mw = C.synth_wave(seed, "mimi", 1920 * 12 + 500, 24000)
    enc = mi.encode(mw[None, None])
    tap = C.Tap()
    tap.out(mi.decoder_transformer, "dec.transformer", C.first); tap.out(mi.upsample, "dec.upsample"); tap.out(mi.decoder.model[0], "dec.conv0")
    y = mi.decode(codes); tap.close()
    ys = []
    with mi.streaming(1):
        for t in range(codes.shape[2]):
            ys.append(mi.decode(codes[:, :, t:t + 1]))
    ys = torch.cat(ys, -1)
    C.dump(gold / "mimi.safetensors", {"wave": mw, "encoded": enc, "codes": codes, "decoded": y, "decoded_streaming": ys,
                                       "dec.latent": mi.decode_latent(codes), **{k: v[0] for k, v in tap.store.items()}},
           dict(stream_max_abs_diff=float((y - ys).abs().max()), num_codebooks=mi.num_codebooks, note="context window is 16 frames at 25 Hz here (250 in the real codec); rotation is over adjacent pairs"))
    (gold / "tokenizer.json").write_text(json.dumps([dict(text=t, ids=proc.text.encode(t, add_special_tokens=False)) for t in [
        "<|startoftext|><|im_start|>system\nPerform ASR.<|im_end|>\n", "<|im_start|>user\nHello 12345 world<|im_end|>\n", "<|text_end|>", "你好 ça"]], indent=1, ensure_ascii=False) + "\n")
    (out / "INFO.json").write_text(json.dumps(info, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--size", choices=["tiny", "real"], default="tiny")
    ap.add_argument("--out", required=True, type=Path)
    a = ap.parse_args()
    shutil.rmtree(a.out, ignore_errors=True)
    if a.size == "tiny":
        gen_tiny(a.seed, a.out)
        print("total bytes", C.write_manifest(a.out))
    else:
        C.setup(2)
        make_checkpoint(a.seed, "real", a.out)
