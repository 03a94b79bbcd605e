r"""Loads a running server with connections and prints figures as JSON. Needs Python 3.10 or later and no packages.

    izwi serve --port 8080 --max-connections 12000 --max-connections-per-peer 12000 \
        --header-timeout-s 60 --max-requests 600 --max-waiting-requests 600
    python3 scripts/faults/connections.py 127.0.0.1:8080 idle 10000
    python3 scripts/faults/connections.py 127.0.0.1:8080 streams 500
    python3 scripts/faults/connections.py 127.0.0.1:8080 resets 1000

`idle` opens connections that send nothing, `streams` requests speech at once, `resets` opens connections that are reset in
the middle of a request. Meanwhile `/livez` is asked again and again, each time on a new connection.
"""

import asyncio
import json
import resource
import socket
import struct
import sys
import time

TEXT = "The quick brown fox jumps over the lazy dog. "


def request(method, path, body=""):
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return (head + "\r\n" + body).encode()


async def ask(host, port, payload):
    """The status of a request, the seconds until its head came, and the bytes that followed."""
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(payload)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        waited = time.monotonic() - begun
        rest = await reader.read(-1)
        return int(head.split(b" ", 2)[1]), waited, len(rest), rest
    finally:
        writer.close()


async def probe(host, port, answers):
    while True:
        try:
            status, waited, _, _ = await asyncio.wait_for(ask(host, port, request("GET", "/livez")), 30)
            answers.append((status, waited))
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            answers.append((type(error).__name__, 30.0))
        await asyncio.sleep(0.05)


async def figures(host, port):
    _, _, _, page = await ask(host, port, request("GET", "/metrics"))
    wanted = ("process_resident_memory_bytes", "process_open_fds", "izwi_connections")
    lines = [line.rsplit(" ", 1) for line in page.decode().splitlines()]
    return {line[0]: float(line[1]) for line in lines if line[0].startswith(wanted)}


async def idle(host, port, count):
    streams = []
    for _ in range(count):
        streams.append(await asyncio.open_connection(host, port))
    await asyncio.sleep(1)
    held = await figures(host, port)
    for _, writer in streams:
        writer.close()
    return {"opened": len(streams), "while_open": held}


async def speech(host, port, count):
    body = json.dumps({"model": "tts-1", "input": TEXT, "response_format": "pcm", "live": False})
    payload = request("POST", "/v1/audio/speech", body)
    tasks = [asyncio.create_task(ask(host, port, payload)) for _ in range(count)]
    await asyncio.sleep(1)
    held = await figures(host, port)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    statuses = {}
    sizes = set()
    for answer in answers:
        key = type(answer).__name__ if isinstance(answer, BaseException) else str(answer[0])
        statuses[key] = statuses.get(key, 0) + 1
        if key == "200":
            sizes.add(answer[2])
    return {"statuses": statuses, "different_sizes": len(sizes), "while_open": held}


async def resets(host, port, count):
    body = json.dumps({"model": "tts-1", "input": TEXT})
    payload = request("POST", "/v1/audio/speech", body)
    for number in range(count):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(payload[: (number * 37) % (len(payload) + 1)])
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    return {"reset": count}


async def main():
    address, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    host, port = address.rsplit(":", 1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before, probes = await figures(host, port), []
    probing = asyncio.create_task(probe(host, port, probes))
    begun = time.monotonic()
    result = await {"idle": idle, "streams": speech, "resets": resets}[kind](host, port, count)
    seconds = time.monotonic() - begun
    await asyncio.sleep(3)
    probing.cancel()
    waits = sorted(waited for _, waited in probes)
    print(json.dumps({
        "kind": kind, "count": count, "seconds": round(seconds, 1), **result,
        "before": before, "after": await figures(host, port),
        "probes": {
            "sent": len(probes), "failed": sum(status != 200 for status, _ in probes),
            "median_s": round(waits[len(waits) // 2], 4), "longest_s": round(waits[-1], 4),
        },
    }, indent=1))


asyncio.run(main())
