"""schemathesis against a server, whose own OpenAPI document says what to send and what to expect.

Arguments: the URL of the server.
"""

import base64
import io
import pathlib
import sys
import wave

import schemathesis
from hypothesis import strategies as st
from schemathesis.cli import schemathesis as command

CONFIG = pathlib.Path(__file__).with_name("schemathesis.toml")


def recording() -> bytes:
    """A WAV of a third of a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(bytes(range(256)) * 40)
    return file.getvalue()


def main(base_url: str) -> None:
    # What a JSON schema cannot say: which texts and files are recordings.
    schemathesis.openapi.format("base64-audio", st.just(base64.b64encode(recording()).decode()))
    schemathesis.openapi.media_type("application/octet-stream", st.just(recording()))
    arguments = ["--config-file", str(CONFIG), "run", f"{base_url}/openapi.json"]
    status = command(arguments, standalone_mode=False)
    if status:
        sys.exit(status)
    print("passed: no violation of the OpenAPI document")


if __name__ == "__main__":
    main(*sys.argv[1:])
