"""The `elevenlabs` package against a server of Izwi: speech, streams, timestamps, WebSockets, transcripts, listings, errors.

Usage: elevenlabs_client.py URL KEY
"""

import base64
import contextlib
import io
import json
import sys
import typing

import av
import websockets.exceptions
from elevenlabs import PronunciationDictionaryVersionLocator, VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.text_to_speech.types.text_to_speech_convert_request_output_format import (
    TextToSpeechConvertRequestOutputFormat,
)
from websockets.sync.client import connect

URL, KEY = sys.argv[1:3]
WS = URL.replace("http", "ws", 1)
VOICE = "heart"
# An id of the hosted service, as the package's examples have it.
HOSTED = "JBFqnCBsd6RMkjVDRZzb"
TEXT = "The quick brown fox jumps over the lazy dog. Then it sleeps under a large tree."

client = ElevenLabs(base_url=URL, api_key=KEY)
# The package speaks TLS on its WebSockets whatever its base_url says.
client.text_to_speech._ws_base_url = WS
speech = client.text_to_speech


def passed(check):
    print(f"passed: {check}", flush=True)


def joined(chunks):
    return b"".join(chunks)


def seconds(data, output_format):
    """Duration of encoded audio, by an independent decoder where there is one."""
    codec, rate = output_format.split("_")[:2]
    raw = {"pcm": 2, "ulaw": 1, "alaw": 1}.get(codec)
    if raw:
        return len(data) / raw / int(rate)
    with av.open(io.BytesIO(data)) as file:
        frames = list(file.decode(audio=0))
    assert frames[0].sample_rate == int(rate), (output_format, frames[0].sample_rate)
    return sum(frame.samples for frame in frames) / int(rate)


def refused(call, status, detail_status, param=None):
    try:
        result = call()
        result = joined(result) if isinstance(result, typing.Iterator) else result
    except ApiError as error:
        assert error.status_code == status, error
        detail = error.body["detail"]
        assert detail["status"] == detail_status and detail["message"], detail
        assert param is None or detail["param"] == param, detail
        return
    raise AssertionError(f"not refused: {result!r}")


def check_speech():
    pcm = joined(speech.convert(VOICE, text=TEXT, model_id="eleven_multilingual_v2", output_format="pcm_24000", seed=7))
    length = seconds(pcm, "pcm_24000")
    assert 3.0 < length < 9.0, length
    mp3 = joined(speech.convert(VOICE, text=TEXT, seed=7))
    assert abs(seconds(mp3, "mp3_44100_128") - length) < 0.12, (seconds(mp3, "mp3_44100_128"), length)
    hosted = joined(speech.convert(HOSTED, text=TEXT, model_id="hibari", output_format="pcm_24000", seed=7))
    assert hosted == pcm, "an id of the hosted service is the default voice"
    passed("speech")

    streamed = list(speech.stream(VOICE, text=TEXT, output_format="pcm_24000", seed=7))
    assert joined(streamed) == pcm and len(streamed) > 1
    passed("stream")

    slow = joined(speech.convert(VOICE, text=TEXT, output_format="pcm_24000", voice_settings=VoiceSettings(speed=0.7)))
    fast = joined(speech.convert(VOICE, text=TEXT, output_format="pcm_24000", voice_settings=VoiceSettings(speed=1.2)))
    assert len(slow) > 1.4 * len(fast), (len(slow), len(fast))
    passed("voice_settings.speed")

    raw = speech.with_raw_response
    settings = VoiceSettings(stability=0.5, similarity_boost=0.7, style=0.1, use_speaker_boost=True)
    with raw.convert(VOICE, text="Hi.", voice_settings=settings, previous_text="Before.", next_text="After.",
                     apply_text_normalization="on", language_code="en") as response:
        ignored = response.headers["x-ignored-fields"].split(", ")
        assert response.headers["content-type"] == "audio/mpeg"
        joined(response.data)
    assert {"language_code", "previous_text", "next_text", "voice_settings.stability", "voice_settings.style"} <= set(ignored), ignored
    passed("ignored fields are reported")


def check_formats():
    (literal, _) = typing.get_args(TextToSpeechConvertRequestOutputFormat)
    names = typing.get_args(literal)
    assert len(names) == 28
    expected = None
    for name in names:
        data = joined(speech.convert(VOICE, text="Hello there.", output_format=name, seed=1))
        length = seconds(data, name)
        expected = expected or length
        assert abs(length - expected) < 0.12, (name, length, expected)
    passed("every output_format")


def check_characters(characters, starts, ends, length):
    assert "".join(characters) == TEXT, "".join(characters)
    assert len(characters) == len(starts) == len(ends)
    assert starts == sorted(starts) and ends == sorted(ends)
    assert all(start <= end for start, end in zip(starts, ends))
    assert 0.0 <= starts[0] < 0.5 and abs(ends[-1] - length) < 0.002, (starts[0], ends[-1], length)
    # The second sentence begins after a pause, around the middle.
    at = TEXT.index("Then")
    assert 0.4 * length < starts[at] < 0.7 * length, starts[at]


def check_timestamps():
    whole = speech.convert_with_timestamps(VOICE, text=TEXT, output_format="pcm_24000", seed=7)
    audio = base64.b64decode(whole.audio_base_64)
    length = seconds(audio, "pcm_24000")
    times = whole.alignment
    check_characters(
        times.characters, times.character_start_times_seconds, times.character_end_times_seconds, length
    )
    assert whole.normalized_alignment == times
    passed("timestamps")

    parts = list(speech.stream_with_timestamps(VOICE, text=TEXT, output_format="pcm_24000", seed=7))
    assert len(parts) > 2 and joined(base64.b64decode(part.audio_base_64) for part in parts) == audio
    timed = [part.alignment for part in parts if part.alignment]
    characters = [one for times in timed for one in times.characters]
    starts = [one for times in timed for one in times.character_start_times_seconds]
    ends = [one for times in timed for one in times.character_end_times_seconds]
    check_characters(characters, starts, ends, length)
    passed("streamed timestamps")


def check_realtime():
    words = (word + " " for word in TEXT.split())
    audio = joined(speech.convert_realtime(VOICE, text=words, model_id="eleven_flash_v2_5", output_format="pcm_24000"))
    assert 3.0 < seconds(audio, "pcm_24000") < 9.0
    mp3 = joined(speech.convert_realtime(HOSTED, text=iter([TEXT]), output_format="mp3_44100_128"))
    assert 3.0 < seconds(mp3, "mp3_44100_128") < 9.0
    passed("realtime")

    try:
        joined(speech.convert_realtime("nobody", text=iter([TEXT])))
        raise AssertionError("an unknown voice is spoken")
    except ApiError as error:
        assert error.status_code == 1008, error
    passed("realtime refuses an unknown voice")


def messages(socket):
    """All messages until the close, and its code."""
    received = []
    try:
        while True:
            received.append(json.loads(socket.recv(timeout=60)))
    except websockets.exceptions.ConnectionClosed as closed:
        return received, closed.rcvd.code


def check_alignment(received, text):
    """The characters of all messages are the text, and the durations that clients add up are those of the audio."""
    total = 0
    characters = ""
    for message in received:
        length = len(base64.b64decode(message["audio"])) * 1000 / 2 / 24000
        times = message["alignment"]
        assert times == message["normalizedAlignment"]
        starts, durations = times["charStartTimesMs"], times["charDurationsMs"]
        assert len(times["chars"]) == len(starts) == len(durations)
        assert starts == sorted(starts) and starts[0] >= 0
        assert abs(starts[-1] + durations[-1] - length) < 1.5, (starts[-1], durations[-1], length)
        total += length
        characters += "".join(times["chars"])
    assert characters.strip() == text, characters
    return total


def stream_input(path="stream-input", query="", key=KEY):
    headers = {"xi-api-key": key} if key else {}
    return connect(f"{WS}/v1/text-to-speech/{VOICE}/{path}?output_format=pcm_24000{query}", additional_headers=headers)


def check_stream_input():
    with stream_input() as socket:
        socket.send(json.dumps({"text": " ", "generation_config": {"chunk_length_schedule": [500]}}))
        socket.send(json.dumps({"text": "Nothing is spoken yet. "}))
        socket.send(json.dumps({"text": "Now it is. ", "flush": True}))
        first = json.loads(socket.recv(timeout=60))
        assert first["audio"] and first["isFinal"] is None
        socket.send(json.dumps({"text": "The rest. "}))
        socket.send(json.dumps({"text": ""}))
        received, code = messages(socket)
    assert code == 1000 and received[-1]["isFinal"] is True and received[-1]["audio"] is None
    spoken = [first] + received[:-1]
    assert check_alignment(spoken, "Nothing is spoken yet. Now it is. The rest.") > 1500
    passed("stream-input")

    with stream_input(key=None) as socket:
        socket.send(json.dumps({"text": " ", "xi_api_key": KEY}))
        socket.send(json.dumps({"text": "Hello. ", "flush": True}))
        socket.send(json.dumps({"text": ""}))
        received, code = messages(socket)
    assert code == 1000 and received[0]["audio"] and received[-1]["isFinal"]
    for first in [{"text": " ", "xi_api_key": "wrong-key-of-some-length"}, {"text": "Hello. ", "flush": True}]:
        with stream_input(key=None) as socket:
            socket.send(json.dumps(first))
            # The server may have closed already.
            with contextlib.suppress(websockets.exceptions.ConnectionClosed):
                socket.send(json.dumps({"text": "Hello. ", "flush": True, "xi_api_key": KEY}))
            received, code = messages(socket)
        assert code == 1008 and [one["error"] for one in received] == ["invalid_api_key"], (code, received)
    passed("the key in the first message")


def check_contexts():
    with stream_input("multi-stream-input", "&inactivity_timeout=60") as socket:
        say = lambda **message: socket.send(json.dumps(message))
        say(text=" ", context_id="one", voice_settings={"speed": 1.0})
        say(text="The first context speaks this. ", context_id="one", flush=True)
        say(text="The second context ", context_id="two")
        say(text="This is never spoken. ", context_id="three")
        say(text="", context_id="two")
        say(context_id="three", close_context=True)
        say(text="is independent. ", context_id="two", flush=True)
        say(context_id="one", close_context=True)
        say(close_socket=True)
        received, code = messages(socket)
    assert code == 1000, code
    of = lambda name: [one for one in received if one["contextId"] == name]
    for name, text in [("one", "The first context speaks this."), ("two", "The second context is independent.")]:
        mine = of(name)
        assert mine[-1]["isFinal"] is True and not any(one["isFinal"] for one in mine[:-1]), mine
        check_alignment(mine[:-1], text)
    assert [one["isFinal"] for one in of("three")] == [True], of("three")
    passed("multi-stream-input")


def check_listings():
    listed = client.voices.get_all().voices
    assert [voice.voice_id for voice in listed] == [VOICE] and listed[0].category == "premade", listed
    found = client.voices.search(search="HEART", page_size=1)
    assert [voice.name for voice in found.voices] == [VOICE] and not found.has_more and found.total_count == 1
    assert client.voices.search(search="nobody").voices == []
    assert client.voices.get(VOICE).voice_id == VOICE and client.voices.get(HOSTED).voice_id == HOSTED
    passed("voices")
    models = client.models.list()
    assert [model.model_id for model in models] == ["hibari"] and models[0].can_do_text_to_speech
    passed("models")
    assert client.user.get().subscription.status == "active"
    assert client.user.subscription.get().character_count == 0
    passed("user")


def check_errors():
    refused(lambda: speech.convert("nobody", text=TEXT), 404, "voice_not_found", "voice")
    refused(lambda: speech.stream(VOICE, text=TEXT, model_id="unknown"), 404, "model_not_found", "model")
    refused(lambda: speech.convert(VOICE, text=" "), 400, "invalid_value", "text")
    refused(lambda: speech.convert(VOICE, text=TEXT, output_format="mp3_1_1"), 400, "invalid_value", "output_format")
    refused(lambda: client.voices.get("nobody"), 404, "voice_not_found")
    refused(lambda: client.voices.search(next_page_token="x"), 400, "invalid_value", "next_page_token")
    stranger = ElevenLabs(base_url=URL, api_key="wrong-key-of-some-length")
    refused(lambda: stranger.voices.get_all(), 401, "invalid_api_key")
    refused(lambda: stranger.text_to_speech.convert(VOICE, text=TEXT), 401, "invalid_api_key")
    passed("errors")


def check_transcripts():
    pcm = joined(speech.convert(VOICE, text=TEXT, output_format="wav_24000", seed=7))
    convert = client.speech_to_text.convert
    transcript = convert(model_id="scribe_v2", file=io.BytesIO(pcm), language_code="en", keyterms=["Izwi"])
    said = [word for word in transcript.words if word.type == "word"]
    bare = [word.text.strip(".,").lower() for word in said]
    assert bare == TEXT.replace(".", "").lower().split(), bare
    assert "".join(word.text for word in transcript.words) == transcript.text, transcript
    assert all(a.start <= a.end <= b.end for a, b in zip(said, said[1:])), said
    assert transcript.language_code == "en" and transcript.language_probability == 1, transcript
    raw = joined(speech.convert(VOICE, text=TEXT, output_format="pcm_16000", seed=7))
    heard = convert(model_id="scribe_v2", file=io.BytesIO(raw), language_code="en", file_format="pcm_s16le_16")
    # Another rate may move a comma.
    written = lambda text: [word.strip(".,").lower() for word in text.split()]
    assert written(heard.text) == written(transcript.text), (heard.text, transcript.text)
    passed("transcripts")
    letters = convert(model_id="scribe_v2", file=io.BytesIO(pcm), timestamps_granularity="character")
    assert [letter.text for letter in letters.words[0].characters] == list("The"), letters.words[0]
    passed("timestamps_granularity")
    url = "https://example.org/speech.mp3"
    refused(lambda: convert(model_id="scribe_v2", cloud_storage_url=url), 400, "invalid_value", "cloud_storage_url")
    # No model that tells speakers is installed.
    refused(lambda: convert(model_id="scribe_v2", file=io.BytesIO(pcm), diarize=True), 400, "invalid_value", "diarize")
    passed("errors of transcripts")


def check_dictionaries():
    dictionaries = client.pronunciation_dictionaries
    alias = {"type": "alias", "string_to_replace": "UN", "alias": "United Nations"}
    sounds = {"type": "phoneme", "string_to_replace": "fox", "phoneme": "K AE1 T", "alphabet": "cmu-arpabet"}
    made = dictionaries.create_from_rules(name="My Brands", rules=[alias, sounds])
    assert (made.id, made.name, made.version_rules_num) == ("my-brands", "My Brands", 2), made
    assert made.creation_time_unix > 1_700_000_000, made
    pls = joined(dictionaries.download(made.id, made.version_id))
    assert b"<grapheme>fox</grapheme><phoneme>k\xcb\x88\xc3\xa6t</phoneme>" in pls, pls
    copied = dictionaries.create_from_file(name="copy", file=("copy.pls", pls), description="of another")
    assert copied.version_rules_num == 2 and copied.description == "of another", copied
    dictionaries.rules.add(made.id, rules=[{**alias, "alias": "you and"}])
    shown = dictionaries.get(made.id)
    assert sorted(rule.type for rule in shown.rules) == ["alias", "phoneme"] and shown.latest_version_id != made.version_id
    assert dictionaries.rules.remove(made.id, rule_strings=["fox"]).version_rules_num == 1
    assert dictionaries.rules.set(made.id, rules=[alias, sounds]).version_rules_num == 2
    first = dictionaries.list(page_size=1)
    second = dictionaries.list(page_size=1, cursor=first.next_cursor)
    names = [page.pronunciation_dictionaries[0].name for page in (first, second)]
    assert names == ["copy", "My Brands"] and first.has_more and not second.has_more, (first, second)
    passed("pronunciation dictionaries")

    def spoken(*ids):
        locators = [PronunciationDictionaryVersionLocator(pronunciation_dictionary_id=id, version_id="x") for id in ids]
        text = "The UN fox."
        return joined(speech.convert(VOICE, text=text, seed=7, output_format="pcm_24000", pronunciation_dictionary_locators=locators))

    plain = joined(speech.convert(VOICE, text="The UN fox.", seed=7, output_format="pcm_24000"))
    meant = joined(speech.convert(VOICE, text="The United Nations {fox|/kˈæt/}.", seed=7, output_format="pcm_24000"))
    assert spoken(made.id) == meant != plain, "words are said by the dictionary"
    assert spoken(HOSTED) == plain, "a dictionary of the hosted service has no effect"
    refused(lambda: spoken("nope"), 400, "invalid_value", "pronunciation_dictionary_locators")
    rules = [{**alias, "word_boundaries": False}]
    refused(lambda: dictionaries.create_from_rules(name="x", rules=rules), 400, "invalid_value", "rules[0].word_boundaries")
    passed("speech by pronunciation dictionaries")


def check_cancel():
    body = speech.stream(VOICE, text=" ".join([TEXT] * 40), output_format="pcm_24000")
    assert next(body)
    body.close()
    with stream_input() as socket:
        socket.send(json.dumps({"text": " ".join([TEXT] * 20) + " ", "flush": True}))
        assert json.loads(socket.recv(timeout=60))["audio"]
    passed("cancel")


check_listings()
check_speech()
check_timestamps()
check_stream_input()
check_contexts()
check_realtime()
check_errors()
check_formats()
check_transcripts()
check_dictionaries()
check_cancel()
