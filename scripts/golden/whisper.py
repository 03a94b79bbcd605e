"""Reference data for the whisper family: writes tests/golden/whisper/.

Run from the repository root, in a virtual environment with scripts/golden/requirements.txt installed, after
`izwi pull whisper-tiny.en` and `izwi pull whisper-base` into $IZWI_HOME (default target/izwi-home):

    python -P scripts/golden/whisper.py

(-P, because this file's folder would hide the package of the same name. Names of parts behind it, `networks` or `beams`,
write only those.)

Two reference implementations run in float32 on the installed weights over the recordings in assets/speech/:
transformers (front end, network, logits, token timestamps) and openai-whisper (decoding rules, whole transcripts, word
timestamps, alignment functions). tests/golden/whisper/README.md says what each file holds.
"""

import json
import os
import sys
import wave
from pathlib import Path

import numpy as np
import torch
import whisper as openai
from safetensors.torch import load_file
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from whisper.model import ModelDimensions
from whisper.timing import dtw, median_filter

OUT = Path("tests/golden/whisper")
SPEECH = Path("assets/speech")
HOME = Path(os.environ.get("IZWI_HOME", "target/izwi-home")) / "models"
MODELS = ["whisper-tiny.en", "whisper-base"]
AUSTEN = [f"sense_and_sensibility_01_austen_64kb-{n}" for n in ("0870", "0880", "0890", "0920", "0930")]
CLIPS = [*AUSTEN, "jfk"]
WORD_CLIPS = ["jfk", AUSTEN[0]]
MEL_FRAME_STEP, MEL_BIN_STEP = 13, 3
ENCODER_FRAME_STEP, ENCODER_CHANNEL_STEP = 37, 7
LOGITS_POSITIONS, LOGITS_STEP, TOP = 20, 101, 5
RATE, GAP_S = 16000, 0.5
MAX_NEW_TOKENS = 224
BEAM_SIZE = 5
BEAM_SETTINGS = [(None, None), (2.0, 0.5)]


def recording(name):
    with wave.open(str(SPEECH / f"{name}.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def write(name, values):
    (OUT / name).write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")


def floats(name, arrays):
    (OUT / name).write_bytes(b"".join(np.ascontiguousarray(a).astype("<f4").tobytes() for a in arrays))


class Model:
    """One checkpoint in both implementations."""

    def __init__(self, name):
        self.name, folder = name, HOME / name
        self.net = WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.tokenizer = WhisperTokenizer.from_pretrained(folder)
        self.extractor = WhisperFeatureExtractor()
        self.rules = json.loads((folder / "generation_config.json").read_text())
        self.eot, self.sot = self.rules["eos_token_id"], self.rules["decoder_start_token_id"]
        self.multilingual = self.rules["is_multilingual"]
        self.generate_options = {"language": "en", "task": "transcribe"} if self.multilingual else {}
        self.prompt = [self.sot]
        if self.multilingual:
            self.prompt += [self.rules["lang_to_id"]["<|en|>"], self.rules["task_to_id"]["transcribe"]]
        self.openai = self.rebuilt(folder)

    def rebuilt(self, folder):
        """The same weights under openai-whisper's names."""
        config = self.net.config
        dims = ModelDimensions(
            n_mels=config.num_mel_bins,
            n_audio_ctx=config.max_source_positions,
            n_audio_state=config.d_model,
            n_audio_head=config.encoder_attention_heads,
            n_audio_layer=config.encoder_layers,
            n_vocab=config.vocab_size,
            n_text_ctx=config.max_target_positions,
            n_text_state=config.d_model,
            n_text_head=config.decoder_attention_heads,
            n_text_layer=config.decoder_layers,
        )
        names = [
            ("model.", ""),
            ("layers.", "blocks."),
            ("self_attn_layer_norm", "attn_ln"),
            ("encoder_attn_layer_norm", "cross_attn_ln"),
            ("final_layer_norm", "mlp_ln"),
            ("encoder.layer_norm", "encoder.ln_post"),
            ("decoder.layer_norm", "decoder.ln"),
            ("self_attn", "attn"),
            ("encoder_attn", "cross_attn"),
            ("q_proj", "query"),
            ("k_proj", "key"),
            ("v_proj", "value"),
            ("out_proj", "out"),
            ("fc1", "mlp.0"),
            ("fc2", "mlp.2"),
            ("embed_positions.weight", "positional_embedding"),
            ("embed_tokens", "token_embedding"),
        ]
        state = {}
        for name, tensor in load_file(folder / "model.safetensors").items():
            for theirs, ours in names:
                name = name.replace(theirs, ours)
            state[name] = tensor.float()
        model = openai.model.Whisper(dims)
        missing, surplus = model.load_state_dict(state, strict=False)
        assert not missing and not surplus, (missing, surplus)
        heads = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
        for layer, head in self.rules["alignment_heads"]:
            heads[layer, head] = True
        model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
        return model.eval()

    def mel(self, samples):
        return self.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features  # [1, 80, 3000]

    def greedy(self, encoded):
        """Every token with the published rules applied by transformers' own processors, and the raw logits."""
        begin = len(self.prompt)
        rules = LogitsProcessorList(
            [
                SuppressTokensLogitsProcessor(self.rules["suppress_tokens"]),
                SuppressTokensAtBeginLogitsProcessor(self.rules["begin_suppress_tokens"], begin),
                WhisperTimeStampLogitsProcessor(self.net.generation_config, begin),
            ]
        )
        ids, raw = list(self.prompt), []
        while len(ids) < begin + MAX_NEW_TOKENS and (len(ids) == begin or ids[-1] != self.eot):
            tokens = torch.tensor([ids])
            logits = self.net(encoder_outputs=(encoded,), decoder_input_ids=tokens).logits[0, -1]
            raw.append(logits.numpy())
            ids.append(int(rules(tokens, logits[None].clone())[0].argmax()))
        return ids[begin:], np.stack(raw)

    def generated(self, mel):
        out = self.net.generate(mel, return_timestamps=True, do_sample=False, num_beams=1, **self.generate_options)
        return out[0].tolist()

    def languages(self, encoded):
        if not self.multilingual:
            return None
        logits = self.net(encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([[self.sot]])).logits[0, -1]
        codes = self.rules["lang_to_id"]
        probabilities = torch.softmax(logits[list(codes.values())].double(), 0)
        ranked = sorted(zip(codes, probabilities.tolist(), strict=True), key=lambda pair: -pair[1])
        return [[code.strip("<|>"), probability] for code, probability in ranked[:3]]

    def transcript(self, samples, **options):
        result = self.openai.transcribe(samples, language="en", temperature=0.0, fp16=False, **options)
        keep = ["start", "end", "text", "tokens", "avg_logprob", "compression_ratio", "no_speech_prob"]
        segments = []
        for segment in result["segments"]:
            kept = {key: segment[key] for key in keep}
            if "words" in segment:
                kept["words"] = [[w["word"], float(w["start"]), float(w["end"])] for w in segment["words"]]
            segments.append(kept)
        return {"text": result["text"], "segments": segments}

    def hugging_face_words(self, samples):
        recogniser = AutomaticSpeechRecognitionPipeline(
            model=self.net, feature_extractor=self.extractor, tokenizer=self.tokenizer, device="cpu"
        )
        raw = {"raw": samples, "sampling_rate": RATE}
        chunks = recogniser(raw, return_timestamps="word", generate_kwargs=dict(self.generate_options))["chunks"]
        return [[chunk["text"], *chunk["timestamp"]] for chunk in chunks]


def decoded(model, samples):
    """openai-whisper's greedy decoding of one window, with what its fallback rules look at."""
    mel = openai.log_mel_spectrogram(openai.pad_or_trim(samples))
    options = openai.DecodingOptions(language="en", temperature=0.0, fp16=False, sample_len=MAX_NEW_TOKENS)
    return openai.decode(model.openai, mel, options)


def clip(model, name, encoder, logits):
    samples = recording(name)
    mel = model.mel(samples)
    encoded = model.net.model.encoder(mel).last_hidden_state
    tokens, raw = model.greedy(encoded)
    result = decoded(model, samples)
    generated = model.generated(mel)
    generated = generated[len(model.prompt) :] if generated[: len(model.prompt)] == model.prompt else generated
    generated = [token for token in generated if token != model.eot]
    assert tokens[-1] == model.eot
    print(model.name, name, "generate:", generated == tokens[:-1], "openai:", result.tokens == tokens[:-1])
    encoder.append(encoded[0, ::ENCODER_FRAME_STEP, ::ENCODER_CHANNEL_STEP].numpy())
    raw = raw[:LOGITS_POSITIONS]
    logits.append(raw[:, ::LOGITS_STEP])
    tensor = torch.from_numpy(raw)
    values, ids = tensor.topk(TOP)
    entry = {
        "clip": name,
        "tokens": tokens,
        "text": model.tokenizer.decode(tokens, skip_special_tokens=True),
        "positions": len(raw),
        "top_ids": ids.tolist(),
        "top_logits": values.tolist(),
        "logsumexp": torch.logsumexp(tensor.double(), 1).tolist(),
        "transformers_generate_agrees": generated == tokens[:-1],
        "openai_decode_agrees": result.tokens == tokens[:-1],
        "avg_logprob": result.avg_logprob,
        "compression_ratio": result.compression_ratio,
        "no_speech_prob": result.no_speech_prob,
        "languages": model.languages(encoded),
    }
    if name in WORD_CLIPS:
        entry["openai_words"] = model.transcript(samples, word_timestamps=True)["segments"]
        entry["transformers_words"] = model.hugging_face_words(samples)
    return entry


def network(model):
    encoder, logits = [], []
    clips = [clip(model, name, encoder, logits) for name in CLIPS]
    floats(f"{model.name}.encoder.f32", encoder)
    floats(f"{model.name}.logits.f32", logits)
    silence = np.zeros(5 * RATE, np.float32)
    result = decoded(model, silence)
    gap = np.zeros(int(GAP_S * RATE), np.float32)
    joined = np.concatenate([part for name in CLIPS for part in (recording(name), gap)])
    write(
        f"{model.name}.json",
        {
            "prompt": model.prompt,
            "encoder_frame_step": ENCODER_FRAME_STEP,
            "encoder_channel_step": ENCODER_CHANNEL_STEP,
            "logits_step": LOGITS_STEP,
            "clips": clips,
            "silence": {
                "duration_s": 5.0,
                "tokens": result.tokens,
                "avg_logprob": result.avg_logprob,
                "no_speech_prob": result.no_speech_prob,
                "transcript": model.transcript(silence),
            },
            "long": {"clips": CLIPS, "gap_s": GAP_S, "samples": len(joined)} | model.transcript(joined),
        },
    )


def beams(models):
    """openai-whisper's beam search over the window of each clip, plain and with patience and a length penalty."""
    cases = []
    for model in models:
        for name in CLIPS:
            mel = openai.log_mel_spectrogram(openai.pad_or_trim(recording(name)))
            for patience, length_penalty in BEAM_SETTINGS:
                options = openai.DecodingOptions(
                    language="en",
                    temperature=0.0,
                    fp16=False,
                    sample_len=MAX_NEW_TOKENS,
                    beam_size=BEAM_SIZE,
                    patience=patience,
                    length_penalty=length_penalty,
                )
                result = openai.decode(model.openai, mel, options)
                case = {"model": model.name, "clip": name, "patience": patience, "length_penalty": length_penalty}
                cases.append(case | {"tokens": result.tokens, "avg_logprob": result.avg_logprob})
                print("beams", model.name, name, patience, length_penalty, result.text)
    write("beams.json", {"beam_size": BEAM_SIZE, "cases": cases})


def mel(model):
    """The front end is the same for every model."""
    sampled = []
    for name in CLIPS:
        samples = recording(name)
        values = model.mel(samples)[0].numpy()  # [80, 3000]
        theirs = openai.log_mel_spectrogram(openai.pad_or_trim(samples)).numpy()
        print("mel", name, "largest difference between the two references:", np.abs(values - theirs).max())
        sampled.append(values[::MEL_BIN_STEP, ::MEL_FRAME_STEP])
    floats("mel.f32", sampled)
    steps = {"bin_step": MEL_BIN_STEP, "frame_step": MEL_FRAME_STEP}
    write("mel.json", {"clips": CLIPS, "bins": 80, "frames": 3000} | steps)


def alignment():
    """openai-whisper's median filter and dynamic time warping on small matrices that both sides build alike."""
    cases = []
    for rows, columns, width in ((5, 12, 7), (9, 40, 7), (4, 3, 7), (3, 4, 7), (6, 6, 3), (1, 9, 7), (7, 1, 7)):
        row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
        wave_ = ((row * 37 + column * 11 + row * column * 5) % 64) / 64.0
        ridge = np.where(np.abs(column * rows - row * columns) < columns, 1.0, 0.0)
        matrix = (wave_ + ridge).astype(np.float32)
        filtered = median_filter(torch.from_numpy(matrix), width).numpy()
        text, time = dtw(torch.from_numpy(-matrix))
        cases.append(
            {
                "filter_width": width,
                "matrix": matrix.tolist(),
                "filtered": filtered.tolist(),
                "text_indices": text.tolist(),
                "time_indices": time.tolist(),
            }
        )
    write("alignment.json", {"cases": cases})


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    wanted = sys.argv[1:] or ["networks", "beams"]
    with torch.no_grad():
        models = [Model(name) for name in MODELS]
        if "networks" in wanted:
            alignment()
            mel(models[0])
            for model in models:
                network(model)
        if "beams" in wanted:
            beams(models)


if __name__ == "__main__":
    main()
