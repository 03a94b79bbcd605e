"""Calls the audio functions of the real `litellm` package, as an application does, against a running server.

usage: litellm_client.py BASE_URL FIRST

The server has an English TTS model and an ASR model. FIRST is a WAV file of someone who says "He was not an ill-disposed young
man". Exits with a traceback at the first deviation; prints one line for each check that passed.
"""

import asyncio
import sys

import litellm
import openai
from common import BOOK, FIRST_WORDS, GREETING, TIMEOUT_S, Server, has_words, passed

KEY = "none"
# Names of models by provider, and the base that litellm adds its paths to.
SPEAKS = [("openai/gpt-4o-mini-tts", "/v1"), ("openai/hibari", "/v1"), ("elevenlabs/eleven_flash_v2_5", "")]
LISTENS = [("openai/gpt-4o-mini-transcribe", "/v1"), ("openai/whisper-1", "/v1"), ("deepgram/nova-3", "/v1")]


def refuses(call, *arguments, **options) -> None:
    try:
        call(*arguments, **options)
    except openai.NotFoundError as error:
        assert "nobody" in str(error), error
    else:
        raise AssertionError("an unknown model is accepted")


async def main(url: str, first: str) -> None:
    server = Server(url)
    options = {"api_key": KEY, "timeout": TIMEOUT_S, "max_retries": 0}
    for model, path in SPEAKS:
        answer = await litellm.aspeech(
            model=model, input=GREETING, voice="heart", instructions="Speak slowly.", api_base=url + path, **options
        )
        await server.heard_file(("speech.mp3", await answer.aread()), GREETING)
        passed(f"{model} speaks")

    async with server.interruption():
        answer = await litellm.aspeech(model="openai/tts-1", input=BOOK, voice="alloy", api_base=server.v1, **options)
        assert await anext(await answer.aiter_bytes())
        await answer.aclose()
    passed("an answer is interrupted")

    for model, path in LISTENS:
        with open(first, "rb") as file:
            answer = await litellm.atranscription(model=model, file=file, api_base=url + path, **options)
        has_words(answer.text, FIRST_WORDS)
        passed(f"{model} transcribes")

    refuses(litellm.speech, model="openai/nobody", input="Hi.", voice="alloy", api_base=server.v1, **options)
    with open(first, "rb") as file:
        refuses(litellm.transcription, model="openai/nobody", file=file, api_base=server.v1, **options)
    passed("an unknown model is reported")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
