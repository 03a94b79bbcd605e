"""Talks to a running server with the realtime client of the real `openai` package, as an application does.

usage: realtime_client.py transcription BASE_URL SENTENCE SENTENCE RECORDING
       realtime_client.py conversation BASE_URL MODEL SENTENCE
       realtime_client.py model BASE_URL MODEL SENTENCE

`transcription` needs an English ASR model: the SENTENCEs are "He was not an ill-disposed young man" and "He might even have
been made amiable himself", RECORDING has the word "country". `conversation` needs the simulated model, whose answers and
prompts have known lengths; `model` any model of conversations. Recordings are WAV at 16 kHz. Exits with a traceback at the
first deviation; prints one line for each check that passed.
"""

import asyncio
import base64
import sys
import wave

import numpy
import openai

RATE = 24_000
TIMEOUT_S = 120
# Emissions that the simulated model makes of an answer's first 400 ms: a token before every two frames of 80 ms.
HEARD_MS, HEARD_EMISSIONS = 400, 8


def passed(what: str) -> None:
    print(f"passed: {what}", flush=True)


def recording(path: str) -> numpy.ndarray:
    """Samples at 24 kHz, in -1..1."""
    with wave.open(path) as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        at = numpy.arange(len(samples) * RATE // file.getframerate()) * file.getframerate() / RATE
    return numpy.interp(at, numpy.arange(len(samples)), samples)


def silence(seconds: float) -> numpy.ndarray:
    return numpy.zeros(int(seconds * RATE))


def pcm(samples: numpy.ndarray) -> bytes:
    return (samples * 32767).astype("<i2").tobytes()


def mu_law(samples: numpy.ndarray) -> bytes:
    """G.711 of every third sample, at 8 kHz."""
    samples = numpy.convolve(samples, numpy.ones(3) / 3, "same")[::3]
    magnitude = numpy.minimum(numpy.abs(samples * 32767).astype(int), 32635) + 0x84
    segment = numpy.log2(magnitude).astype(int) - 7
    mantissa = (magnitude >> (segment + 3)) & 0xF
    code = numpy.where(samples < 0, 0x80, 0) | (segment << 4) | mantissa
    return (~code & 0xFF).astype("u1").tobytes()


def encoded(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


class Talk:
    """A connection, and what it has received."""

    def __init__(self, connection):
        self.connection = connection
        self.seen = []

    async def next(self):
        event = await asyncio.wait_for(self.connection.recv(), TIMEOUT_S)
        assert event.event_id, event
        self.seen.append(event)
        return event

    async def until(self, *kinds: str):
        """The next event of one of these types. Errors are not passed over."""
        while True:
            event = await self.next()
            if event.type in kinds:
                return event
            assert event.type != "error", event

    async def error(self, code: str, event_id: str | None, param: str | None = None):
        error = (await self.until("error")).error
        assert (error.code, error.event_id) == (code, event_id), error
        assert param is None or error.param == param, error
        assert error.message and error.type, error

    async def append(self, audio: bytes, piece: int = 4_801):
        """Sends audio in pieces that divide samples."""
        for start in range(0, len(audio), piece):
            await self.connection.input_audio_buffer.append(audio=encoded(audio[start : start + piece]))

    async def update(self, **session):
        await self.connection.session.update(session=session)
        return (await self.until("session.updated")).session

    async def say(self, text: str, **response):
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.connection.conversation.item.create(item=item)
        added = await self.until("conversation.item.added")
        assert added.item.role == "user" and added.item.content[0].text == text, added
        await self.until("conversation.item.done")
        await self.connection.response.create(response=response) if response else await self.connection.response.create()

    async def answer(self):
        """The response that ends next, with its events."""
        start = len(self.seen)
        done = await self.until("response.done")
        return done.response, self.seen[start:]


def of(events, kind: str):
    return [event for event in events if event.type == kind]


def audio_of(events) -> bytes:
    return b"".join(base64.b64decode(event.delta) for event in of(events, "response.output_audio.delta"))


def check_answer(response, events) -> bytes:
    """Checks the order of a spoken answer's events, and returns its audio."""
    order = [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert [event.type for event in events if event.type in order] == order, [event.type for event in events]
    assert response.object == "realtime.response" and response.output_modalities == ["audio"], response
    [item] = response.output
    transcript = "".join(event.delta for event in of(events, "response.output_audio_transcript.delta"))
    assert transcript == item.content[0].transcript == of(events, "response.output_audio_transcript.done")[0].transcript
    assert item.role == "assistant" and item.content[0].type == "output_audio", item
    ids = {(event.response_id, event.item_id) for event in of(events, "response.output_audio.delta")}
    assert ids <= {(response.id, item.id)}, ids
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens, usage
    details = usage.output_token_details
    assert usage.output_tokens == details.text_tokens + details.audio_tokens, usage
    return audio_of(events)


async def transcription(client, first: str, second: str, long: str) -> None:
    query = {"intent": "transcription"}
    async with client.realtime.connect(extra_query=query) as connection:
        talk = Talk(connection)
        created = await talk.next()
        assert created.type == "session.created" and created.session.type == "transcription", created
        detection = created.session.audio.input.turn_detection
        assert (detection.type, detection.prefix_padding_ms, detection.silence_duration_ms) == ("server_vad", 300, 500)
        session = await talk.update(
            type="transcription",
            audio={
                "input": {
                    "format": {"type": "audio/pcm", "rate": RATE},
                    "transcription": {"model": "gpt-4o-mini-transcribe", "language": "en", "prompt": "A novel."},
                    "turn_detection": {"type": "server_vad", "threshold": 0.4, "silence_duration_ms": 600},
                    "noise_reduction": {"type": "near_field"},
                }
            },
        )
        assert session.audio.input.turn_detection.silence_duration_ms == 600, session
        assert session.audio.input.transcription.model == "gpt-4o-mini-transcribe", session
        assert session.audio.input.noise_reduction is None, session
        passed("a transcription session is configured")

        parts = [silence(1), recording(first), silence(1.5), recording(second), silence(1.5)]
        await talk.append(pcm(numpy.concatenate(parts)))
        wanted = [("ill", "young man"), ("amiable", "himself")]
        turns = await turns_of(talk, len(wanted))
        starts = numpy.cumsum([len(part) * 1_000 / RATE for part in parts])[[0, 2]]
        ends = numpy.cumsum([len(part) * 1_000 / RATE for part in parts])[[1, 3]]
        for turn, words, start, end in zip(turns, wanted, starts, ends):
            text = turn["transcript"].lower()
            assert all(word in text for word in words), turn
            assert abs(turn["start"] - start) < 400 and end - 400 < turn["end"] < end + 900, (turn, start, end)
            assert turn["deltas"] == turn["transcript"], turn
            assert turn["usage"].type == "duration" and 3 <= turn["usage"].seconds <= 6, turn
        assert turns[1]["previous"] == turns[0]["item"], turns
        passed("two turns are found and transcribed")

        await connection.conversation.item.retrieve(item_id=turns[0]["item"])
        item = (await talk.until("conversation.item.retrieved")).item
        assert item.content[0].transcript == turns[0]["transcript"], item
        await connection.conversation.item.delete(item_id=turns[0]["item"])
        assert (await talk.until("conversation.item.deleted")).item_id == turns[0]["item"]
        passed("an item is retrieved and deleted")

        await talk.update(type="transcription", audio={"input": {"turn_detection": None, "format": {"type": "audio/pcmu"}}})
        await talk.append(mu_law(recording(long)), 1_600)
        await connection.input_audio_buffer.commit()
        committed = await talk.until("input_audio_buffer.committed")
        assert committed.previous_item_id == turns[1]["item"], committed
        done = await talk.until("conversation.item.input_audio_transcription.completed")
        assert done.item_id == committed.item_id and "country" in done.transcript.lower(), done
        assert done.usage.seconds == 11, done
        passed("what the client commits is transcribed, from telephone audio")

        await talk.append(mu_law(recording(long)), 1_600)
        await connection.input_audio_buffer.clear()
        await talk.until("input_audio_buffer.cleared")
        await connection.input_audio_buffer.commit(event_id="too-short")
        await talk.error("input_audio_buffer_commit_empty", "too-short")
        await connection.input_audio_buffer.append(audio="?", event_id="no-base64")
        await talk.error("invalid_audio", "no-base64", "audio")
        await connection.response.create(event_id="no-response")
        await talk.error("invalid_value", "no-response", "type")
        await connection.conversation.item.retrieve(item_id="nobody", event_id="no-item")
        await talk.error("item_not_found", "no-item", "item_id")
        unknown = {"type": "transcription", "audio": {"input": {"transcription": {"model": "nobody"}}}}
        await connection.session.update(session=unknown, event_id="no-model")
        await talk.error("model_not_found", "no-model", "model")
        await connection.send({"type": "nonsense", "event_id": "no-type"})
        await talk.error("unknown_type", "no-type")
        passed("errors name the event and the field")


async def turns_of(talk: Talk, count: int) -> list[dict]:
    """The next turns that the server finds, transcribed."""
    turns = {}
    while sum("transcript" in turn for turn in turns.values()) < count:
        event = await talk.next()
        if event.type == "error":
            raise AssertionError(event)
        turn = turns.setdefault(getattr(event, "item_id", None) or event.item.id, {"deltas": ""})
        if event.type == "input_audio_buffer.speech_started":
            turn["start"], turn["item"] = event.audio_start_ms, event.item_id
        elif event.type == "input_audio_buffer.speech_stopped":
            turn["end"] = event.audio_end_ms
        elif event.type == "input_audio_buffer.committed":
            turn["previous"] = event.previous_item_id
        elif event.type == "conversation.item.input_audio_transcription.delta":
            turn["deltas"] += event.delta
        elif event.type == "conversation.item.input_audio_transcription.completed":
            turn["transcript"], turn["usage"] = event.transcript, event.usage
    return list(turns.values())


async def conversation(client, model: str, sentence: str) -> None:
    async with client.realtime.connect(model="gpt-realtime") as connection:
        talk = Talk(connection)
        created = await talk.next()
        assert created.type == "session.created" and created.session.type == "realtime", created
        session = await talk.update(
            type="realtime",
            model="gpt-realtime",
            instructions="Be brief.",
            output_modalities=["audio"],
            audio={
                "input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}},
                "output": {"voice": "marin", "format": {"type": "audio/pcm", "rate": RATE}},
            },
            tools=[],
        )
        assert session.model == model and session.instructions == "Be brief.", session
        assert session.audio.input.turn_detection.type == "server_vad", session
        assert session.audio.output.voice == "default", session
        passed("a conversation is configured")

        await talk.say("How are you?")
        response, events = await talk.answer()
        audio = check_answer(response, events)
        # One text token for two frames, and as many tokens as the question has bytes and six.
        assert (response.status, response.usage.output_tokens) == ("completed", 19), response
        assert response.usage.output_token_details.text_tokens == 7, response
        assert len(audio) == 12 * 2 * RATE * 8 // 100, len(audio)
        passed("a text item is answered with audio and a transcript")

        await talk.say("And in words?", output_modalities=["text"], metadata={"topic": "words"})
        response, events = await talk.answer()
        text = "".join(event.delta for event in of(events, "response.output_text.delta"))
        assert text and text == response.output[0].content[0].text, response
        assert response.output_modalities == ["text"] and response.metadata == {"topic": "words"}, response
        assert not of(events, "response.output_audio.delta"), events
        telephone = {"audio": {"output": {"format": {"type": "audio/pcmu"}}}, "max_output_tokens": 6}
        await talk.say("And by telephone, briefly?", **telephone)
        response, events = await talk.answer()
        assert (response.status, response.status_details.reason) == ("incomplete", "max_output_tokens"), response
        assert len(audio_of(events)) == 4 * 640, len(audio_of(events))
        passed("modality, format and length of a response are chosen")

        await talk.append(pcm(numpy.concatenate([recording(sentence), silence(1)])))
        started = await talk.until("input_audio_buffer.speech_started")
        stopped = await talk.until("input_audio_buffer.speech_stopped")
        committed = await talk.until("input_audio_buffer.committed")
        assert started.item_id == stopped.item_id == committed.item_id, committed
        item = (await talk.until("conversation.item.done")).item
        assert item.id == committed.item_id and item.content[0].type == "input_audio", item
        response, events = await talk.answer()
        assert response.status == "completed" and check_answer(response, events), response
        passed("speech is answered")

    async with client.realtime.connect(model=model) as connection:
        await interruptions(Talk(connection), sentence)
    async with client.realtime.connect(model=model) as connection:
        await refusals(Talk(connection))


async def interruptions(talk: Talk, sentence: str) -> None:
    connection = talk.connection
    await talk.say("a long question, " * 30)
    await talk.until("response.output_audio.delta")
    await connection.response.cancel()
    response, _ = await talk.answer()
    assert (response.status, response.status_details.reason) == ("cancelled", "client_cancelled"), response
    assert response.output[0].status == "incomplete", response
    await connection.response.cancel(event_id="late")
    await talk.error("response_cancel_not_active", "late")
    await connection.conversation.item.delete(item_id=response.output[0].id)
    await talk.until("conversation.item.deleted")
    passed("a response is cancelled")

    # The question before is not answered any more: both are one turn.
    question = "another long question, " * 30
    await talk.say(question)
    start = len(talk.seen)
    while len(audio_of(talk.seen[start:])) < RATE * 2:
        await talk.until("response.output_audio.delta")
    await talk.append(pcm(recording(sentence)))
    started = await talk.until("input_audio_buffer.speech_started")
    response, _ = await talk.answer()
    assert (response.status, response.status_details.reason) == ("cancelled", "turn_detected"), response
    item_id = response.output[0].id
    await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=HEARD_MS)
    truncated = await talk.until("conversation.item.truncated")
    assert (truncated.item_id, truncated.audio_end_ms) == (item_id, HEARD_MS), truncated
    await connection.conversation.item.retrieve(item_id=item_id)
    item = (await talk.until("conversation.item.retrieved")).item
    assert item.status == "incomplete" and item.content[0].transcript is None, item
    await talk.append(pcm(silence(1)))
    stopped = await talk.until("input_audio_buffer.speech_stopped")
    await talk.until("conversation.item.done")
    response, events = await talk.answer()
    assert response.status == "completed" and check_answer(response, events), response
    # Each turn begins with a token; text is a token a byte, audio one for 100 ms; the answer begins with a token.
    asked = 1 + len("a long question, " * 30) + len(question)
    heard = 1 + HEARD_EMISSIONS
    spoken = 1 + -(-(stopped.audio_end_ms - started.audio_start_ms) // 100)
    assert response.usage.input_tokens == asked + heard + spoken + 1, (response.usage, asked, heard, spoken)
    passed("the turn after an interruption knows what was heard, and no more")

    await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=HEARD_MS + 1)
    truncated = await talk.until("conversation.item.truncated")
    assert truncated.audio_end_ms == HEARD_MS, truncated
    await connection.conversation.item.truncate(item_id=started.item_id, content_index=0, audio_end_ms=0, event_id="user")
    await talk.error("invalid_value", "user", "item_id")


async def refusals(talk: Talk) -> None:
    connection = talk.connection
    assert (await talk.next()).type == "session.created"
    await connection.response.create(event_id="silent")
    await talk.error("nothing_to_answer", "silent")
    tool = {"type": "function", "name": "weather", "parameters": {}}
    cases = [
        ({"tools": [tool]}, "session.tools"),
        ({"output_modalities": ["text", "audio"]}, "session.output_modalities"),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"model": "another"}, "session.model"),
        ({"audio": {"output": {"speed": 1.5}}}, "session.audio.output.speed"),
        ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice"),
        ({"audio": {"input": {"format": {"type": "audio/opus"}}}}, "session.audio.input.format.type"),
        ({"audio": {"input": {"turn_detection": {"type": "other"}}}}, "session.audio.input.turn_detection.type"),
        ({"audio": {"input": {"turn_detection": {"threshold": 2}}}}, "session.audio.input.turn_detection.threshold"),
    ]
    for session, param in cases:
        await connection.session.update(session={"type": "realtime", **session}, event_id=param)
        await talk.error("invalid_value", param, param)
    call = {"type": "function_call_output", "call_id": "a", "output": "b"}
    await connection.conversation.item.create(item=call, event_id="call")
    await talk.error("invalid_value", "call", "item.type")
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}
    await connection.conversation.item.create(item=image, event_id="image")
    await talk.error("invalid_value", "image", "item.content.type")
    await talk.say("a long question, " * 30)
    await connection.response.create(event_id="second")
    await talk.error("conversation_already_has_active_response", "second")
    await connection.response.cancel()
    response, _ = await talk.answer()
    assert response.status == "cancelled", response
    passed("what is not supported is refused by its name")


async def model(client, name: str, sentence: str) -> None:
    """A conversation with real weights, of which nothing is known but that they answer."""
    async with client.realtime.connect(model=name) as connection:
        talk = Talk(connection)
        assert (await talk.next()).type == "session.created"
        await talk.update(type="realtime", max_output_tokens=40, instructions="Answer.")
        await talk.say("Hello there.")
        response, events = await talk.answer()
        assert response.status in ("completed", "incomplete"), response
        check_answer(response, events)
        passed("a text item is answered by the model")

        await talk.append(pcm(numpy.concatenate([recording(sentence), silence(1)])))
        await talk.until("conversation.item.done")
        response, events = await talk.answer()
        assert response.status in ("completed", "incomplete"), response
        check_answer(response, events)
        passed("speech is answered by the model")

    # The text of a model is often the same whenever it is asked the same: each attempt is a conversation of its own.
    for number in range(40):
        async with client.realtime.connect(model=name) as connection:
            if await interrupted(Talk(connection), sentence, f"Tell me {number} long stories."):
                break
    else:
        raise AssertionError("no answer has audio")
    passed("the model answers after an interruption")


async def interrupted(talk: Talk, sentence: str, question: str) -> bool:
    """Whether the answer to a question has audio; it is interrupted then, and the next is awaited."""
    assert (await talk.next()).type == "session.created"
    await talk.update(type="realtime", max_output_tokens=2_000)
    await talk.say(question)
    event = await talk.until("response.output_audio.delta", "response.done")
    if event.type == "response.done":
        return False
    await talk.append(pcm(recording(sentence)))
    # The answer may end by itself before it is interrupted.
    missing = {"input_audio_buffer.speech_started", "response.done"}
    while missing:
        missing.discard((await talk.until(*missing)).type)
    await talk.connection.conversation.item.truncate(item_id=event.item_id, content_index=0, audio_end_ms=80)
    await talk.until("conversation.item.truncated")
    await talk.update(type="realtime", max_output_tokens=40)
    await talk.append(pcm(silence(1)))
    response, _ = await talk.answer()
    assert response.status in ("completed", "incomplete"), response
    return True


async def main(what: str, base_url: str, *arguments: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0)
    await {"transcription": transcription, "conversation": conversation, "model": model}[what](client, *arguments)


asyncio.run(main(*sys.argv[1:]))
