"""Archives through Ray Data: runs that are killed, nodes that die, long recordings, files that nobody can read."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import soundfile
from conftest import ASR, OBJECT_STORE, RAY, SPEECH, TTS, silence
from ray.cluster_utils import Cluster

from izwi_ray import speak, transcribe
from izwi_ray.cli import main
from izwi_ray.run import Workers
from izwi_ray.speak import Voice
from izwi_ray.units import Options

LISTEN = ["--asr-model", ASR, "--no-pull"]


def rows(folder: Path) -> list[dict]:
    """What a reader of `DIR/*.parquet` gets, sorted."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return sorted(pa.concat_tables(tables).to_pylist(), key=lambda row: row["path" if "path" in row else "id"])


def committed(folder: Path) -> int:
    return len(list((folder / "_units").glob("*.parquet")))


def copies(clips: Path, folder: Path, count: int) -> Path:
    """`count` files with the sounds of the clips."""
    folder.mkdir()
    names = sorted(clips.glob("*.wav"))
    for number in range(count):
        shutil.copy(names[number % len(names)], folder / f"{number:04}.wav")
    return folder


def test_a_killed_run_is_resumed_without_loss_or_repetition(clips, tmp_path):
    files = copies(clips, tmp_path / "files", 60)
    command = [sys.executable, "-m", "izwi_ray.cli", "transcribe", str(files), "--model", ASR, "--words", "--izwi=--no-pull"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    run = [*command, "--output", str(killed)]
    child = subprocess.Popen(run, start_new_session=True, stderr=subprocess.DEVNULL)
    while committed(killed) < 20:
        assert child.poll() is None, "the run ended before it was killed"
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    before = committed(killed)
    assert 20 <= before < 60
    (killed / "_units/.tmp-left").write_bytes(b"half a file")
    second = subprocess.run(run, capture_output=True, text=True, check=True)
    # Its workers may still have committed a few before they noticed; nothing that was committed is done again.
    resumed = re.search(r"60 of 60 files, (\d+) of them before, 0 failed", second.stderr)
    assert resumed and before <= int(resumed[1]) < 60, second.stderr
    subprocess.run([*command, "--output", str(whole)], check=True, capture_output=True)
    assert rows(killed) == rows(whole)
    assert [row["path"] for row in rows(killed)] == [f"file://{files}/{number:04}.wav" for number in range(60)]
    assert committed(killed) == 0 and not (killed / "_units/.tmp-left").exists()
    third = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "60 of 60 files, 60 of them before, 0 failed" in third.stderr and rows(killed) == rows(whole)


def test_failures_are_rows_and_are_tried_again_on_request(clips, local_ray, tmp_path, capsys):
    files = copies(clips, tmp_path / "files", 5)
    (files / "0002.wav").write_bytes(b"this is no recording")
    output = tmp_path / "out"
    command = ["transcribe", str(files), "--output", str(output), "--model", ASR, "--izwi=--no-pull"]
    assert main(command) == 1
    assert "5 of 5 files, 0 of them before, 1 failed" in capsys.readouterr().err
    failed = pq.read_table(output / "failed.parquet").to_pylist()
    assert [row["path"].rsplit("/", 1)[1] for row in failed] == ["0002.wav"] and "415" in failed[0]["error"]
    assert [row["error"] is None for row in rows(output)] == [True, True, False, True, True]
    # It is known, and stays so until asked for.
    assert main(command) == 1
    assert "5 of 5 files, 5 of them before, 1 failed" in capsys.readouterr().err
    assert main([*command, "--retry-failed"]) == 1
    assert "5 of 5 files, 4 of them before, 1 failed" in capsys.readouterr().err
    shutil.copy(files / "0001.wav", files / "0002.wav")
    assert main([*command, "--retry-failed"]) == 0
    assert not (output / "failed.parquet").exists()
    assert [row["path"].rsplit("/", 1)[1] for row in rows(output)] == [f"{number:04}.wav" for number in range(5)]
    assert main([*command[:-1], "--workers", "0"]) == 2


def test_a_long_recording_is_cut_in_its_pauses_and_has_the_times_of_its_clips(local_ray, tmp_path):
    clips = [soundfile.read(path, dtype="int16") for path in sorted(SPEECH.glob("*.wav")) if "austen" in path.name][:4]
    rate, pause = clips[0][1], 3.0
    pieces, starts, at = [], [], 0.0
    for samples, clip_rate in clips:
        assert clip_rate == rate
        starts.append(at)
        pieces += [samples, silence(pause, rate)]
        at += len(samples) / rate + pause
    folder = tmp_path / "files"
    folder.mkdir()
    soundfile.write(folder / "long.flac", np.concatenate(pieces), rate)
    for number, (samples, _) in enumerate(clips):
        soundfile.write(folder / f"single-{number}.wav", np.concatenate([samples, silence(pause, rate)]), rate)
    limit = max(len(samples) for samples, _ in clips) / rate + pause + 1.0
    workers = Workers(count=2, cpus=1, arguments=LISTEN)
    long_options = Options(ASR, words=True, segment_s=limit, search_s=limit / 2)
    assert transcribe.run([f"{folder}/long.flac"], str(tmp_path / "long"), long_options, workers, False) == 0
    whole = Options(ASR, words=True)
    assert transcribe.run([f"{folder}/single-*.wav"], str(tmp_path / "single"), whole, workers, False) == 0
    [long] = rows(tmp_path / "long")
    singles = rows(tmp_path / "single")
    expected = [(word["word"], word["start"] + start) for row, start in zip(singles, starts, strict=True) for word in row["words"]]
    # Each cut lies somewhere in a pause, so a segment begins with other silence than its clip: a few words come out differently,
    # and times differ by little.
    found = [word["word"] for word in long["words"]]
    matches = SequenceMatcher(None, found, [word for word, _ in expected], autojunk=False).get_matching_blocks()
    pairs = [(long["words"][a + i], expected[b + i]) for a, b, size in matches for i in range(size)]
    assert len(pairs) >= 0.9 * len(expected), (found, expected)
    differences = sorted(abs(word["start"] - start) for word, (_, start) in pairs)
    assert differences[len(differences) // 2] <= 0.1 and differences[int(len(differences) * 0.9)] <= 0.4, differences
    times = [time for word in long["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times) and times[-1] <= long["duration_s"] == pytest.approx(at)
    texts = long["text"].split(), " ".join(row["text"] for row in singles).split()
    assert SequenceMatcher(None, *texts, autojunk=False).ratio() > 0.9, texts
    assert list((tmp_path / "long/_segments").iterdir()) == []


def test_texts_become_audio_and_equal_texts_equal_audio(local_ray, tmp_path):
    source = tmp_path / "texts.jsonl"
    lines = [{"id": f"line/{number}", "text": f"This is the line number {number % 3}."} for number in range(6)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    workers = Workers(cpus=1, arguments=["--model", TTS, "--asr-model", "none", "--no-pull"])
    voice = Voice(TTS, format="flac", seed=3)
    assert speak.run(str(source), str(tmp_path / "out"), voice, workers, False) == 0
    spoken = rows(tmp_path / "out")
    assert [row["id"] for row in spoken] == [line["id"] for line in lines]
    for row, twin in zip(spoken[:3], spoken[3:], strict=True):
        samples, rate = soundfile.read(tmp_path / "out" / row["audio_path"])
        assert rate == row["sample_rate"] and len(samples) / rate == row["duration_s"] and np.abs(samples).max() > 0.05
        assert 0.5 < row["duration_s"] < 10
        assert row["sha256"] == twin["sha256"] and row["audio_path"] != twin["audio_path"]


@pytest.mark.slow
def test_a_node_that_dies_amid_500_files_changes_nothing(clips, tmp_path):
    files = copies(clips, tmp_path / "files", 500)
    options = Options(ASR)
    workers = Workers(count=2, cpus=1, arguments=LISTEN)
    node = {"object_store_memory": OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **node})
    try:
        # One worker fits alongside the plan on the head, the other only on the node that dies; a third node takes its place.
        doomed = cluster.add_node(num_cpus=2, **node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        cluster.wait_for_nodes()
        output = tmp_path / "cluster"
        with pytest.MonkeyPatch.context() as patch:
            seen: list[int] = []
            original = transcribe.Progress.add

            def add(self, seconds: float, failed: bool) -> None:
                original(self, seconds, failed)
                seen.append(committed(output))
                if len(seen) == 100:
                    cluster.remove_node(doomed, allow_graceful=False)
                if len(seen) == 150:
                    cluster.add_node(num_cpus=2, **node)

            patch.setattr(transcribe.Progress, "add", add)
            assert transcribe.run([str(files)], str(output), options, workers, False) == 0
        assert seen[99] < 450, "the node died too late"
        alive = [entry for entry in ray.nodes() if entry["Alive"]]
        assert len(ray.nodes()) == 3 and len(alive) == 2
    finally:
        ray.shutdown()
        cluster.shutdown()
    ray.init(num_cpus=3, object_store_memory=OBJECT_STORE, **RAY)
    try:
        single = Workers(count=1, cpus=1, arguments=LISTEN)
        assert transcribe.run([str(files)], str(tmp_path / "single"), options, single, False) == 0
    finally:
        ray.shutdown()
    found, expected = rows(tmp_path / "cluster"), rows(tmp_path / "single")
    assert found == expected and len(found) == 500
    assert len({row["path"] for row in found}) == 500 and not any(row["error"] for row in found)


@pytest.mark.slow
def test_a_worker_whose_izwi_dies_again_and_again_loses_nothing(clips, local_ray, tmp_path):
    files = copies(clips, tmp_path / "files", 120)
    output = tmp_path / "out"
    killed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        original = transcribe.Progress.add
        count = [0]

        def add(self, seconds: float, failed: bool) -> None:
            original(self, seconds, failed)
            count[0] += 1
            if count[0] in (16, 48):
                found = izwi_below(os.getpid())
                killed.extend(found)
                for pid in random.sample(found, 1):
                    os.kill(pid, signal.SIGKILL)

        patch.setattr(transcribe.Progress, "add", add)
        assert transcribe.run([str(files)], str(output), Options(ASR), Workers(arguments=LISTEN), False) == 0
    assert killed and len(rows(output)) == 120 and not any(row["error"] for row in rows(output))


def izwi_below(parent: int) -> list[int]:
    """The Izwi processes among all descendants of a process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    table = [line.split(None, 2) for line in listed.splitlines()]
    below, grown = {parent}, True
    while grown:
        more = {int(pid) for pid, ppid, _ in table if int(ppid) in below} - below
        below, grown = below | more, bool(more)
    return [int(pid) for pid, _, name in table if int(pid) in below and name.startswith("izwi")]
