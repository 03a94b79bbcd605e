"""Long recordings: where they are cut, and how the transcripts of their segments are joined."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

#: Length of the windows whose energy is compared.
WINDOW_S = 0.1


def cut_points(
    energies: Callable[[int, int], np.ndarray], frames: int, rate: int, segment_s: float, search_s: float
) -> list[int]:
    """The samples at which a recording of `frames` samples is cut, each in the middle of a quiet window.

    A segment ends at the quietest window within the last `search_s` of its `segment_s`. `energies(start, stop)` gives the energy
    of each whole window of a range. Same recording, same cuts.
    """
    limit, window = int(segment_s * rate), max(1, int(WINDOW_S * rate))
    search = min(int(search_s * rate), limit // 2)
    points: list[int] = []
    start = 0
    while frames - start > limit:
        earliest = start + limit - search
        loudness = energies(earliest, start + limit)
        # Of equal ones the last: segments are as long as may be.
        quietest = len(loudness) - 1 - int(np.argmin(loudness[::-1])) if len(loudness) else 0
        start = earliest + quietest * window + window // 2
        points.append(start)
    return points


def window_energies(samples: np.ndarray, rate: int) -> np.ndarray:
    """Mean square of each whole window. Smoothed over three, so that silence counts more than a gap within a word."""
    window = max(1, int(WINDOW_S * rate))
    mono = samples.mean(axis=1) if samples.ndim == 2 else samples
    whole = len(mono) // window * window
    energy = (mono[:whole].astype(np.float64).reshape(-1, window) ** 2).mean(axis=1)
    padded = np.pad(energy, 1, mode="edge") if len(energy) else energy
    return (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4 if len(energy) else energy


def spans(points: Sequence[int], frames: int) -> Iterator[tuple[int, int]]:
    """First and last sample of each segment."""
    bounds = [0, *points, frames]
    yield from zip(bounds[:-1], bounds[1:], strict=True)


def join(parts: Sequence[dict[str, Any]], offsets: Sequence[float], duration_s: float) -> dict[str, Any]:
    """One transcript of those of consecutive segments, which start at `offsets`. Times rise and do not overlap."""
    ends = [*offsets[1:], duration_s]
    texts = [part["text"].strip() for part in parts]
    first = next((part for part in parts if part["text"].strip()), parts[0])
    words = None if any(part["words"] is None for part in parts) else _shift(parts, offsets, ends, "words")
    return {
        "duration_s": duration_s,
        "language": first["language"],
        "text": " ".join(text for text in texts if text),
        "segments": _shift(parts, offsets, ends, "segments"),
        "words": words,
    }


def _shift(
    parts: Sequence[dict[str, Any]], offsets: Sequence[float], ends: Sequence[float], field: str
) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    last = 0.0
    for part, offset, end in zip(parts, offsets, ends, strict=True):
        for item in part[field] or []:
            # A model may place the last word after the end of its segment.
            start = min(max(item["start"] + offset, last), end)
            last = min(max(item["end"] + offset, start), end)
            joined.append({**item, "start": round(start, 3), "end": round(last, 3)})
    return joined
