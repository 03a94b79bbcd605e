#!/usr/bin/env python3
"""How many of the table's readings are heard as they are: izwi speaks them, whisper-base transcribes them.

  normalise_round_trip.py IZWI NORMALISE [--every 5] [--model hibari]

NORMALISE is the example `normalise` of izwi-models, which turns the transcript into words as well. Sentences are compared
without case, hyphens and marks. Prints each sentence that is heard otherwise, and one line of JSON with the counts.
"""
import argparse, difflib, json, re, subprocess, tempfile
from collections import Counter
from pathlib import Path

TABLE = Path(__file__).parent.parent / "crates/izwi-models/src/text/normalise/cases.tsv"

parser = argparse.ArgumentParser()
parser.add_argument("izwi")
parser.add_argument("normalise")
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--model", default="hibari")
options = parser.parse_args()

rows = [line.split("\t") for line in TABLE.read_text().splitlines()]
rows = [row for row in rows if row[2] != "script"][:: options.every]
folder = tempfile.TemporaryDirectory()
work = Path(folder.name)
paths = [work / f"{at:04}.wav" for at in range(len(rows))]


def words(texts):
    done = subprocess.run([options.normalise], input="\n".join(texts) + "\n", capture_output=True, text=True, check=True)
    plain = (re.sub(r"[.'’]", "", line.lower()) for line in done.stdout.splitlines())
    return [re.sub(r"[^a-z ]+", " ", line).split() for line in plain]


def wrong(reference, heard):
    blocks = difflib.SequenceMatcher(None, reference, heard, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in blocks if kind != "equal")


for row, path in zip(rows, paths):
    command = [options.izwi, "say", "--model", options.model, "--seed", "1", "-o", str(path), "-"]
    subprocess.run(command, input=row[1], capture_output=True, text=True, check=True)
for start in range(0, len(paths), 100):
    command = [options.izwi, "transcribe", "--model", "whisper-base", "--language", "en", "-o", str(work)]
    subprocess.run([*command, *map(str, paths[start : start + 100])], capture_output=True, check=True)
transcripts = [" ".join(path.with_suffix(".txt").read_text().split()) for path in paths]

same, errors, kinds = 0, 0, Counter()
spoken, heard = words([row[1] for row in rows]), words(transcripts)
for row, reference, ours, transcript in zip(rows, spoken, heard, transcripts):
    if "".join(reference) == "".join(ours):
        same += 1
        continue
    errors += wrong(reference, ours)
    kinds[row[2]] += 1
    print(f"{row[2]}: {row[1]}\n  heard {transcript}")
print(json.dumps(dict(sentences=len(rows), heard=same, words=sum(map(len, spoken)), wrong_words=errors, kinds=kinds)))
