#!/usr/bin/env python3
"""Golden generator for Kyutai Pocket TTS 4.x: random checkpoints in the package's own layout + reference dumps.

  pocket_tts.py --seed 1 --size tiny --out DIR
  pocket_tts.py --seed 1 --size real --out DIR    full-size random english_2026-10 shaped checkpoint, no goldens

Per variant: config.yaml (pocket_tts schema), model.safetensors (flow_lm.* and mimi.*), tokenizer.json or tokenizer.model,
voice.safetensors (exported voice state, same format as the published embeddings/*.safetensors).
"""
import argparse, copy, io, json, os, shutil, sys, warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import common as C
import torch
from torch import nn
import yaml
from safetensors.torch import save_file, load_file
warnings.filterwarnings("ignore")

from pocket_tts.models.tts_model import TTSModel
from pocket_tts.models import tts_model as tm
from pocket_tts.models.model_state import export_model_state
from pocket_tts.models.text_chunking import prepare_text_prompt, split_into_best_sentences
from pocket_tts.data.audio_utils import end_on_pause, convert_audio
from pocket_tts.modules.stateful_module import init_states, increment_steps
from pocket_tts.utils.config import Config
from pocket_tts.modules import mlp as pmlp

SENT = [s for s in C.CORPUS[1:4] + C.CORPUS[6:8]] * 6 + [
    "Hello there. How are you today? I am fine, thank you! It costs 3.50 dollars; maybe 4: who knows...",
    "The weather is nice, the sun is shining, and the birds are singing in the trees near the old house.",
] * 8


def train_spm(path, vocab, kind):
    import sentencepiece as spm
    buf = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(SENT), model_writer=buf, vocab_size=vocab, model_type=kind,
                                   num_threads=1, byte_fallback=False, hard_vocab_limit=False, minloglevel=2,
                                   character_coverage=1.0, shuffle_input_sentence=False)
    path.write_bytes(buf.getvalue())
    sp = spm.SentencePieceProcessor(model_proto=buf.getvalue())
    return sp


def tokenizer_json(sp, path, total=0):
    """tokenizer.json with the same ids as the SentencePiece unigram model (not the official vocabulary)."""
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, normalizers, Regex
    vocab = [(sp.id_to_piece(i), float(sp.get_score(i))) for i in range(sp.vocab_size())]
    vocab += [(f"\u2581\u2581filler{i}", -100.0) for i in range(total - len(vocab))]
    tk = Tokenizer(models.Unigram(vocab, unk_id=sp.unk_id(), byte_fallback=False))
    tk.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(" {2,}"), " ")])
    tk.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tk.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tk.save(str(path))


def variant_config(v, size, n_bins, tok):
    real = size == "real"
    dim = 512 if real else 32
    sea = dict(dimension=dim, channels=1, n_filters=64 if real else 4, n_residual_layers=1, ratios=[6, 5, 4], kernel_size=7,
               residual_kernel_size=3, last_kernel_size=3, dilation_base=2, pad_mode="constant", compress=2)
    tr = dict(d_model=dim, num_heads=8 if real else 4, num_layers=2, layer_scale=0.01, context=250 if real else 12,
              dim_feedforward=2048 if real else 64, input_dimension=dim, output_dimensions=[dim])
    flow = dict(depth=6 if real else 2, dim=512 if real else 48)
    lm = dict(d_model=1024 if real else 64, hidden_scale=4, max_period=10000, num_heads=16 if real else 4, num_layers=6 if real else 3)
    lut = dict(dim=lm["d_model"], n_bins=n_bins, tokenizer=tok, tokenizer_path="tokenizer.json" if tok == "tokenizers" else "tokenizer.model")
    mimi = dict(dtype="float32", sample_rate=24000, inner_dim=32 if real else 8, outer_dim=dim, channels=1, frame_rate=12.5,
                seanet=sea, transformer=tr, quantizer=dict(dimension=32 if real else 8, output_dimension=dim))
    cfg = dict(weights_path="model.safetensors", default_temperature=0.3, replace_characters={"\u2019": "'", "\u2018": "'"},
               flow_lm=dict(insert_bos_before_voice=True, dtype="float32", flow=flow, transformer=lm, lookup_table=lut), mimi=mimi)
    if v == "old":       # english_2026-01: no BOS, inner_dim == seanet dimension, space padding of short inputs
        cfg["flow_lm"]["insert_bos_before_voice"] = False
        cfg["pad_with_spaces_for_short_inputs"] = True
        cfg["default_temperature"] = 0.7
        mimi["inner_dim"] = dim
        # the latent width equals quantizer.dimension; with inner_dim != quantizer.dimension only speaker_proj sees inner_dim
    if v == "drifting":
        flow["type"] = "drifting"
    if v == "pointwise":  # english_2m_*: every small-model feature at once
        flow.update(type="pointwise")
        lm.update(hidden_scale=1, attn_dim=96, num_heads=3, num_kv_heads=1, dim_feedforward=40)
        lut.update(rank=16)
        cfg["flow_lm"]["z_dim"] = 24
        mimi["outer_dim"] = 16
        mimi["quantizer"]["output_dimension"] = 16
        mimi["decoder_seanet"] = {**sea, "dimension": 16, "n_filters": 3, "kernel_size": 3, "compress": 2, "n_filters": 4}
        mimi["decoder_transformer"] = {**tr, "d_model": 16, "num_heads": 2, "num_layers": 3, "context": 5, "dim_feedforward": 24, "input_dimension": 16, "output_dimensions": [16]}
        cfg["default_eos_threshold"] = -1.0
        cfg["remove_semicolons"] = True
    return cfg


def init(model, seed, tag):
    def ov(name, p, owner):
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "freqs":
            return p.clone()
        if leaf == "emb_std":
            return C.rand(seed, name, p.shape, 0.5, 1.5)
        if leaf == "emb_mean":
            return C.randn(seed, name, p.shape, 0.3)
        if leaf == "bos_emb":
            return C.randn(seed, name, p.shape, 1.0)
        if leaf == "bos_before_voice":
            return C.randn(seed, name, p.shape, 0.5)
        if leaf == "scale":
            return C.randn(seed, name, p.shape, 0.1, 0.4)
        if leaf == "alpha":
            return C.randn(seed, name, p.shape, 0.1, 1.0)
        if "/mimi.decoder.model" in name and name.endswith("11.conv.weight"):  # final conv: keep |wav| mostly below 1
            return C.randn(seed, name, p.shape, 0.08 / p[0].numel() ** 0.5)
        if "embed.weight" in name:
            return C.randn(seed, name, p.shape, 0.5)
        if name.endswith("final_layer.linear.weight") or name.endswith("input_linear.weight"):
            return C.randn(seed, name, p.shape, (0.12 if tag == "drifting" else 0.3) / p.shape[1] ** 0.5)   # tame the latent feedback loop
        return None
    C.fill(model, seed, prefix=tag + "/", override=ov)


class Noise:
    """Replace torch.nn.init.normal_ used for the sampler noise by a recorded stream."""
    def __init__(self, z):
        self.z, self.i = z, 0

    def __enter__(self):
        self.o = torch.nn.init.normal_

        def f(t, mean=0.0, std=1.0, generator=None):
            t.copy_(self.z[self.i].reshape(t.shape) * std + mean); self.i += 1
            return t
        torch.nn.init.normal_ = f
        return self

    def __exit__(self, *a):
        torch.nn.init.normal_ = self.o


def run_case(m, state, text, z, **over):
    """One short-text generation through the official streaming entry point, with taps."""
    keep = {k: getattr(m, k) for k in over if hasattr(m, k)}
    fa = over.pop("frames_after_eos", None)
    for k, v in over.items():
        setattr(m, k, v)
    m.max_decoder_frames_per_call = 1
    fl = m.flow_lm
    tap = C.Tap()
    tap.out(fl.transformer, "transformer"); tap.out(fl.conditioner, "text_emb"); tap.out(fl.input_linear, "input_linear")
    tap.out(fl.out_eos, "eos_logit"); tap.out(fl.flow_net, "flow")
    tap.inp(fl.flow_net, "cond", lambda a, k: a[0])
    lat = []
    o_run = m._run_flow_lm_and_increment_step

    def rr(**k):
        r = o_run(**k)
        lat.append((k.get("backbone_input_latents"), C.c(r[0])))
        return r
    m._run_flow_lm_and_increment_step = rr
    chunks = []
    with Noise(z):
        for c in m.generate_audio_stream(state, text, frames_after_eos=fa):
            chunks.append(C.c(c))
    del m.__dict__["_run_flow_lm_and_increment_step"]
    tap.close()
    for k, v in keep.items():
        setattr(m, k, v)
    s = tap.store
    ar = [(a, b) for a, b in lat if a is not None]
    o = {"wav": torch.cat(chunks), "chunk_lens": torch.tensor([x.numel() for x in chunks]),
         "latents_all": torch.cat([b for _, b in ar], 1),
         "eos_logits": torch.cat([x.reshape(-1) for x in s["eos_logit"]])[-len(ar):],
         "cond": torch.cat(s["cond"])}
    big = [x for x in s["text_emb"] if x.shape[1]]
    o["text_emb"] = big[0]
    o["transformer_prompt_text"] = [x for x in s["transformer"] if x.shape[1] > 1][0] if any(x.shape[1] > 1 for x in s["transformer"]) else s["transformer"][0]
    steps = [x for x in s["transformer"] if x.shape[1] == 1]
    o["transformer_steps"] = torch.cat(steps, 1)
    o["flow_outputs"] = torch.cat(s["flow"])
    return o


def gen_variant(seed, v, size, out, gold):
    d = out / v
    d.mkdir(parents=True, exist_ok=True)
    n = 4000 if size == "real" else 300
    sp = train_spm(d / "tokenizer.model", 300, "unigram")
    n = 4000 if size == "real" else sp.vocab_size()
    tok = "sentencepiece" if v == "pointwise" else "tokenizers"
    if tok == "tokenizers":
        tokenizer_json(sp, d / "tokenizer.json", 4000 if size == "real" else 0); (d / "tokenizer.model").unlink()
    cfg = variant_config(v, size, n, tok)
    cwd = os.getcwd(); os.chdir(d)
    try:
        c0 = copy.deepcopy(cfg); c0.pop("weights_path")
        m = TTSModel._from_pydantic_config_with_weights(Config(**c0), 0.3, 1, None, -4.0)
        init(m, seed, v)
        save = lambda: save_file({k: t.clone().contiguous() for k, t in sorted(m.state_dict().items())}, "model.safetensors")
        Path("config.yaml").write_text(yaml.safe_dump(cfg, sort_keys=True, allow_unicode=True))
        save()
        if size == "real":
            print(v, "params", sum(p.numel() for p in m.parameters()))
            return
        torch.set_num_threads(1)
        wav = C.synth_wave(seed, f"{v}/voice", 1920 * 9 + 700, 24000)
        wav[-2500:] *= 1e-4                      # trailing near-silence so end_on_pause cuts something
        text = "Hello there, how are you?"
        z = C.randn(seed, f"{v}/noise", (400, m.flow_lm.ldim))
        st = m.get_state_for_audio_prompt(wav[None])
        # make EOS fire at step 9: least-norm row over the hidden states of the first frames
        kw = dict(temp=m.config.default_temperature)
        thr = m.config.default_eos_threshold
        row = m.flow_lm.out_eos
        row.weight.data.zero_(); row.bias.data.fill_(-9.0)
        a = run_case(m, copy.deepcopy(st), text, z, **kw)
        hs = a["cond"][1:]                        # call 0 is the text prompt
        G = torch.stack(list(hs[:10]))
        tgt = torch.tensor([0.0] * 9 + [thr + 9.0 + 2.0]); tgt[2] = thr + 9.0 + 1.0   # step 2 also crosses: ignored (< 6)
        row.weight.data.copy_((G.T @ torch.linalg.lstsq(G @ G.T, tgt[:, None]).solution).T)
        save()
        m = TTSModel.load_model(config="config.yaml")
        st = m.get_state_for_audio_prompt(wav[None])
        export_model_state({k: {n: t.contiguous() for n, t in s.items()} for k, s in st.items()}, "voice.safetensors")
        info = dict(sampling_steps={}, temp_default=m.temp, eos_threshold=m.eos_threshold)
        (gold / f"{v}.tensors.json").write_text(json.dumps({k: list(t.shape) for k, t in sorted(m.state_dict().items())}, indent=0) + "\n")

        # ---- voice prompt
        paused = end_on_pause(wav[None], 24000)
        tap = C.Tap()
        tap.out(m.mimi.encoder, "enc.seanet"); tap.out(m.mimi.encoder_transformer, "enc.transformer", C.first)
        lat = m.mimi.encode_to_latent(paused[None]); tap.close()
        cond = m._encode_audio(paused[None])
        o = {"wav": wav, "end_on_pause": paused[0], "latents": lat, "conditioning": cond, **{k: x[0] for k, x in tap.store.items()}}
        for k, s in st.items():
            o[f"state.{k}.cache"] = s["cache"]; o[f"state.{k}.offset"] = s["offset"]
        w16 = C.synth_wave(seed, f"{v}/w16", 16000, 16000)
        o["w16"] = w16; o["w16_to_24k"] = convert_audio(w16[None], 16000, 24000, 1)[0]
        C.dump(gold / f"{v}.voice.safetensors", o, dict(note="w16_to_24k: scipy.signal.resample_poly(up=3, down=2)"))

        # ---- generation
        prep, guess = prepare_text_prompt(text, m.pad_with_spaces_for_short_inputs, m.remove_semicolons, m.append_terminal_punctuation, m.capitalize_first_letter, m.replace_characters)
        ids = m.flow_lm.conditioner.prepare(prep)
        cases = {"default": {}, "temp0": dict(temp=0.0)}
        if m.flow_lm.flow_type == "lsd":
            cases["steps3"] = dict(sampler_decode_steps=3)
        for nm, kw in cases.items():
            # random weights amplify rounding along the feedback loop: keep the extra cases short
            cap = 14 if nm != "default" else m._estimate_max_gen_len(ids.shape[1])
            m._estimate_max_gen_len = lambda n, cap=cap: cap
            o = run_case(m, st, text, z, **kw)
            del m.__dict__["_estimate_max_gen_len"]
            o["noise"] = z[: o["cond"].shape[0]]
            o["text_ids"] = ids
            kept = o["wav"].numel() // 1920
            C.dump(gold / f"{v}.{nm}.safetensors", o, dict(text=text, prepared=prep, frames_after_eos=guess + 2, overrides=kw, frames=kept, max_gen_len=cap,
                   temp=kw.get("temp", m.temp), steps=int(o["latents_all"].shape[1]), eos_threshold=m.eos_threshold,
                   note="noise[0] belongs to the text-prompt call, noise[1+i] to AR step i; noise is multiplied by sqrt(temp). latents are before *emb_std+emb_mean"))
            info["sampling_steps"][nm] = dict(frames=kept, steps=int(o["latents_all"].shape[1]))
        if v == "lsd":  # training-time time embedding + flow net alone
            fn = m.flow_lm.flow_net
            c = C.randn(seed, "fn/c", (5, m.flow_lm.dim)); x = C.randn(seed, "fn/x", (5, m.flow_lm.ldim))
            s0 = C.rand(seed, "fn/s", (5, 1)); t0 = C.rand(seed, "fn/t", (5, 1))
            C.dump(gold / "lsd.flow_net.safetensors", {"c": c, "x": x, "s": s0, "t": t0, "out": fn(c, s0, t0, x), "emb_s": fn.time_embed[0](s0), "emb_t": fn.time_embed[1](t0)})
        # long text: several chunks, each restarting from the voice state
        long = "Hello there. It costs 3.50 dollars; maybe 4! The weather is nice, the sun is shining, and the birds are singing in the trees near the old house... How are you today? I am fine"
        ch = split_into_best_sentences(m.flow_lm.conditioner.tokenizer, long, 50, m.pad_with_spaces_for_short_inputs, remove_semicolons=m.remove_semicolons,
                                       append_terminal_punctuation=m.append_terminal_punctuation, capitalize_first_letter=m.capitalize_first_letter, replace_characters=m.replace_characters)
        texts = []
        for t in ["hello", "  hi there,  ", "what\u2019s  up\nman", "He said \u201cyes\u201d", "(really)", "wow!", "a; b: c -", "One two three four five six", "Wait..."]:
            try:
                p, g = prepare_text_prompt(t, m.pad_with_spaces_for_short_inputs, m.remove_semicolons, m.append_terminal_punctuation, m.capitalize_first_letter, m.replace_characters)
                texts.append(dict(text=t, prepared=p, frames_after_eos_guess=g, ids=m.flow_lm.conditioner.prepare(p)[0].tolist()))
            except ValueError as e:
                texts.append(dict(text=t, error=str(e)))
        (gold / f"{v}.text.json").write_text(json.dumps(dict(long=long, chunks=ch, chunk_ids=[m.flow_lm.conditioner.prepare(x)[0].tolist() for x in ch], cases=texts), indent=1, ensure_ascii=False) + "\n")
        # ---- codec decode alone: all frames at once vs one by one
        L = C.randn(seed, f"{v}/dl", (1, 20, m.flow_lm.ldim)) * m.flow_lm.emb_std + m.flow_lm.emb_mean
        spl = int(m.mimi.encoder_frame_rate / m.mimi.frame_rate)
        s1 = init_states(m.mimi, 1, 20 * spl); tap = C.Tap()
        tap.out(m.mimi.quantizer, "quantizer"); tap.out(m.mimi.upsample, "upsample"); tap.out(m.mimi.decoder_transformer, "dec.transformer", C.first)
        y = m.mimi.decode_from_latent(L, s1); tap.close()
        s2 = init_states(m.mimi, 1, 20 * spl); ys = []
        for i in range(20):
            ys.append(m.mimi.decode_from_latent(L[:, i:i + 1], s2)); increment_steps(m.mimi, s2, spl)
        ys = torch.cat(ys, -1)
        C.dump(gold / f"{v}.mimi_decode.safetensors", {"latents": L, "wav": y, "wav_stream": ys, **{k: x[0] for k, x in tap.store.items()}},
               dict(stream_max_abs_diff=float((y - ys).abs().max()), transformer_steps_per_latent=spl))
        return info
    finally:
        os.chdir(cwd)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--size", choices=["tiny", "real"], default="tiny")
    ap.add_argument("--out", required=True, type=Path)
    a = ap.parse_args()
    a.out = a.out.resolve()
    shutil.rmtree(a.out, ignore_errors=True)
    gold = a.out / "goldens"
    gold.mkdir(parents=True)
    C.setup(1)
    info = {"versions": C.versions("torch", "pocket-tts", "sentencepiece", "tokenizers", "scipy", "safetensors"), "seed": a.seed, "variants": {}}
    for v in (["lsd"] if a.size == "real" else ["lsd", "old", "drifting", "pointwise"]):
        info["variants"][v] = gen_variant(a.seed, v, a.size, a.out, gold)
    (a.out / "INFO.json").write_text(json.dumps(info, indent=1, sort_keys=True) + "\n")
    print("total bytes", C.write_manifest(a.out))
