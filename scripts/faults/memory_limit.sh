#!/usr/bin/env bash
# Runs the server in a cgroup with a memory limit and asks for more than fits: speech, transcriptions by two models, twelve
# at once. Needs root and the memory controller of cgroup v1 or v2. The server must be alive at the end.
#
# usage: scripts/faults/memory_limit.sh MIB PROGRAM [OPTION_OF_SERVE...]
set -euo pipefail
mib=$1 program=$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
port=18099
url=http://127.0.0.1:$port
folder=$(mktemp -d)
if [ -d /sys/fs/cgroup/memory ]; then
    group=/sys/fs/cgroup/memory/izwi-fault limit=memory.limit_in_bytes
else
    group=/sys/fs/cgroup/izwi-fault limit=memory.max
fi
mkdir -p "$group"
echo $((mib << 20)) >"$group/$limit"
bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' _ "$group" "$program" serve --port $port "$@" >"$folder/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rmdir "$group"; rm -r "$folder"' EXIT

for _ in $(seq 30); do
    curl -sf -o /dev/null "$url/readyz" && break
    sleep 1
done
echo "limit $mib MiB: $(curl -s "$url/readyz")"

post() { curl -s -m 120 -o /dev/null -w "%{http_code} " -H 'content-type: application/json' "$url/v1/audio/$1" -d "$2"; }
transcribe() { post transcriptions "@$folder/$1.json"; }
for model in whisper-1 whisper-tiny.en; do
    printf '{"model":"%s","audio":"%s"}' $model "$(base64 -w0 "$root/assets/speech/jfk.wav")" >"$folder/$model.json"
    post speech '{"model":"tts-1","input":"The memory of this machine is small.","response_format":"wav"}'
    transcribe $model
    transcribe $model
done
echo
requests=()
for _ in $(seq 12); do
    transcribe whisper-1 &
    requests+=($!)
done
wait "${requests[@]}"
echo
curl -sf "$url/livez"
echo
