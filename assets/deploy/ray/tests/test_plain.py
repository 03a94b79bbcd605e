"""Parts without Ray: cutting, joining, the output folder, the autoscaling policy."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from izwi_ray import speak, transcribe
from izwi_ray.autoscaling import MOST_SLACK_MS, Load, load_of_reports, policy, replicas_needed
from izwi_ray.cut import cut_points, join, spans, window_energies
from izwi_ray.store import SEGMENTS, Store
from izwi_ray.units import Options, Recording, Unit, recordings

IDLE = Load(MOST_SLACK_MS, 0, 0)


def row(key: str, path: str, error: str | None = None) -> dict:
    return {**dict.fromkeys(transcribe.SCHEMA.names), "key": key, "path": path, "text": "a", "error": error}


def test_cuts_lie_in_the_silence_before_the_limit():
    rate = 1000
    samples = np.random.default_rng(1).normal(0, 0.3, 50 * rate).astype("float32")
    for pause in (8, 19, 27, 41):
        samples[pause * rate : pause * rate + 500] = 0
    points = cut_points(lambda a, b: window_energies(samples[a:b], rate), len(samples), rate, 12, 5)
    # Each pause lies in the last five seconds of its segment; after 27 s there is none within reach.
    assert points[0] in range(8000, 8500) and points[1] in range(19000, 19500) and points[2] in range(27000, 27500)
    cuts = list(spans(points, len(samples)))
    assert cuts[0][0] == 0 and cuts[-1][1] == len(samples)
    assert all(a[1] == b[0] for a, b in zip(cuts, cuts[1:], strict=False))
    assert all(stop - start <= 12 * rate for start, stop in cuts)


def test_sound_without_a_pause_is_cut_within_the_limit_and_always_alike():
    samples = np.full(100_000, 0.5, dtype="float32")
    energies = lambda a, b: window_energies(samples[a:b], 1000)  # noqa: E731
    points = cut_points(energies, len(samples), 1000, 10, 60)
    assert points == cut_points(energies, len(samples), 1000, 10, 60)
    assert all(0 < stop - start <= 10_000 for start, stop in spans(points, len(samples)))


def test_joined_times_rise_and_stay_within_their_segment():
    part = lambda end: {  # noqa: E731
        "language": "english", "text": " one two ", "words": None,
        "segments": [{"start": 0.0, "end": 1.0, "text": " one"}, {"start": 0.9, "end": end, "text": " two"}],
    }
    joined = join([part(2.5), part(1.5)], [0.0, 2.0], 4.0)
    assert [(item["start"], item["end"]) for item in joined["segments"]] == [(0, 1), (1, 2), (2, 3), (3, 3.5)]
    assert joined["text"] == "one two one two" and joined["words"] is None and joined["duration_s"] == 4.0


def test_keys_change_with_everything_that_a_result_depends_on():
    recording = Recording("a", 1, "m", Options("w"))
    others = [
        dataclasses.replace(recording, **change)
        for change in ({"path": "b"}, {"size": 2}, {"mark": "n"}, {"options": Options("v")}, {"options": Options("w", words=True)})
    ]
    assert len({other.key() for other in [recording, *others]}) == 6
    unit = Unit("k", "a", 0, 2, 0, 10, 100)
    assert unit.key() != dataclasses.replace(unit, index=1).key()
    assert Unit.of_row(unit.row()) == unit and Unit("k", "a").key() == "k"


@pytest.mark.parametrize("where", ["local", "memory"])
def test_results_are_published_once_from_every_state_that_a_kill_leaves(where, tmp_path, monkeypatch):
    store = Store(str(tmp_path) if where == "local" else f"memory://{tmp_path.name}", transcribe.SCHEMA)
    store.prepare()
    paths = lambda: sorted(store.table()["path"].to_pylist())  # noqa: E731
    store.commit("k1", row("k1", "a"))
    store.commit("k1", row("k1", "a"))
    store.commit("k2", row("k2", "b", "no sound"))
    store.commit("s1", row("s1", "long"), SEGMENTS)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    # The part has its name, and its units are still there.
    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", lambda self, keys, *rest: dies() if list(keys) else None)
        with pytest.raises(KeyboardInterrupt):
            store.publish()
    assert paths() == ["a", "b"] and store.units() == {"k1", "k2"}
    assert store.publish() == {"k2"}
    assert paths() == ["a", "b"] and store.units() == {"k2"} and store.units(SEGMENTS) == set()
    # A failure that succeeds later moves; what is published stays where it is.
    store.forget_failures()
    store.commit("k2", row("k2", "b"))
    assert store.publish() == set() and paths() == ["a", "b"]
    assert store.published() == {"k1", "k2"} and store.publish() == set() and paths() == ["a", "b"]


def test_half_written_files_are_removed_and_readers_do_not_see_units(tmp_path):
    store = Store(str(tmp_path), transcribe.SCHEMA)
    store.prepare()
    (tmp_path / "_units/.tmp-1").write_bytes(b"half")
    store.commit("k1", row("k1", "a"))
    assert store.units() == {"k1"}
    store.publish()
    store.commit("k3", row("k3", "c"))
    store.prepare()
    assert not (tmp_path / "_units/.tmp-1").exists()
    assert pq.read_table(tmp_path)["path"].to_pylist() == ["a"]


def test_archives_are_listed_from_any_file_system(tmp_path):
    for name in ("b.wav", "a.wav", "c.txt", ".hidden.wav"):
        (tmp_path / name).write_bytes(b"x")
    options = Options("w")
    found = recordings([f"{tmp_path}/*.wav", f"{tmp_path}/a.wav"], options)
    assert [recording.path.rsplit("/", 1)[1] for recording in found] == ["a.wav", "b.wav"]
    assert len(recordings([str(tmp_path)], options)) == 3
    import fsspec

    fsspec.filesystem("memory").pipe_file("/archive/x.wav", b"12")
    [recording] = recordings(["memory://archive/*.wav"], options)
    assert recording.path == "memory:///archive/x.wav" and recording.size == 2 and recording.mark
    with pytest.raises(FileNotFoundError):
        recordings([f"{tmp_path}/none.wav"], options)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "id,text\nx,Hello.\ny,You.\n"), ("a.jsonl", '{"id":"x","text":"Hello."}\n{"id":"y","text":"You."}\n')],
)
def test_texts_are_read_from_tables(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert speak.texts(str(tmp_path / name)) == [{"id": "x", "text": "Hello."}, {"id": "y", "text": "You."}]
    (tmp_path / name).write_text(text.replace("y", "x"))
    with pytest.raises(ValueError, match="'x' more than once"):
        speak.texts(str(tmp_path / name))


def test_lines_get_their_number_and_every_id_its_own_file(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nThree.\n")
    assert [row["id"] for row in speak.texts(str(tmp_path / "a.txt"))] == ["000001", "000003"]
    names = [speak._name(name, "wav") for name in ("a", "../a", "a/b", "a%2Fb", ".", "x" * 300)]
    assert len(set(names)) == 6 and all(name.count("/") == 1 and len(name) < 120 for name in names)


@pytest.mark.parametrize(
    ("current", "ongoing", "loads", "expected"),
    [
        (2, 0, [IDLE, IDLE], 0),  # Serve's bounds make it the least
        (1, 9, [IDLE], 3),  # by requests alone
        (2, 2, [Load(100, 0, 0), IDLE], 3),  # a stream comes close to a gap
        (2, 2, [Load(5000, 0.2, 0), Load(5000, 0, 3)], 4),  # one refuses, one lets wait
        (3, 1, [Load(1000, 0, 0), IDLE, IDLE], 3),  # not ample: nothing is taken away
        (1, 9, [Load(100, 0, 0)], 3),
        (1, 3, [], 1),
    ],
)
def test_replicas_follow_requests_and_slack(current, ongoing, loads, expected):
    assert replicas_needed(current, ongoing, 4.0, loads) == expected


def test_the_policy_reads_what_serve_gives_it():
    config = SimpleNamespace(get_target_ongoing_requests=lambda: 4.0)
    metrics = {"slack_ms": {"r1": 100.0, "r2": 9000.0}, "refused": {"r1": 0.0}, "waiting": {}}
    context = SimpleNamespace(target_num_replicas=2, total_num_requests=3, config=config, aggregated_metrics=metrics)
    assert policy(context) == (3, {})


def test_a_load_is_read_from_izwis_reports():
    health = {"models": {"a": {"state": "ready", "streams": [{"slack_ms": 900}, {"slack_ms": 250}]}, "b": {"state": "unloaded"}}}
    metrics = 'izwi_num_requests_waiting{model="a"} 2\nizwi_requests_rejected_total{reason="saturated"} 5\n'
    assert load_of_reports(health, metrics, 3.0) == (Load(250.0, 2.0, 2.0), 5.0)
    # A process that was started again counts from zero.
    assert load_of_reports({}, metrics, 9.0)[0] == Load(MOST_SLACK_MS, 5.0, 2.0)
