"""The command `izwi-ray`."""

import argparse
import os
import sys
from collections.abc import Sequence

from izwi_ray.process import IzwiError
from izwi_ray.run import Workers
from izwi_ray.speak import Voice
from izwi_ray.units import Options


def parser() -> argparse.ArgumentParser:
    """Its arguments."""
    top = argparse.ArgumentParser("izwi-ray", description="Izwi on a Ray cluster: RAY_ADDRESS, or this machine")
    commands = top.add_subparsers(dest="command", required=True)

    serve = commands.add_parser("serve", help="run the Serve application until it is interrupted")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--min-replicas", type=int, default=1)
    serve.add_argument("--max-replicas", type=int, default=4)
    serve.add_argument("--target-ongoing-requests", type=float, default=8.0)
    serve.add_argument("--cpus", type=float, default=1.0, help="cores of a replica, and threads of its Izwi")
    serve.add_argument("--gpus", type=float, default=0.0)
    _izwi(serve)

    transcribe = commands.add_parser("transcribe", help="transcribe an archive of recordings into Parquet")
    transcribe.add_argument("inputs", nargs="+", metavar="INPUT", help="file, folder or pattern of any fsspec file system")
    transcribe.add_argument("--model", required=True)
    transcribe.add_argument("--language")
    transcribe.add_argument("--prompt")
    transcribe.add_argument("--words", action="store_true", help="add word times")
    transcribe.add_argument("--segment-s", type=float, default=600.0, help="longer recordings are cut at silence")
    _work(transcribe)

    speak = commands.add_parser("speak", help="speak the texts of a file")
    speak.add_argument("input", metavar="INPUT", help="rows id, text: .csv, .jsonl or .parquet; or the lines of a .txt")
    speak.add_argument("--model", required=True)
    speak.add_argument("--voice")
    speak.add_argument("--language")
    speak.add_argument("--seed", type=int, default=0)
    speak.add_argument("--speed", type=float, default=1.0)
    speak.add_argument("--format", choices=["wav", "flac", "opus"], default="wav")
    speak.add_argument("--embed", action="store_true", help="audio in the rows instead of files in audio/")
    _work(speak)
    return top


def _izwi(command: argparse.ArgumentParser) -> None:
    command.add_argument("--izwi", action="append", default=[], metavar="FLAG", help="flag of izwi serve, like --izwi=--device=cpu")


def _work(command: argparse.ArgumentParser) -> None:
    command.add_argument("--output", required=True, metavar="DIR", help="folder of any fsspec file system")
    command.add_argument("--workers", type=int, default=1)
    command.add_argument("--cpus", type=float, default=1.0, help="cores of a worker, and threads of its Izwi")
    command.add_argument("--gpus", type=float, default=0.0)
    command.add_argument("--parallel", type=int, default=4, help="requests that a worker has open at a time")
    command.add_argument("--server", help="ask this server instead of a process per worker; its key is IZWI_API_KEY")
    command.add_argument("--retry-failed", action="store_true", help="try again what failed before")
    command.add_argument("--quiet", action="store_true", help="no progress")
    _izwi(command)


def _workers(given: argparse.Namespace) -> Workers:
    if given.workers < 1 or given.parallel < 1 or given.cpus <= 0:
        raise ValueError("--workers and --parallel are at least 1, --cpus is above 0")
    key = os.environ.get("IZWI_API_KEY") if given.server else None
    flags = ["--model" if given.command == "speak" else "--asr-model", given.model]
    flags = [*flags, *(["--asr-model", "none"] if given.command == "speak" else []), *given.izwi]
    return Workers(
        given.workers, given.cpus, given.gpus, given.parallel, 2 * given.parallel, given.server, key, flags
    )


def _run(given: argparse.Namespace) -> int:
    if given.command == "serve":
        from izwi_ray import serve_app

        args = {name: getattr(given, name) for name in ("min_replicas", "max_replicas", "target_ongoing_requests", "cpus", "gpus")}
        key = os.environ.get("IZWI_API_KEY")
        serve_app.run({**args, "arguments": given.izwi, "api_key": key}, given.host, given.port)
        return 0
    if given.command == "transcribe":
        from izwi_ray import transcribe

        options = Options(given.model, given.language, given.prompt, given.words, given.segment_s, min(60.0, given.segment_s / 2))
        failures = transcribe.run(given.inputs, given.output, options, _workers(given), given.retry_failed, given.quiet)
    else:
        from izwi_ray import speak

        voice = Voice(given.model, given.voice, given.language, given.seed, given.speed, given.format, given.embed)
        failures = speak.run(given.input, given.output, voice, _workers(given), given.retry_failed, given.quiet)
    return 1 if failures else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. The exit status is 1 where something failed, 2 where the arguments cannot be used, 130 where it was
    interrupted."""
    given = parser().parse_args(arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:
        return 130
    except (IzwiError, ValueError, OSError) as error:
        print(f"izwi-ray: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
