#!/usr/bin/env python3
"""Compiles .metal sources into shared objects for this CPU.

    build.py OUT --sources FOLDER [--sources FOLDER ...] [--only NAME ...] [--jobs N]

The compiler is `$EMU_CXX`, by default the `ziglang` package of the Python that runs this script. Each source is one
text without includes of its own. Its object is named by the FNV-1a hash of that text: the stand-in for objc2-metal finds
it by the text that a program hands to Metal, so a shader that changed is never mistaken for the old one. What OUT has
already is left alone: use one OUT for each version of this folder and of the compiler.
"""

import argparse, concurrent.futures, os, pathlib, platform, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent


def fnv1a(data: bytes) -> str:
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def compiler():
    return os.environ["EMU_CXX"].split() if "EMU_CXX" in os.environ else [sys.executable, "-m", "ziglang", "c++"]


# Rounding is the point: no contraction into fused operations unless EMU_CONTRACT asks for it, 16-bit types rounded after every operation as the GPU does.
# Threads of a simdgroup meet inside helper functions, hence -fconvergent-functions.
FLAGS = [
    "-std=gnu++17",
    "-w",
    f"-I{HERE}",
    "-fPIC",
    "-fvisibility=hidden",
    f"-ffp-contract={os.environ.get('EMU_CONTRACT', 'off')}",
    "-fno-sanitize=all",
    "-fno-strict-aliasing",
    "-fconvergent-functions",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-march=x86_64_v3",
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--sources", type=pathlib.Path, action="append", required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args()


def main():
    if platform.machine() != "x86_64":
        sys.exit("runtime.cpp switches fibers with x86-64 assembly; another machine needs its own emu_switch")
    asked = arguments()
    out = asked.out.resolve()
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "EMU_CXX": " ".join(compiler())}
    for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        env.setdefault(name, str(out / "zig-cache"))

    def run(*command):
        subprocess.run([str(word) for word in command], check=True, env=env)

    # utils.metal of candle has no kernel.
    paths = [path for folder in asked.sources for path in sorted(folder.glob("*.metal")) if path.stem != "utils"]
    if asked.only is not None:
        if unknown := set(asked.only) - {path.stem for path in paths}:
            sys.exit(f"no source is named {', '.join(sorted(unknown))}")
        paths = [path for path in paths if path.stem in asked.only]
    missing = {fnv1a(path.read_bytes()): path for path in paths}
    missing = {key: path for key, path in missing.items() if not (out / f"{key}.so").exists()}
    if not missing:
        return
    runtime = work / "runtime.o"
    if not runtime.exists():
        partial = work / f"runtime.{os.getpid()}.o"
        run(*compiler(), *FLAGS, "-O2", "-c", "-o", partial, HERE / "runtime.cpp")
        partial.rename(runtime)

    def build(key, path):
        start = time.time()
        cpp, obj, partial = (work / f"{key}{end}" for end in (".cpp", ".o", ".so"))
        run(sys.executable, HERE / "msl2cpp.py", path, cpp)
        run(*compiler(), *FLAGS, "-O1", "-c", "-o", obj, cpp)
        run(*compiler(), "-shared", "-o", partial, obj, runtime)
        partial.rename(out / f"{key}.so")
        obj.unlink()
        return f"{path.name}: {time.time() - start:.0f} s, {key}"

    # The largest first, so that no core waits at the end.
    order = sorted(missing.items(), key=lambda item: -item[1].stat().st_size)
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        for job in [pool.submit(build, *item) for item in order]:
            print(job.result(), flush=True)


try:
    main()
except subprocess.CalledProcessError as error:
    sys.exit(f"{error.cmd[0]} ... {error.cmd[-1]}: exit status {error.returncode}")
