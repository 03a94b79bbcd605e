"""Records commands in a terminal and writes them as an animated SVG, `docs/terminal.svg`.

usage: terminal.py IZWI OUT.svg

Each command runs in a terminal of its own; its output appears when the program wrote it. The typing alone is made up. `izwi
dictate` hears a recording at the pace of speech, from a program in the place of `arecord`. The models must be installed
(`cargo xtask pull`, and `IZWI_HOME` names the store). Needs Linux.

The animation begins with its last picture, which viewers without animations show too.
"""

import fcntl
import html
import os
import pathlib
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = [
    'izwi say "Nothing that you say here leaves your desk." -o hello.wav',
    "izwi transcribe hello.wav",
    "izwi say \"Two voices in one.\" --model kokoro-82m --voice 'af_heart(2)+am_adam(1)' -o blend.wav",
    "izwi dictate",
]
COLUMNS, ROWS = 96, 40
# Seconds: the last picture at the start, one typed character, the pause after a command.
POSTER_S, TYPED_S, PAUSE_S = 3.0, 0.03, 0.8
# Speech of a microphone: 16 kHz, 16 bits, a tenth of a second at a time, and silence until the program ends.
RECORDER = """#!/usr/bin/env python3
import sys, time
audio = open({clip!r}, "rb").read()[44:]
piece = 3200
for at in range(0, len(audio) + 3 * 10 * piece, piece):
    sys.stdout.buffer.write(audio[at:at + piece].ljust(piece, b"\\0"))
    sys.stdout.buffer.flush()
    time.sleep(0.1)
"""

FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
WIDTH, HEIGHT, MARGIN, TOP = 8.43, 20, 16, 44
COLOURS = {31: "#f47067", 32: "#8ddb8c", 33: "#f6bd60", 34: "#6cb6ff", 35: "#dcbdfb", 36: "#76e3ea", 90: "#768390"}
ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """The lines of a terminal: lists of (character, style)."""

    def __init__(self):
        self.lines, self.row, self.column, self.style = [[]], 0, 0, ""

    def write(self, text):
        at = 0
        while at < len(text):
            escape = ESCAPE.match(text, at)
            if escape:
                self.escape(escape[1], escape[2])
                at = escape.end()
                continue
            character = text[at]
            at += 1
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self.move(self.row + 1)
            elif character.isprintable():
                if self.column == COLUMNS:
                    self.move(self.row + 1)
                    self.column = 0
                line = self.lines[self.row]
                line.extend([(" ", "")] * (self.column + 1 - len(line)))
                line[self.column] = (character, self.style)
                self.column += 1

    def move(self, row):
        self.row = max(row, 0)
        self.lines.extend([] for _ in range(self.row + 1 - len(self.lines)))

    def escape(self, arguments, letter):
        numbers = [int(number) for number in arguments.split(";") if number.isdigit()]
        first = numbers[0] if numbers else 0
        if letter == "m":
            self.colour(numbers or [0])
        elif letter == "K":
            line = self.lines[self.row]
            self.lines[self.row] = [] if first == 2 else line[: self.column]
        elif letter == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            self.lines[self.row + 1 :] = []
        elif letter == "A":
            self.move(self.row - max(first, 1))
        elif letter == "B":
            self.move(self.row + max(first, 1))
        elif letter == "G":
            self.column = max(first - 1, 0)

    def colour(self, numbers):
        for number in numbers:
            if number in (0, 39):
                self.style = ""
            elif number == 2:
                self.style = "fill:#768390"
            elif number == 1:
                self.style = "font-weight:bold"
            elif number in COLOURS:
                self.style = f"fill:{COLOURS[number]}"


class Recording:
    """What each line showed from which time on."""

    def __init__(self):
        self.screen, self.shown, self.now = Screen(), {}, 0.0

    def write(self, text):
        self.screen.write(text)
        for row, line in enumerate(self.screen.lines):
            states = self.shown.setdefault(row, [])
            if (states[-1][1] if states else []) != line:
                states.append((self.now, list(line)))
        for row in range(len(self.screen.lines), len(self.shown)):
            if self.shown[row] and self.shown[row][-1][1]:
                self.shown[row].append((self.now, []))

    def type(self, command):
        self.write("\x1b[32m$\x1b[0m ")
        for character in command:
            self.now += TYPED_S
            self.write(character)
        self.now += 0.2
        self.write("\r\n")

    def run(self, command, environment):
        process, terminal = pty.fork()
        if process == 0:
            os.execvpe("sh", ["sh", "-c", f"exec {command}"], environment)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        begun, before = time.monotonic(), self.now
        while True:
            ready, _, _ = select.select([terminal], [], [], 60)
            try:
                data = os.read(terminal, 65536) if ready else b""
            except OSError:
                data = b""
            self.now = before + time.monotonic() - begun
            if not data:
                break
            self.write(data.decode(errors="replace"))
        if not ready:
            os.kill(process, signal.SIGINT)
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit(f"`{command}` failed")
        if self.screen.column:
            self.write("\r\n")
        self.now += PAUSE_S


def spans(line):
    """The line as text of SVG; neighbours of one style in one span."""
    out, at = "", 0
    while at < len(line):
        end = at
        while end < len(line) and line[end][1] == line[at][1]:
            end += 1
        text = html.escape("".join(character for character, _ in line[at:end]))
        out += f'<tspan style="{line[at][1]}">{text}</tspan>' if line[at][1] else text
        at = end
    return out


def svg(recording):
    total = POSTER_S + recording.now
    rules, texts = [], []
    percent = lambda seconds: f"{100 * seconds / total:.2f}%"
    for row, states in sorted(recording.shown.items()):
        for at, (start, line) in enumerate(states):
            if not line:
                continue
            last = at + 1 == len(states)
            name = f"s{len(texts)}"
            frames = f"0%{{visibility:{'visible' if last else 'hidden'}}}"
            if last:
                frames += f"{percent(POSTER_S)}{{visibility:hidden}}"
            frames += f"{percent(POSTER_S + start)}{{visibility:visible}}"
            if not last:
                frames += f"{percent(POSTER_S + states[at + 1][0])}{{visibility:hidden}}"
            rules.append(f"@keyframes {name}{{{frames}}}#{name}{{animation-name:{name}}}")
            y = TOP + row * HEIGHT + 14
            hidden = "" if last else ' visibility="hidden"'
            texts.append(f'<text id="{name}" x="{MARGIN}" y="{y}"{hidden}>{spans(line)}</text>')
    width = round(2 * MARGIN + COLUMNS * WIDTH)
    height = TOP + max(row for row, states in recording.shown.items() if states[-1][1]) * HEIGHT + HEIGHT + MARGIN
    dots = "".join(f'<circle cx="{22 + 20 * at}" cy="20" r="6" fill="{fill}"/>' for at, fill in
                   enumerate(["#f47067", "#f6bd60", "#8ddb8c"]))
    style = (
        f"text{{font:14px {FONT};fill:#cdd9e5;white-space:pre;animation:{total:.2f}s step-end infinite}}"
        "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>izwi in a terminal</title><style>{style}\n" + "\n".join(rules) + "</style>"
        f'<rect width="{width}" height="{height}" rx="10" fill="#22272e"/>{dots}\n' + "\n".join(texts) + "\n</svg>\n"
    )


def main(izwi, out):
    recording = Recording()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        recorder = folder / "bin/arecord"
        recorder.parent.mkdir()
        recorder.write_text(RECORDER.format(clip=str(ROOT / "assets/speech/jfk.wav")))
        recorder.chmod(0o755)
        (recorder.parent / "izwi").symlink_to(pathlib.Path(izwi).resolve())
        # Without a sound device, the program is the microphone.
        (folder / "asound.conf").write_text("")
        environment = os.environ | {
            "PATH": f"{recorder.parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "ALSA_CONFIG_PATH": str(folder / "asound.conf"),
            "XDG_CONFIG_HOME": str(folder),
        }
        os.chdir(folder)
        for command in COMMANDS:
            recording.type(command)
            recording.run(command, environment)
        os.chdir("/")
    recording.write("\x1b[32m$\x1b[0m ")
    recording.now += 2 * PAUSE_S
    out.write_text(svg(recording))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]).resolve())
