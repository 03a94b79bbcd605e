#!/usr/bin/env python3
"""Golden generator for Qwen3-ASR and Qwen3-ForcedAligner.

  qwen3_asr.py --seed 1 --out DIR

Writes small random checkpoints in the official layout and what the official package (qwen-asr 0.0.6 on transformers 4.57.6; CPU,
float32, eager attention) makes of them: features, prompts, audio tower, text model, greedy answers, transcribe(), streaming, text
helpers and the aligner. Four things stand around the official code:
 * `windowed(tower)` hands each encoder layer the mask of the tower's own windows, which the package applies under FlashAttention-2
   only. Cases named *fullattn run as released, without it.
 * generate() gets the ids that end an answer in the small vocabulary; the package has those of the published one as constants.
 * `FakeVLLM` takes vLLM's place in the streaming functions, which know no other engine, and runs the official model behind it.
 * Rows of the tied embedding are set so that one case answers `language English<asr_text>...` and ends by itself.
"""
import argparse, copy, json, shutil, sys, types, warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import common as C
import numpy as np
import torch
from safetensors.torch import save_file
from transformers.utils import logging as hf_logging
hf_logging.set_verbosity_error()
warnings.filterwarnings("ignore")

import transformers
from transformers import Qwen2TokenizerFast, WhisperFeatureExtractor
from qwen_asr.inference import qwen3_asr as qa
from qwen_asr.inference import utils as qu
from qwen_asr.inference.qwen3_asr import Qwen3ASRModel
from qwen_asr.inference.qwen3_forced_aligner import Qwen3ForcedAligner, Qwen3ForceAlignProcessor
from qwen_asr.core.transformers_backend import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

SR = 16000
SPECIAL = (["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
            "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
            "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
            "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>",
            "</tool_response>", "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>",
            "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<non_speech>", "<|audio_pad|>"]
           + [f"<blank{i}>" for i in range(1, 28)] + ["<asr_text>", "<timestamp>"])
# SPECIAL[i] has id base+i; the real vocabulary has base 151643: audio_start 151669, audio_end 151670, audio_pad 151676,
# asr_text 151704, timestamp 151705 (aligner only).
IX = {t: i for i, t in enumerate(SPECIAL)}
EXTRA = ["language English language Chinese language Japanese language German language None language Cantonese " * 4,
         "system user assistant language English. language Chinese. Hotwords: Izwi, Qwen, forced aligner; "] * 3

# Written from the meaning of the published template (its text was quoted by third parties; the repository could not be reached):
# all system text concatenated into one system message that is always present, one audio marker per audio part, nothing else.
CHAT = ("{%- set s = namespace(t='', a='') -%}"
        "{%- for m in messages -%}{%- if m.content is string -%}{%- if m.role == 'system' -%}{%- set s.t = s.t + m.content -%}{%- endif -%}"
        "{%- else -%}{%- for c in m.content -%}"
        "{%- if c.type == 'audio' or 'audio' in c or 'audio_url' in c -%}{%- set s.a = s.a + '<|audio_start|><|audio_pad|><|audio_end|>' -%}"
        "{%- elif m.role == 'system' and c.type == 'text' -%}{%- set s.t = s.t + c.text -%}{%- endif -%}"
        "{%- endfor -%}{%- endif -%}{%- endfor -%}"
        "{{- '<|im_start|>system\\n' + s.t + '<|im_end|>\\n<|im_start|>user\\n' + s.a + '<|im_end|>\\n' -}}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}")


# ----------------------------------------------------------------------------- tokenizer, configs
def build_tokenizer(out, timestamp):
    sp = SPECIAL if timestamp else SPECIAL[:-1]
    keep, C.CORPUS = C.CORPUS, C.CORPUS + EXTRA
    tk = C.byte_bpe(560)
    C.CORPUS = keep
    vocab = tk.get_vocab()
    inv = sorted(vocab, key=vocab.get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in json.loads(tk.to_str())["model"]["merges"]]
    base = len(inv)
    out.mkdir(parents=True, exist_ok=True)
    (out / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(inv)}, ensure_ascii=False))
    (out / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    extra = dict(audio_bos_token="<|audio_start|>", audio_eos_token="<|audio_end|>", audio_token="<|audio_pad|>",
                 image_token="<|image_pad|>", video_token="<|video_pad|>", vision_bos_token="<|vision_start|>", vision_eos_token="<|vision_end|>")
    cfg = dict(add_bos_token=False, add_prefix_space=False,
               added_tokens_decoder={str(base + i): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False,
                                                         special=t.startswith("<|")) for i, t in enumerate(sp)},
               additional_special_tokens=[t for t in sp[1:] if t.startswith("<|")], **extra, extra_special_tokens=extra, bos_token=None,
               clean_up_tokenization_spaces=False, eos_token="<|im_end|>", errors="replace", model_max_length=131072,
               pad_token="<|endoftext|>", split_special_tokens=False, tokenizer_class="Qwen2Tokenizer", unk_token=None)
    (out / "tokenizer_config.json").write_text(json.dumps(cfg, indent=1, ensure_ascii=False) + "\n")
    (out / "chat_template.json").write_text(json.dumps({"chat_template": CHAT}, indent=1) + "\n")
    fe = WhisperFeatureExtractor(feature_size=128, sampling_rate=SR, hop_length=160, chunk_length=30, n_fft=400, padding_value=0.0,
                                 dither=0.0, return_attention_mask=True)
    d = {k: v for k, v in fe.to_dict().items() if k != "mel_filters"}
    d.update(feature_extractor_type="WhisperFeatureExtractor", processor_class="Qwen3ASRProcessor", padding_side="right")
    (out / "preprocessor_config.json").write_text(json.dumps(d, indent=1, sort_keys=True) + "\n")
    return base


KINDS = {  # d_model, heads, layers, ffn, conv channels, n_window_infer, hidden, intermediate, text layers
    "asr06": (48, 4, 2, 96, 8, 200, 64, 112, 3),
    "asr17": (64, 4, 3, 128, 12, 800, 96, 160, 2),
    "aligner": (64, 4, 2, 112, 8, 400, 64, 112, 3)}


def config(kind, base):
    d, h, L, f, c, nwi, hid, inter, tl = KINDS[kind]
    al = kind == "aligner"
    vocab = ((base + len(SPECIAL) + 15) // 16) * 16 + (128 if al else 0)
    th = dict(model_type="qwen3_forced_aligner" if al else "qwen3_asr",
              audio_config=dict(model_type="qwen3_asr_audio_encoder", activation_dropout=0, activation_function="gelu", attention_dropout=0,
                                conv_chunksize=500, d_model=d, downsample_hidden_size=c, dropout=0, encoder_attention_heads=h,
                                encoder_ffn_dim=f, encoder_layers=L, num_hidden_layers=L, initializer_range=0.02, max_source_positions=1500,
                                n_window=50, n_window_infer=nwi, num_mel_bins=128, output_dim=hid, scale_embedding=False),
              text_config=dict(model_type="qwen3", attention_bias=False, attention_dropout=0.0, head_dim=32, hidden_act="silu", hidden_size=hid,
                               initializer_range=0.02, intermediate_size=inter, max_position_embeddings=65536, num_attention_heads=4,
                               num_hidden_layers=tl, num_key_value_heads=2, rms_norm_eps=1e-6,
                               rope_scaling=dict(interleaved=True, mrope_section=[6, 5, 5], rope_type="default", type="default"),
                               rope_theta=1000000, tie_word_embeddings=not al, use_cache=True, vocab_size=vocab),
              audio_token_id=base + IX["<|audio_pad|>"], audio_start_token_id=base + IX["<|audio_start|>"],
              audio_end_token_id=base + IX["<|audio_end|>"], user_token_id=872, dtype="bfloat16", initializer_range=0.02)
    top = dict(architectures=["Qwen3ASRForConditionalGeneration"], model_type="qwen3_asr", thinker_config=th,
               support_languages=list(qu.SUPPORTED_LANGUAGES), transformers_version="4.57.1")
    if al:
        th["classify_num"] = 400
        top.update(timestamp_token_id=base + IX["<timestamp>"], timestamp_segment_time=80,
                   support_languages=["Chinese", "English", "Cantonese", "French", "German", "Italian", "Japanese", "Korean", "Portuguese", "Russian", "Spanish"])
    return top


def eos_ids(base):
    return [base + IX["<|im_end|>"], base + IX["<|endoftext|>"]]


# ----------------------------------------------------------------------------- checkpoints
def init(model, seed, kind):
    def ov(name, p, owner):
        if "embed_tokens" in name:
            return C.randn(seed, name, p.shape, 0.3)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return C.randn(seed, name, p.shape, 0.2, 2.5)                   # attention that is not flat
        if ".gate_proj." in name:
            return C.randn(seed, name, p.shape, 2.0 / p.shape[1] ** 0.5)
        if name.endswith("lm_head.weight"):
            return C.randn(seed, name, p.shape, 2.5 / p.shape[1] ** 0.5)
        if any(s in name for s in (".o_proj.", ".down_proj.", ".out_proj.", ".fc2.")) and p.dim() == 2:
            return C.randn(seed, name, p.shape, (2.0 if ".model." in name else 1.6) / p.shape[1] ** 0.5)
        if any(s in name for s in (".q_proj.weight", ".k_proj.weight")) and "audio_tower" in name:
            return C.randn(seed, name, p.shape, 1.7 / p.shape[1] ** 0.5)
        if ".conv2d" in name and p.dim() == 4:
            return C.randn(seed, name, p.shape, 1.6 / p[0].numel() ** 0.5)
        return None
    C.fill(model, seed, prefix=kind + "/", override=ov)


def tensors_of(model, kind):
    sd = {k: v for k, v in model.state_dict().items() if "positional_embedding" not in k and "inv_freq" not in k}
    if kind == "asr17":
        sd.pop("thinker.lm_head.weight")         # tied: this set stores one name only
    return {k: v.to(torch.bfloat16).contiguous().clone() for k, v in sorted(sd.items())}


def save(d, model, cfg, kind, base):
    sd = tensors_of(model, kind)
    if kind == "asr17":                           # sharded, as the published 1.7B
        names = list(sd)
        half = len(names) // 2
        wm = {}
        for i, part in enumerate((names[:half], names[half:]), 1):
            fn = f"model-{i:05d}-of-00002.safetensors"
            save_file({n: sd[n] for n in part}, str(d / fn), metadata={"format": "pt"})
            wm.update({n: fn for n in part})
        (d / "model.safetensors.index.json").write_text(json.dumps(
            {"metadata": {"total_size": sum(2 * t.numel() for t in sd.values())}, "weight_map": wm}, indent=1, sort_keys=True) + "\n")
    else:
        save_file(sd, str(d / "model.safetensors"), metadata={"format": "pt"})
    (d / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    (d / "generation_config.json").write_text(json.dumps(dict(do_sample=False, eos_token_id=[eos_ids(base)[1], eos_ids(base)[0]],
                                                              pad_token_id=base + 2), indent=2) + "\n")


def windowed(tower):
    def pre(m, a, kw):
        h, cu = (a[0] if a else kw["hidden_states"]), (a[1] if len(a) > 1 else kw["cu_seqlens"])
        kw["attention_mask"] = tower._prepare_attention_mask(h, cu)
        return a, kw
    return [l.register_forward_pre_hook(pre, with_kwargs=True) for l in tower.layers]


def load(d, base, window=True, dtype=torch.float32, **kw):
    m = Qwen3ASRModel.from_pretrained(str(d), dtype=dtype, attn_implementation="eager", max_new_tokens=kw.pop("max_new_tokens", 20), **kw)
    m.hooks = windowed(m.model.thinker.audio_tower) if window else []
    orig = m.model.generate
    m.last = []

    def gen(**k):
        r = orig(**{**k, "eos_token_id": eos_ids(base)})
        m.last.append((k, r))
        return r
    m.model.generate = gen
    return m


# ----------------------------------------------------------------------------- running a case
class Tapper(C.Tap):
    def __init__(self, thinker):
        super().__init__()
        at, tm = thinker.audio_tower, thinker.model
        self.nl, self.na = len(tm.layers), len(at.layers)
        self.inp(at, "a.mel", lambda a, kw: a[0] if a else kw["input_features"])
        self.inp(at.layers[0], "a.conv", lambda a, kw: a[0])
        self.inp(at.layers[0], "a.cu", lambda a, kw: a[1])
        for i, l in enumerate(at.layers):
            self.out(l, f"a.layer{i}", C.first)
        self.out(at.ln_post, "a.ln_post")
        self.out(at, "a.out", lambda o: o.last_hidden_state)
        self.inp(tm, "t.in", lambda a, kw: kw.get("inputs_embeds"))
        self.inp(tm, "t.pos", lambda a, kw: kw.get("position_ids"))
        for i, l in enumerate(tm.layers):
            self.out(l, f"t.layer{i}", C.first)
        self.out(tm.norm, "t.norm")
        self.out(thinker.lm_head, "t.logits")


def pack(s, rows, layers=True, audio_rows=1):
    """One generate() call: first forward = prefill, the rest = single-token steps."""
    o = {"prefill.position_ids": s["t.pos"][0][0].long(), "prefill.inputs_embeds": s["t.in"][0], "prefill.norm": s["t.norm"][0]}
    if layers:
        for i in range(sum(k.startswith("t.layer") for k in s)):
            o[f"prefill.layer{i}"] = s[f"t.layer{i}"][0]
    o["logits"] = torch.stack([x[:, -1].float() for x in s["t.logits"]], 1)        # [B, steps, V]
    if len(s["t.in"]) > 1:
        o["steps.norm"] = torch.cat(s["t.norm"][1:], 1)
        o["steps.position_ids"] = torch.cat([p[0].long() for p in s["t.pos"][1:]], -1)
    for b in range(audio_rows):
        o[f"audio{b}.out"] = s["a.out"][b]
        o[f"audio{b}.cu_seqlens"] = s["a.cu"][b].long()
    return o


def run_case(m, fn, layers=True):
    tap = Tapper(m.model.thinker)
    m.last.clear()
    res = fn()
    tap.close()
    (k, r), = m.last
    B = k["input_ids"].shape[0]
    o = pack(tap.store, B, layers, B)
    o.update(input_ids=k["input_ids"], attention_mask=k["attention_mask"], sequences=r.sequences[:, k["input_ids"].shape[1]:],
             mel=k["input_features"].float(), mel_mask=k["feature_attention_mask"])
    raws = m.processor.batch_decode(o["sequences"], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    lg = o["logits"]
    meta = dict(raw=raws, min_margin=float(C.top2_margin(lg).min()), prompt_len=int(k["input_ids"].shape[1]), audio_tokens=[int(o[f"audio{b}.out"].shape[0]) for b in range(B)],
                result=[dict(language=x.language, text=x.text) for x in res])
    return o, meta, tap.store


class FakeVLLM:
    def __init__(self, m, max_tokens):
        self.m, self.max_tokens, self.log = m, max_tokens, []

    def generate(self, inputs, sampling_params=None, use_tqdm=False):
        (inp,) = inputs
        p = self.m.processor
        wav = inp["multi_modal_data"]["audio"][0]
        x = p(text=[inp["prompt"]], audio=[wav], return_tensors="pt", padding=True)
        r = self.m.model.generate(**x, max_new_tokens=self.max_tokens)
        ids = r.sequences[0, x["input_ids"].shape[1]:]
        txt = p.tokenizer.decode(ids, skip_special_tokens=True)
        self.log.append(dict(prompt=inp["prompt"], prompt_ids=x["input_ids"][0].tolist(), samples=int(len(wav)), generated_ids=ids.tolist(), generated_text=txt))
        o = types.SimpleNamespace(text=txt)
        return [types.SimpleNamespace(outputs=[o])]


# ----------------------------------------------------------------------------- engineering of a believable answer
def engineer(d, base, cfg, model_factory, wav, context, stop_after):
    """Rows of the (tied) embedding are aligned with hidden states so that the `auto` case answers
    `language English<asr_text>` + free tokens and stops on <|endoftext|> (which occurs in no prompt)."""
    m = model_factory()
    tk = m.processor.tokenizer
    E = m.model.thinker.model.embed_tokens.weight.data
    H = m.model.thinker.lm_head.weight.data
    assert E.data_ptr() == H.data_ptr(), "tied"
    head = tk.encode("language English<asr_text>")
    x = m.processor(text=[m._build_text_prompt(context, None)], audio=[wav], return_tensors="pt", padding=True)

    def hidden(extra, only_last=True):
        ids = torch.cat([x["input_ids"], torch.tensor([extra], dtype=torch.long)], 1)
        tap = C.Tap(); tap.out(m.model.thinker.model.norm, "n")
        m.model.thinker.rope_deltas = None
        m.model.thinker(input_ids=ids, attention_mask=torch.ones_like(ids), input_features=x["input_features"], feature_attention_mask=x["feature_attention_mask"])
        tap.close()
        n = tap.store["n"][0][0]
        return n[-1] if only_last else n

    done = []
    for t in head:
        h = hidden(done)
        a = (float((E @ h).max()) * 1.05 + 2.5) / float(h @ h)
        E[t] = (a * h).to(torch.bfloat16).float()
        done.append(t)
    eos = base + IX["<|endoftext|>"]
    ban = eos_ids(base)
    seq, hs = list(done), []
    for _ in range(stop_after):
        h = hidden(seq); lg = E @ h
        lg[ban] = -1e9
        hs.append((h, float(lg.max())))
        seq.append(int(lg.argmax()))
    stop = None
    for t in range(stop_after - 1, 3, -1):
        h, mx = hs[t]
        a = (mx * 1.05 + 1.5) / float(h @ h)
        row = (a * h).to(torch.bfloat16).float()
        if all(float(row @ hh) < mm - 0.3 for hh, mm in hs[:t]):
            E[eos] = row
            stop = t + len(head)
            break
    mm = m.model
    save(d, mm, cfg, next(k for k in KINDS if d.name == k), base)
    return stop, head


# ----------------------------------------------------------------------------- goldens
def g_mel(seed, gold, fe, wav):
    o, meta = {}, {}
    def one(name, x, **kw):
        r = fe([x] if not isinstance(x, list) else x, sampling_rate=SR, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt")
        o[f"{name}.mel"] = r["input_features"]; o[f"{name}.mask"] = r["attention_mask"]
    o["filters"] = torch.from_numpy(fe.mel_filters).float()       # [201,128]
    o["wav"] = wav[:16077]
    one("n16077", wav[:16077].numpy())
    one("n8000", wav[:8000].numpy())
    one("n201", wav[:201].numpy())
    one("silence4000", np.zeros(4000, np.float32))
    imp = np.zeros(3200, np.float32); imp[1000] = 1.0
    one("impulse3200", imp)
    one("batch_12000_4777", [wav[:12000].numpy(), wav[:4777].numpy()])
    C.dump(gold / "mel.safetensors", o, dict(note="inputs are prefixes of `wav` (n<samples>), zeros, or a unit impulse at sample 1000; batch = the two prefixes padded together with zeros: "
           "the shorter row has ceil(n/160) valid frames instead of floor(n/160), and its last frames see zeros instead of the reflected signal", frames={k: list(v.shape) for k, v in o.items()}))


def g_tower(seed, gold, kind, m, wav, lens):
    t = m.model.thinker.audio_tower
    fe = m.processor.feature_extractor
    o, meta = {"wav": wav[: 160 * max(lens)]}, {}
    for T in lens:
        x = fe([wav[: 160 * T].numpy()], sampling_rate=SR, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt")
        mel = x["input_features"][0]
        fl = torch.tensor([mel.shape[1]])
        for win in (True, False):
            for h in m.hooks:
                h.remove()
            m.hooks = windowed(t) if win else []
            tap = Tapper(m.model.thinker)
            out = t(mel, feature_lens=fl).last_hidden_state
            tap.close()
            s = tap.store
            if win:
                o[f"T{T}.mel"] = mel; o[f"T{T}.conv_pos"] = s["a.conv"][0]; o[f"T{T}.layer0"] = s["a.layer0"][0]; o[f"T{T}.ln_post"] = s["a.ln_post"][0]; o[f"T{T}.out"] = out
                o[f"T{T}.cu_seqlens"] = s["a.cu"][0].long()
                meta[str(T)] = dict(tokens=int(out.shape[0]), cu_seqlens=s["a.cu"][0].tolist())
            elif len(s["a.cu"][0]) > 2:
                o[f"T{T}.out_fullattn"] = out
                meta[str(T)]["max_abs_diff_fullattn"] = float((out - o[f"T{T}.out"]).abs().max())
    for h in m.hooks:
        h.remove()
    m.hooks = windowed(t)
    C.dump(gold / f"{kind}.tower.safetensors", o, dict(cases=meta, note="T = mel frames; conv_pos = input of the first encoder layer (conv stem + conv_out + positions, valid rows only); "
           "out = windowed attention (FlashAttention-2, vLLM and transformers 5 semantics); out_fullattn = qwen-asr 0.0.6 as released on eager/sdpa"))


def g_lengths(gold):
    from qwen_asr.core.transformers_backend.modeling_qwen3_asr import _get_feat_extract_output_lengths as f
    T = list(range(1, 310)) + [799, 800, 801, 1500, 3000, 12345, 120000]
    (gold / "audio_token_counts.json").write_text(json.dumps([[t, int(f(torch.tensor(t)))] for t in T]) + "\n")


def lcg_wave(n, seed):
    """Quantised to 1/1024 so that f32 sums of 1600 values are exact: state = state*1664525 + 1013904223 mod 2^32 per sample."""
    st = np.empty(n, np.uint32); s = np.uint64(seed)
    a, c, M = 1664525, 1013904223, 2 ** 32
    s = int(seed)
    for i in range(n):
        s = (a * s + c) % M
        st[i] = s
    v = ((st >> 22).astype(np.int64) - 512)                        # -512..511
    seg = (np.arange(n) // 8000)                                   # half-second loudness steps
    sh = np.array([(7 * int(k) + seed) % 5 for k in range(int(seg.max()) + 1)])[seg]
    return (np.sign(v) * (np.abs(v) >> sh)).astype(np.float32) / 1024.0


def g_text(seed, gold, al_tok):
    out = {}
    raws = ["", "   ", "language English<asr_text>Hello world.", "language Chinese<asr_text>你好。", "language chinese\n<asr_text> hi ", "language None<asr_text>", "language None<asr_text>  uh ",
            "Language ENGLISH<asr_text>x", "no tag at all ", "language English", "foo\nlanguage german\nmore<asr_text>Guten<asr_text>Tag", "language <asr_text>y", "<asr_text>z", "english<asr_text>w",
            "language English<asr_text>" + "a" * 20, "language English<asr_text>" + "a" * 21, "language English<asr_text>b" + "ha" * 19 + "c", "language English<asr_text>b" + "ha" * 20 + "c",
            "language English<asr_text>" + "ok no " * 30 + "end", "language Chinese<asr_text>" + "你好" * 25 + "再见" + "谢谢" * 22, "language English<asr_text>" + "abcdefghijklmnopqrst" * 20, "language English<asr_text>" + "abcdefghijklmnopqrstu" * 25,
            "x" * 25 + "y" * 19 + "zw" * 23, "1234567890" * 3 + "!" * 50, "é" * 22 + "🙂" * 21, "a" * 39, ("a" * 5 + "b") * 21 + "tail", "language Brazilian portuguese<asr_text>oi"]
    out["parse"] = [dict(raw=r, user_language=u, language=qu.parse_asr_output(r, u)[0], text=qu.parse_asr_output(r, u)[1]) for r in raws for u in (None, "English")]
    out["repetitions"] = [dict(input=r, output=qu.detect_and_fix_repetitions(r)) for r in raws if r.strip()]
    names = ["english", " CHINESE ", "cantonese", "zh", "Klingon", "fiLIpino", "Brazilian portuguese", ""]
    norm = []
    for n in names:
        try:
            v = qu.normalize_language_name(n); ok = v in qu.SUPPORTED_LANGUAGES
        except ValueError:
            v, ok = None, False
        norm.append(dict(name=n, normalized=v, supported=ok))
    out["language_names"] = norm
    out["supported_languages"] = list(qu.SUPPORTED_LANGUAGES)
    out["merge_languages"] = [dict(langs=l, merged=qu.merge_languages(l)) for l in ([], [""], ["Chinese", "English", "English"], ["English", "", "English"], ["English", "Chinese", "English"])]
    # ---- splitting
    w = (C.synth_wave(seed, "split", SR * 9 + 321, SR) * 1024).round() / 1024
    sp = []
    for mx, ex, mw in ((2.5, 0.6, 100.0), (1.0, 0.3, 40.0), (4.0, 5.0, 100.0), (2.0, 0.01, 100.0)):
        r = qu.split_audio_into_chunks(w.numpy(), SR, mx, ex, mw)
        sp.append(dict(max_chunk_sec=mx, search_expand_sec=ex, min_window_ms=mw, chunk_samples=[int(len(c)) for c, _ in r], offsets_sec=[float(o) for _, o in r]))
    C.dump(gold / "split.safetensors", {"wav": w}, dict(cases=sp, note="samples are multiples of 1/1024; chunk_samples include the zero padding of chunks below 0.5 s"))
    n = SR * 190 + 4321
    r = qu.split_audio_into_chunks(lcg_wave(n, seed), SR, qu.MAX_FORCE_ALIGN_INPUT_SECONDS)
    out["split_lcg"] = dict(samples=n, seed=seed, max_chunk_sec=qu.MAX_FORCE_ALIGN_INPUT_SECONDS, chunk_samples=[int(len(c)) for c, _ in r], offsets_sec=[float(o) for _, o in r],
                            first_samples=[float(v) for v in lcg_wave(9000, seed)[[0, 1, 2, 3, 7999, 8000, 8999]]],
                            rule="s=seed; per sample i: s=(1664525*s+1013904223) mod 2^32, v=(s>>22)-512, k=i/8000, x=sign(v)*(|v|>>((7*k+seed) mod 5))/1024")
    # ---- aligner text
    ap = Qwen3ForceAlignProcessor()
    cases = [("Hello world, it's a small test.", "English"), ("It’s 3.5% — re-do it!", "English"), ("你好，世界。今天天气very好 OK？", "Chinese"), ("我㐀愛𠀀豈abc漢字", "Cantonese"), ("Où est l'été ? C'est ça.", "French"),
             ("今日はいい天気ですね。テストです。", "Japanese"), ("東京タワーへ行きました、OK!", "Japanese"), ("안녕하세요 오늘은 날씨가 좋습니다.", "Korean"), ("나는 학교에 갔다 hello", "Korean"), ("Привет, мир! Ёлка", "Russian"),
             ("नमस्ते दुनिया", "Hindi"), ("", "English"), ("...", "English"), ("x" * 5 + "\n\ttab　全角", "English"), ("e\u0301te\u0301 naïve", "French")]
    wl = []
    for t, l in cases:
        words, txt = ap.encode_timestamp(t, l)
        wl.append(dict(text=t, language=l, words=words, prompt=txt, ids=al_tok(txt)["input_ids"]))
    out["align_words"] = wl
    fx = [[0, 80, 160, 240], [80, 4000, 160, 240], [80, 160, 0, 400], [500, 80, 160], [0], [320, 160], [80, 160, 240, 320, 0, 0, 0, 800, 880, 960, 1040], [80, 80, 80, 0, 0, 160], [960, 0, 0, 0, 80, 160], [0, 80, 800, 720, 640, 560, 160, 240],
          [0, 80, 160, 40, 40, 40], [400, 320, 240, 160, 80, 0]]
    for i in range(12):
        k = 2 * int(C.randint(seed, f"fix/{i}/n", 1, 12, (1,)))
        v = (C.randint(seed, f"fix/{i}/v", 0, 60, (k,)) * 80)
        if i % 2:
            v = torch.sort(v).values.clone(); j = int(C.randint(seed, f"fix/{i}/j", 0, k, (1,))); v[j:j + 4] = C.randint(seed, f"fix/{i}/w", 0, 60, v[j:j + 4].shape) * 80
        fx.append(v.tolist())
    out["fix_timestamps"] = [dict(input=f, output=ap.fix_timestamp(np.array(f, dtype=np.float32))) for f in fx]
    (gold / "text.json").write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


def g_tokenizer(gold, name, d):
    tk = Qwen2TokenizerFast.from_pretrained(d)
    texts = ["<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n<|im_start|>assistant\n", "language English<asr_text>Hello world", "language None<asr_text>",
             "Hotwords: Izwi, Qwen; 你好", "a<non_speech>b<blank3>c", "Hello<timestamp><timestamp>world<timestamp><timestamp>", "don't we've I'LL 2026  two  spaces\ttab\n\nx", "e\u0301 NFC 🙂 안녕 नमस्ते", " "]
    (gold / f"{name}.tokenizer.json").write_text(json.dumps([dict(text=t, ids=tk(t)["input_ids"], decoded=tk.decode(tk(t)["input_ids"]), decoded_skip_special=tk.decode(tk(t)["input_ids"], skip_special_tokens=True)) for t in texts], indent=1, ensure_ascii=False) + "\n")


def g_stream(seed, gold, m, base, wav, name, pieces, max_tokens, **kw):
    v = FakeVLLM(m, max_tokens)
    s = Qwen3ASRModel(backend="vllm", model=v, processor=m.processor, sampling_params=None, max_new_tokens=None)
    st = s.init_streaming_state(**kw)
    steps, pos = [], 0
    def note(pushed, finish):
        n0 = len(steps)
        for l in v.log[n0:]:
            prefix = l["prompt"][len(st.prompt_raw):]
            lang, txt = qu.parse_asr_output(prefix + l["generated_text"], st.force_language)
            steps.append(dict(l, prefix=prefix, raw_after=prefix + l["generated_text"], language_after=lang, text_after=txt, pushed_samples_so_far=pushed, finish=finish))
        if len(steps) > n0:
            assert (steps[-1]["raw_after"], steps[-1]["language_after"], steps[-1]["text_after"]) == (st._raw_decoded, st.language, st.text)
    for p in pieces:
        s.streaming_transcribe(wav[pos:pos + p].numpy(), st); pos += p
        note(pos, False)
    s.finish_streaming_transcribe(st); note(pos, True)
    (gold / f"asr06.{name}.json").write_text(json.dumps(dict(init=dict(kw, chunk_size_samples=st.chunk_size_samples, unfixed_chunk_num=st.unfixed_chunk_num, unfixed_token_num=st.unfixed_token_num, force_language=st.force_language),
        pieces=pieces, max_tokens=max_tokens, prompt_raw=st.prompt_raw, wav="asr06.tower `wav` prefix", steps=steps, final=dict(language=st.language, text=st.text, raw=st._raw_decoded)), indent=1, ensure_ascii=False) + "\n")
    return steps


def align_case(gold, name, al, base, wavs, texts, langs, info, window=True):
    th = al.model.thinker
    hooks = windowed(th.audio_tower) if window else []
    tap = Tapper(th)
    ids = {}
    def grab(mod, a, kw):
        ids.update({k: v for k, v in kw.items() if torch.is_tensor(v)})
    h = th.register_forward_pre_hook(grab, with_kwargs=True)
    raw = []
    orig = al.aligner_processor.parse_timestamp
    al.aligner_processor.parse_timestamp = lambda w, t: (raw.append(t.tolist()), orig(w, t))[1]
    res = al.align(audio=[(w.numpy(), SR) for w in wavs], text=texts, language=langs)
    al.aligner_processor.parse_timestamp = orig
    h.remove(); tap.close()
    for k in hooks:
        k.remove()
    s = tap.store
    lg = s["t.logits"][0].float()
    ts = int(al.model.config.timestamp_token_id)
    o = {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"], "mel": ids["input_features"].float(), "mel_mask": ids["feature_attention_mask"],
         "prefill.norm": s["t.norm"][0], "prefill.layer0": s["t.layer0"][0], "prefill.position_ids": s["t.pos"][0][0].long()}
    words, mg = [], []
    for b in range(len(wavs)):
        at = ids["input_ids"][b] == ts
        o[f"audio{b}.out"] = s["a.out"][b]; o[f"audio{b}.cu_seqlens"] = s["a.cu"][b].long()
        o[f"ts{b}.logits"] = lg[b][at]; o[f"ts{b}.classes"] = lg[b][at].argmax(-1)
        mg.append(float(C.top2_margin(lg[b][at]).min()))
        words.append([dict(text=i.text, start=i.start_time, end=i.end_time) for i in res[b].items])
    meta = dict(text=texts, language=langs, samples=[int(len(w)) for w in wavs], wav="aligner.tower `wav` prefix", raw_ms=raw, items=words, min_margin=min(mg), windowed=window)
    C.dump(gold / f"aligner.{name}.safetensors", o, meta)
    info["cases"][f"aligner.{name}"] = dict(words=[len(w) for w in words], min_margin=min(mg), distinct_classes=[int(o[f"ts{b}.classes"].unique().numel()) for b in range(len(wavs))])


def main(seed, out):
    C.setup(1)
    shutil.rmtree(out, ignore_errors=True)
    gold = out / "goldens"
    gold.mkdir(parents=True)
    info = {"versions": C.versions("torch", "transformers", "qwen-asr", "tokenizers", "safetensors", "numpy", "librosa", "nagisa", "soynlp"), "seed": seed,
            "attn_implementation": "eager", "compute_dtype": "float32", "cases": {}}
    wav = {"asr06": C.synth_wave(seed, "w06", SR * 7, SR), "asr17": C.synth_wave(seed, "w17", SR * 10, SR), "aligner": C.synth_wave(seed, "wal", SR * 6, SR)}
    for kind in KINDS:
        d = out / kind
        base = build_tokenizer(d, kind == "aligner")
        cfg = config(kind, base)
        info.setdefault("base_vocab", {})[kind] = base
        model = Qwen3ASRForConditionalGeneration(Qwen3ASRConfig(**copy.deepcopy(cfg))).eval()
        init(model, seed, kind)
        C.round_bf16_(model)
        save(d, model, cfg, kind, base)
        (gold / f"{kind}.tensors.json").write_text(json.dumps({k: list(v.shape) for k, v in tensors_of(model, kind).items()}, indent=0) + "\n")
        g_tokenizer(gold, kind, d)
        del model

    # ---------------------------------------------------------------- ASR
    def case(kind, m, name, fn, args, **kw):
        o, meta, s = run_case(m, fn, **kw)
        meta["args"] = args
        C.dump(gold / f"{kind}.{name}.safetensors", o, meta)
        info["cases"][f"{kind}.{name}"] = dict(raw=meta["raw"], min_margin=meta["min_margin"], tokens=int(o["sequences"].shape[1]), prompt_len=meta["prompt_len"])
        return o

    kind, base = "asr06", info["base_vocab"]["asr06"]
    d = out / kind
    W = wav[kind]
    a = W[: int(1.5 * SR)].numpy()
    stop, head = engineer(d, base, json.loads((d / "config.json").read_text()), lambda: load(d, base), a, "", 14)
    m = load(d, base)
    info["engineered"] = {kind: dict(stop_step=stop, head_ids=head)}
    g_mel(seed, gold, m.processor.feature_extractor, W)
    g_lengths(gold)
    g_tower(seed, gold, kind, m, W, [37, 100, 137, 200, 237, 400, 655])
    R = lambda x: (x, SR)
    wn = "asr06.tower `wav` prefix of the given number of samples"
    case(kind, m, "auto", lambda: m.transcribe(R(a)), dict(wav=wn, samples=len(a), context="", language=None, max_new_tokens=20, expect_stop_step=stop))
    ctx = "Hotwords: Izwi, Qwen; 你好"
    case(kind, m, "context", lambda: m.transcribe(R(a), context=ctx), dict(wav=wn, samples=len(a), context=ctx, language=None, max_new_tokens=20), layers=False)
    case(kind, m, "forced", lambda: m.transcribe(R(a), language="english"), dict(wav=wn, samples=len(a), context="", language="english", max_new_tokens=20), layers=False)
    b = W[: 13333].numpy()
    case(kind, m, "context_forced", lambda: m.transcribe(R(b), context=ctx, language="Chinese"), dict(wav=wn, samples=len(b), context=ctx, language="Chinese", max_new_tokens=20), layers=False)
    long = W[: int(5.2 * SR)].numpy()
    case(kind, m, "long", lambda: m.transcribe(R(long)), dict(wav=wn, samples=len(long), context="", language=None, max_new_tokens=20, note="3 attention windows"), layers=False)
    case(kind, m, "batch2", lambda: m.transcribe([R(a), R(b)], context=["", ctx], language=[None, "Chinese"]),
         dict(wav=wn, samples=[len(a), len(b)], context=["", ctx], language=[None, "Chinese"], max_new_tokens=20, note="left padding of the text, right padding of the waveform: row 1 differs from context_forced (one frame more, zeros after the end)"))
    (gold / f"{kind}.prompts.json").write_text(json.dumps([dict(context=c, language=l, prompt=m._build_text_prompt(c, l), ids=m.processor.tokenizer(m._build_text_prompt(c, l))["input_ids"])
        for c in ("", ctx, "line1\nline2", "<|im_end|> sneaky <|im_start|>") for l in (None, "English", "Chinese")], indent=1, ensure_ascii=False) + "\n")
    for h in m.hooks:
        h.remove()
    case(kind, m, "long_fullattn", lambda: m.transcribe(R(long)), dict(wav=wn, samples=len(long), context="", language=None, max_new_tokens=20, note="qwen-asr 0.0.6 as released on eager/sdpa: no attention windows"), layers=False)
    m.hooks = windowed(m.model.thinker.audio_tower)
    mb = load(d, base, dtype=torch.bfloat16)
    case(kind, mb, "auto_bf16", lambda: mb.transcribe(R(a)), dict(wav=wn, samples=len(a), note="bf16 compute, everything else as auto", max_new_tokens=20), layers=False)
    del mb
    # split: the same public function with small limits
    keep = qa.MAX_ASR_INPUT_SECONDS, qa.split_audio_into_chunks
    qa.MAX_ASR_INPUT_SECONDS = 2.0
    qa.split_audio_into_chunks = lambda wav, sr, max_chunk_sec: qu.split_audio_into_chunks(wav, sr, max_chunk_sec, search_expand_sec=0.4)
    sl = W[: int(4.3 * SR) + 55].numpy()
    parts = [(int(len(c)), o) for c, o in qa.split_audio_into_chunks(sl, SR, 2.0)]
    m1 = load(d, base, max_inference_batch_size=1)
    r = m1.transcribe(R(sl))
    (gold / f"{kind}.split_transcribe.json").write_text(json.dumps(dict(wav=wn, samples=len(sl), max_chunk_sec=2.0, search_expand_sec=0.4, max_new_tokens=20, max_inference_batch_size=1, chunks=parts,
        sequences=[x[1].sequences[0, x[0]["input_ids"].shape[1]:].tolist() for x in m1.last], language=r[0].language, text=r[0].text), indent=1, ensure_ascii=False) + "\n")
    qa.MAX_ASR_INPUT_SECONDS, qa.split_audio_into_chunks = keep
    del m1
    # streaming
    st = g_stream(seed, gold, m, base, W, "stream_auto", [5000, 9000, 12345, 100, 60000, 7000], 12, context="", language=None, unfixed_chunk_num=1, unfixed_token_num=5, chunk_size_sec=1.5)
    st4 = g_stream(seed, gold, m, base, W, "stream_defaults", [3200] * 30 + [1111], 14, context="", language=None)
    st2 = g_stream(seed, gold, m, base, W, "stream_forced", [16000, 16000, 16000, 16000, 4321], 10, context=ctx, language="chinese", unfixed_chunk_num=1, unfixed_token_num=3, chunk_size_sec=1.0)
    st3 = g_stream(seed, gold, m, base, W, "stream_rollback_all", [8000] * 5 + [100], 4, context="", language="English", unfixed_chunk_num=0, unfixed_token_num=50, chunk_size_sec=0.5)
    info["streaming"] = {n: [s["generated_text"] for s in x] for n, x in (("stream_auto", st), ("stream_defaults", st4), ("stream_forced", st2), ("stream_rollback_all", st3))}
    asr = m

    kind, base = "asr17", info["base_vocab"]["asr17"]
    d, W = out / kind, wav["asr17"]
    a17 = W[: int(9.7 * SR)].numpy()
    stop, head = engineer(d, base, json.loads((d / "config.json").read_text()), lambda: load(d, base), a17, "", 14)
    info["engineered"][kind] = dict(stop_step=stop, head_ids=head)
    m = load(d, base)
    wn = "asr17.auto `wav`"
    o, meta, _ = run_case(m, lambda: m.transcribe(R(a17)), layers=False)
    o["wav"] = W[: len(a17)]
    o.pop("mel")
    meta["args"] = dict(wav=wn, samples=len(a17), context="", language=None, max_new_tokens=20, expect_stop_step=stop, note="n_window_infer 800: 2 attention windows (104 + 23 tokens)")
    C.dump(gold / f"{kind}.auto.safetensors", o, meta)
    info["cases"][f"{kind}.auto"] = dict(raw=meta["raw"], min_margin=meta["min_margin"], tokens=int(o["sequences"].shape[1]), prompt_len=meta["prompt_len"])
    b17 = W[: SR + 4000].numpy()
    case(kind, m, "context_forced", lambda: m.transcribe(R(b17), context=ctx, language="German"), dict(wav=wn + " prefix", samples=len(b17), context=ctx, language="German", max_new_tokens=20))
    del m

    # ---------------------------------------------------------------- aligner
    kind, base = "aligner", info["base_vocab"]["aligner"]
    d, W = out / kind, wav["aligner"]
    al = Qwen3ForcedAligner.from_pretrained(str(d), dtype=torch.float32, attn_implementation="eager")
    wrap = types.SimpleNamespace(model=al.model, processor=al.processor, hooks=[])
    g_tower(seed, gold, kind, wrap, W, [99, 560])
    for h in wrap.hooks:
        h.remove()
    x23, x53, x11 = W[: int(2.3 * SR)], W[: int(5.3 * SR)], W[: 17777]
    en, zh = "Hello world, it's a small test.", "你好 world，今天OK"
    align_case(gold, "en", al, base, [x23], [en], ["English"], info)
    align_case(gold, "zh", al, base, [x11], [zh], ["chinese"], info)
    align_case(gold, "long", al, base, [x53], ["The quick brown fox jumps over the lazy dog; don't you think so? We've seen it."], ["English"], info)
    align_case(gold, "long_fullattn", al, base, [x53], ["The quick brown fox jumps over the lazy dog; don't you think so? We've seen it."], ["English"], info, window=False)
    align_case(gold, "batch2", al, base, [x23, x11], [en, zh], ["English", "Chinese"], info)
    align_case(gold, "ja_ko", al, base, [x11, x11], ["今日はいい天気ですね。", "안녕하세요 오늘은 날씨가 좋습니다."], ["Japanese", "Korean"], info)
    g_text(seed, gold, al.processor.tokenizer)
    # ---- transcribe + time stamps through the public function, split in two chunks so that offsets are merged
    windowed(al.model.thinker.audio_tower)
    asr.forced_aligner = al
    keep = qa.MAX_FORCE_ALIGN_INPUT_SECONDS, qa.split_audio_into_chunks
    qa.MAX_FORCE_ALIGN_INPUT_SECONDS = 2.0
    qa.split_audio_into_chunks = lambda wav, sr, max_chunk_sec: qu.split_audio_into_chunks(wav, sr, max_chunk_sec, search_expand_sec=0.4)
    asr.max_inference_batch_size = 1
    asr.last.clear()
    ts = wav["asr06"][: int(3.1 * SR)].numpy()
    r = asr.transcribe(R(ts), return_time_stamps=True)[0]
    parts = [(int(len(c)), o) for c, o in qa.split_audio_into_chunks(ts, SR, 2.0)]
    qa.MAX_FORCE_ALIGN_INPUT_SECONDS, qa.split_audio_into_chunks = keep
    (gold / "transcribe_timestamps.json").write_text(json.dumps(dict(wav="asr06.tower `wav` prefix", samples=len(ts), max_chunk_sec=2.0, search_expand_sec=0.4, max_new_tokens=20, max_inference_batch_size=1, chunks=parts,
        sequences=[x[1].sequences[0, x[0]["input_ids"].shape[1]:].tolist() for x in asr.last], language=r.language, text=r.text,
        items=[dict(text=i.text, start=i.start_time, end=i.end_time) for i in (r.time_stamps.items if r.time_stamps else [])]), indent=1, ensure_ascii=False) + "\n")
    (out / "INFO.json").write_text(json.dumps(info, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True, type=Path)
    a = ap.parse_args()
    main(a.seed, a.out)
    print("total bytes", C.write_manifest(a.out))
