"""What the client takes and returns. Times are in seconds where a name has no unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

AudioFormat = Literal["mp3", "opus", "flac", "wav", "pcm", "ulaw", "alaw"]
StreamFormat = Literal["pcm", "pcm_f32", "wav", "mp3", "opus", "flac", "ulaw", "alaw"]
SubtitleFormat = Literal["srt", "vtt"]
Encoding = Literal["pcm_s16le", "mulaw", "alaw"]
Priority = Literal["low", "normal", "high"]


class SpeechOptions(TypedDict, total=False):
    """Options of speech; what is left out has the model's own value."""

    language: str
    instructions: str
    speed: float
    seed: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    max_tokens: int
    priority: Priority
    sample_rate: int
    bit_rate: int
    first_chunk_ms: int
    ref_audio: bytes
    ref_text: str
    x_vector_only_mode: bool


class TranscriptionOptions(TypedDict, total=False):
    """Options of a transcription; what is left out has the server's default."""

    prompt: str
    keywords: Sequence[str]
    languages: Sequence[str]
    temperature: float
    beam_size: int
    seed: int
    priority: Priority


class LiveOptions(TypedDict, total=False):
    """Options of a live transcription; what is left out has the server's default."""

    model: str
    language: str
    prompt: str
    encoding: Encoding
    latency_ms: int
    speakers: bool | str
    threshold: float
    prefix_padding_ms: int
    silence_duration_ms: int
    priority: Priority


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice; `id` is the value of `voice=`."""

    id: str
    name: str
    description: str
    owned_by: str
    default: bool
    models: tuple[str, ...]
    model: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A model; `id` is the value of `model=`. `None` is unknown until the model was loaded."""

    id: str
    state: str
    tasks: tuple[str, ...]
    default: bool
    languages: tuple[str, ...]
    sample_rate: int | None = None
    clones_voices: bool | None = None
    translates: bool | None = None


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Segment:
    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a recording. `words` is empty unless `word_times` was asked for."""

    text: str
    language: str
    duration: float
    segments: tuple[Segment, ...]
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Audio of an utterance: `samples` mono samples from `sample_offset` on, encoded in `data`."""

    data: bytes
    utterance: int
    seq: int
    sample_offset: int
    samples: int
    sample_rate: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class Utterance:
    """An utterance that ended."""

    utterance: int
    samples: int
    duration: float
    rtf: float
    ttfa_ms: float | None
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What the listener heard of the utterance, to the word, and the text that was not spoken."""

    played_ms: int
    text_spoken: str
    text_remaining: str
    approximate: bool


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """A turn of speech began."""

    turn: int
    at: float


@dataclass(frozen=True, slots=True)
class Partial:
    """What follows the committed text for now; the next one of the turn replaces it."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Text that follows what was committed before and never changes."""

    turn: int
    text: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn of speech ended; `text` is all of it."""

    turn: int
    text: str
    language: str | None
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one speaker says; speakers are `A`, `B` and so on in the order in which they were first heard."""

    speaker: str
    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TurnSpeakers:
    """Who says what was committed of a turn, which may have ended; replaces what was told of that turn before."""

    turn: int
    segments: tuple[Spoken, ...]


LiveEvent = SpeechStarted | Partial | Committed | TurnSpeakers | TurnEnd


def voice_of(fields: Mapping[str, Any]) -> Voice:
    return Voice(
        id=fields["id"],
        name=fields["name"],
        description=fields["description"],
        owned_by=fields["owned_by"],
        default=fields["default"],
        models=tuple(fields["models"]),
        model=fields.get("model"),
        language=fields.get("language"),
    )


def model_of(fields: Mapping[str, Any]) -> Model:
    return Model(
        id=fields["id"],
        state=fields["state"],
        tasks=tuple(fields["tasks"]),
        default=fields["default"],
        languages=tuple(fields["languages"]),
        sample_rate=fields.get("sample_rate"),
        clones_voices=fields.get("clones_voices"),
        translates=fields.get("translates"),
    )


def transcript_of(fields: Mapping[str, Any]) -> Transcript:
    """Of the body of `verbose_json`."""
    segments = fields.get("segments") or ()
    words = fields.get("words") or ()
    return Transcript(
        text=fields["text"],
        language=fields["language"],
        duration=fields["duration"],
        segments=tuple(Segment(each["text"], each["start"], each["end"]) for each in segments),
        words=tuple(Word(each["word"], each["start"], each["end"]) for each in words),
    )


def utterance_of(frame: Mapping[str, Any]) -> Utterance:
    return Utterance(
        utterance=frame["utterance"],
        samples=frame["samples"],
        duration=frame["duration_s"],
        rtf=frame["rtf"],
        ttfa_ms=frame.get("ttfa_ms"),
        finish_reason=frame["finish_reason"],
    )


def interrupted_of(frame: Mapping[str, Any]) -> Interrupted:
    return Interrupted(
        played_ms=frame["played_ms"],
        text_spoken=frame["text_spoken"],
        text_remaining=frame["text_remaining"],
        approximate=frame["approximate"],
    )


def live_event_of(frame: Mapping[str, Any]) -> LiveEvent | None:
    """The event of a frame; None for frames that are none."""
    match frame["type"]:
        case "speech.started":
            return SpeechStarted(frame["turn"], frame["at_ms"] / 1_000)
        case "partial":
            return Partial(frame["turn"], frame["text"])
        case "committed":
            words = frame.get("words") or ()
            spans = (Word(each["text"], each["start_ms"] / 1_000, each["end_ms"] / 1_000) for each in words)
            return Committed(frame["turn"], frame["text"], tuple(spans))
        case "turn.speakers":
            told = (
                Spoken(each["speaker"], each["text"], each["start_ms"] / 1_000, each["end_ms"] / 1_000)
                for each in frame["segments"]
            )
            return TurnSpeakers(frame["turn"], tuple(told))
        case "turn.end":
            start, end = frame["start_ms"] / 1_000, frame["end_ms"] / 1_000
            return TurnEnd(frame["turn"], frame["text"], frame.get("language"), start, end)
        case _:
            return None
