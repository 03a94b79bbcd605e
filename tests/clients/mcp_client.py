"""Speaks and listens through the Model Context Protocol with the real `mcp` package, as an agent does.

usage: mcp_client.py IZWI BASE_URL KEY FOLDER RECORDING WORD HEARD

IZWI is the program, whose environment has a model store and a microphone. BASE_URL and KEY are those of a running server.
RECORDING is a WAV file whose transcript by the default ASR model has WORD in it, and the first turn that the microphone hears HEARD.
Exits with a traceback at the first deviation from the protocol; prints one line for each check that passed.
"""

import asyncio
import base64
import faulthandler
import io
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import wave
from pathlib import Path

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

IZWI, BASE_URL, KEY, FOLDER, RECORDING, WORD, HEARD = sys.argv[1:]
LONG = "The quick brown fox jumps over the lazy dog. " * 90
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def text_of(result) -> str:
    assert not result.is_error, result
    return result.content[0].text


async def refused(client: Client, part: str, name: str, arguments: dict) -> None:
    result = await client.call_tool(name, arguments)
    assert result.is_error and part in result.content[0].text, (part, result)


def seconds_of(wav) -> float:
    with wave.open(wav) as audio:
        assert audio.getnchannels() == 1
        return audio.getnframes() / audio.getframerate()


def running() -> int:
    with urllib.request.urlopen(f"{BASE_URL}/health") as answer:
        return sum(model.get("running", 0) for model in json.load(answer)["models"].values())


async def is_left(client: Client, arguments: dict) -> None:
    """Cancels a long speech once it runs: the server's engine stops too."""
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "speak", {"text": LONG, **arguments})
        while not running():
            await anyio.sleep(0.05)
        group.cancel_scope.cancel()
    while running():
        await anyio.sleep(0.05)


async def check_lists(client: Client, names: set[str]) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == names, tools
    assert tools["speak"].input_schema["required"] == ["text"], tools["speak"]
    lists = (await client.call_tool("voices", {})).structured_content
    assert any(voice["name"] == "heart" for voice in lists["voices"]), lists
    assert any("asr" in model["tasks"] for model in lists["models"]), lists
    await refused(client, "there is no tool 'sing'", "sing", {})
    await refused(client, "missing field `text`", "speak", {})
    await refused(client, "unknown field `txt`", "speak", {"text": "a", "txt": "b"})
    await refused(client, "voice 'nobody'", "speak", {"text": "a", "voice": "nobody"})
    await refused(client, "text has more than 4096 characters", "speak", {"text": "a" * 4_097})
    await refused(client, "speed", "speak", {"text": "a", "speed": 9})
    await refused(client, "model 'nothing' is unknown", "speak", {"text": "a", "model": "nothing"})


async def check_transcripts(client: Client, recording: dict) -> None:
    assert WORD in text_of(await client.call_tool("transcribe", {**recording, "language": "en"}))
    timed = (await client.call_tool("transcribe", {**recording, "words": True})).structured_content
    word = next(word for word in timed["words"] if WORD in word["word"])
    assert 0 < word["start"] < word["end"] < 11, timed
    await refused(client, "ask for one of them", "transcribe", {**recording, "words": True, "speakers": True})
    await refused(client, "is missing", "transcribe", {})


async def check_stdio(mode: str, port: str | None) -> None:
    """The tools of `izwi mcp`, which loads models of its own, or uses a server that runs on `port`."""
    log = open(Path(FOLDER, "log"), "w+")
    environment = {**os.environ, **({"IZWI_PORT": port} if port else {})}
    server = StdioServerParameters(command=IZWI, args=["mcp", "--no-pull"], env=environment, cwd=FOLDER)
    async with Client(stdio_client(server, errlog=log), mode=mode) as client:
        await check_lists(client, {"speak", "transcribe", "listen_once", "voices"})
        await check_transcripts(client, {"path": RECORDING})
        await refused(client, "cannot read", "transcribe", {"path": "nothing.wav"})
        await refused(client, "has no extension", "speak", {"text": "a", "output": "plain"})
        await refused(client, "is a device", "speak", {"text": "a", "output": "/dev/null"})

        told = text_of(await client.call_tool("speak", {"text": "Good morning.", "output": "a.wav"}))
        seconds = seconds_of(f"{FOLDER}/a.wav")
        assert told == f"{seconds:.2f} s of speech are in {os.path.realpath(FOLDER)}/a.wav" and seconds > 0.5, told
        told = text_of(await client.call_tool("speak", {"text": "Good morning.", "speed": 1.5}))
        assert told.endswith("s of speech were played"), told
        assert Path(FOLDER, "played.raw").stat().st_size > 10_000

        progress = []

        async def note(done: float, total: float | None, message: str | None) -> None:
            progress.append(done)

        heard = text_of(await client.call_tool("listen_once", {"seconds": 60}, progress_callback=note))
        assert HEARD in heard, heard
        assert progress == sorted(set(progress)) and progress, progress
        await refused(client, "give 1 to 600", "listen_once", {"seconds": 0})
        if port:
            await is_left(client, {"output": "b.wav"})
        else:
            with anyio.move_on_after(2):
                await client.call_tool("speak", {"text": LONG, "output": "b.wav"})
        # The tools still work, and nothing is left of what was cancelled.
        text_of(await client.call_tool("speak", {"text": "Hello.", "output": "c.wav"}))
        assert not list(Path(FOLDER).glob("b.wav*")), list(Path(FOLDER).iterdir())
    log.seek(0)
    assert ("uses the server on" in log.read()) == bool(port)
    print(f"passed: tools over standard input and output, {mode}, {'a server' if port else 'no server'}")


async def check_http(mode: str) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as http:
        transport = streamable_http_client(f"{BASE_URL}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            await check_lists(client, {"speak", "transcribe", "voices"})
            audio = base64.b64encode(Path(RECORDING).read_bytes()).decode()
            await check_transcripts(client, {"audio": audio})
            await refused(client, "audio", "transcribe", {"audio": "AAAA"})

            async def note(done: float, total: float | None, message: str | None) -> None:
                pass

            result = await client.call_tool("speak", {"text": "Good morning. " * 30}, progress_callback=note)
            assert not result.is_error and result.content[0].mime_type == "audio/wav", result
            assert seconds_of(io.BytesIO(base64.b64decode(result.content[0].data))) > 20
            await refused(client, "more than 8388608 bytes", "speak", {"text": LONG})
            await is_left(client, {})
    print(f"passed: tools over HTTP, {mode}")


def answer(method: str, body: bytes, headers: dict) -> tuple[int, str]:
    request = urllib.request.Request(f"{BASE_URL}/mcp", data=body or None, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def check_http_refusals() -> None:
    key = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
    plain = {**key, "Content-Type": "application/json"}
    initialize = json.dumps(INITIALIZE).encode()
    assert answer("POST", initialize, plain)[0] == 200
    for status, method, body, headers in [
        (401, "POST", initialize, {**plain, "Authorization": "Bearer wrong"}),
        (403, "POST", initialize, {**plain, "Origin": "https://elsewhere.example"}),
        (403, "POST", initialize, {**plain, "Host": "elsewhere.example"}),
        (405, "GET", b"", key),
        (405, "DELETE", b"", key),
        (415, "POST", initialize, {**key, "Content-Type": "text/plain"}),
        (400, "POST", initialize, {**plain, "Accept": "text/html"}),
        (400, "POST", b"{", plain),
        (400, "POST", b"[]", plain),
        (400, "POST", b"", plain),
    ]:
        got, told = answer(method, body, headers)
        assert got == status and json.loads(told)["error"]["message"], (status, got, told)
    print("passed: refusals over HTTP")


def check_garbage() -> None:
    """What is no message is skipped, standard output has the protocol alone, and a client that leaves ends the process."""
    lines = [b"\xff\xfe garbage", b"{", b"[1, 2]", b"null", b'{"jsonrpc":"2.0"}', b'"' + b"x" * 1_000_000]
    wanted = [
        json.dumps(INITIALIZE).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        *lines,
        b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}',
    ]
    for start in [lines, []]:
        process = subprocess.Popen(
            [IZWI, "mcp", "--no-pull"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=FOLDER
        )
        out, err = process.communicate(b"\n".join([*start, *wanted, b""]), timeout=120)
        answers = [json.loads(line) for line in out.splitlines()]
        assert process.returncode == 0, (process.returncode, out, err)
        by_id = {message.get("id"): message for message in answers}
        assert start or by_id[1]["result"]["serverInfo"]["name"] == "izwi", answers
        assert start or len(by_id[2]["result"]["tools"]) == 4, answers
    for leaves in [b"", json.dumps(INITIALIZE).encode()[:20]]:
        done = subprocess.run([IZWI, "mcp", "--no-pull"], input=leaves, capture_output=True, cwd=FOLDER, timeout=120)
        assert done.returncode == 0 and done.stdout == b"", done
    # A client that leaves while a tool works: longer than the 5 s which rmcp leaves a tool to answer.
    speak = {"name": "speak", "arguments": {"text": LONG * 16, "output": "d.wav"}}
    wanted[-1] = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": speak}).encode()
    done = subprocess.run(
        [IZWI, "mcp", "--no-pull"], input=b"\n".join([*wanted, b""]), capture_output=True, cwd=FOLDER, timeout=120
    )
    assert done.returncode == 0 and not list(Path(FOLDER).glob("d.wav*")), done
    print("passed: garbage is skipped, and the process ends with its client")


async def main() -> None:
    for mode in ["auto", "legacy"]:
        await check_http(mode)
    check_http_refusals()
    await check_stdio("auto", None)
    await check_stdio("legacy", BASE_URL.rsplit(":", 1)[1])
    check_garbage()


faulthandler.dump_traceback_later(420, exit=True)
asyncio.run(main())
