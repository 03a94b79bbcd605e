// A conversation of a browser over WebRTC, as OpenAI's SDKs hold it: Opus both ways, events over a data channel.
//
//   node webrtc.mjs PART URL BROWSER RECORDING PIPELINE LISTENER

import assert from "node:assert/strict";
import { rm } from "node:fs/promises";

import { browser, failure, folder, names, open, part, passed, url } from "./page/harness.mjs";

const [pipeline, listener] = names;

// Calls the server from the page; what happens there is in `globalThis`.
// With the silence that ends a turn the session comes in a form with the offer; without, the offer comes alone, with a client secret
// that has the session.
async function call(page, silence = null) {
  await page.context().grantPermissions(["microphone"]);
  const status = await page.evaluate(
    async ([pipeline, listener, silence]) => {
      Object.assign(globalThis, { events: [], heard: [] });
      const microphone = await navigator.mediaDevices.getUserMedia({
        audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false },
      });
      const peer = new RTCPeerConnection();
      peer.addTrack(microphone.getTracks()[0], microphone);
      peer.ontrack = async ({ streams }) => {
        // Chromium plays nothing to Web Audio that no element plays.
        const sound = Object.assign(new Audio(), { srcObject: streams[0], muted: true });
        await sound.play();
        const context = new AudioContext({ sampleRate: 24_000 });
        const tap = context.createScriptProcessor(4096, 1, 1);
        tap.onaudioprocess = ({ inputBuffer }) => globalThis.heard.push(...inputBuffer.getChannelData(0));
        context.createMediaStreamSource(streams[0]).connect(tap);
        tap.connect(context.destination);
      };
      const channel = peer.createDataChannel("oai-events");
      channel.onmessage = ({ data }) => globalThis.events.push(JSON.parse(data));
      Object.assign(globalThis, { peer, channel });
      await peer.setLocalDescription();
      const { sdp: offer } = peer.localDescription;
      const form = new FormData();
      form.append("sdp", offer);
      const turns = { type: "server_vad", silence_duration_ms: silence };
      const input = { format: { type: "audio/pcm", rate: 24_000 }, transcription: { model: listener }, turn_detection: turns };
      form.append("session", JSON.stringify({ type: "realtime", model: pipeline, audio: { input } }));
      const alone = async () => {
        const body = JSON.stringify({ session: { type: "realtime", model: pipeline, instructions: "Be brief." } });
        const headers = { "content-type": "application/json" };
        const { value } = await (await fetch("/v1/realtime/client_secrets", { method: "POST", body, headers })).json();
        return { body: offer, headers: { "content-type": "application/sdp", authorization: `Bearer ${value}` } };
      };
      const response = await fetch("/v1/realtime/calls", { method: "POST", ...(silence ? { body: form } : await alone()) });
      const sdp = await response.text();
      if (response.ok) await peer.setRemoteDescription({ type: "answer", sdp });
      return [response.status, response.headers.get("content-type"), response.headers.get("location"), sdp];
    },
    [pipeline, listener, silence],
  );
  assert.equal(status[0], 201, status[3]);
  assert.equal(status[1], "application/sdp");
  assert.match(status[2], /^\/v1\/realtime\/calls\/rtc_/);
}

// The first event of a type that has come or comes.
async function event(page, type, timeout = 60_000) {
  await page.waitForFunction((type) => globalThis.events.some((event) => event.type === type), type, { timeout }).catch(async (error) => {
    const seen = await page.evaluate(() => [globalThis.peer.iceConnectionState, ...globalThis.events.map((event) => JSON.stringify(event).slice(0, 300))]);
    throw new Error(`no ${type} among\n${seen.join("\n")}`, { cause: error });
  });
  return page.evaluate((type) => globalThis.events.find((event) => event.type === type), type);
}

// A transcript has most of these words: what a busy machine plays late is stretched by the browser.
function has(transcript, words) {
  const found = words.filter((word) => transcript.toLowerCase().includes(word));
  assert.ok(found.length >= words.length - 1, `${found} in: ${transcript}`);
}

const send = (page, message) => page.evaluate((message) => globalThis.channel.send(JSON.stringify(message)), message);

// What the page heard, as the server hears it.
async function transcript(page) {
  return page.evaluate(async (model) => {
    const samples = globalThis.heard;
    const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
    const ascii = (at, text) => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
    ascii(0, "RIFF"), ascii(8, "WAVEfmt "), ascii(36, "data");
    view.setUint32(4, 36 + 2 * samples.length, true), view.setUint32(16, 16, true);
    view.setUint16(20, 1, true), view.setUint16(22, 1, true);
    view.setUint32(24, 24_000, true), view.setUint32(28, 48_000, true);
    view.setUint16(32, 2, true), view.setUint16(34, 16, true);
    view.setUint32(40, 2 * samples.length, true);
    samples.forEach((sample, at) => view.setInt16(44 + 2 * at, Math.max(-1, Math.min(1, sample)) * 32_767, true));
    const form = new FormData();
    form.append("file", new Blob([view]), "heard.wav");
    form.append("model", model);
    return (await (await fetch("/v1/audio/transcriptions", { method: "POST", body: form })).json()).text;
  }, listener);
}

const parts = {
  async talks(page) {
    await call(page, 2_000);
    const created = await event(page, "session.created");
    assert.equal(created.session.audio.output.format.rate, 24_000);
    const said = await event(page, "conversation.item.input_audio_transcription.completed");
    // Its beginning is said while the call connects.
    has(said.transcript, ["ask", "what", "country", "can", "you"]);
    passed("what is said is heard");
    const started = await event(page, "output_audio_buffer.started");
    const stopped = await event(page, "output_audio_buffer.stopped");
    const done = await event(page, "response.done");
    assert.equal(started.response_id, done.response.id);
    assert.equal(stopped.response_id, done.response.id);
    // What the network and the player hold.
    await page.waitForTimeout(1_000);
    has(await transcript(page), ["master", "wrote", "down", "book"]);
    assert.ok(!(await page.evaluate(() => globalThis.events.some(({ type }) => type === "response.output_audio.delta"))), "audio is no event");
    passed("the answer is heard");
    const text = { role: "user", type: "message", content: [{ type: "input_text", text: "Once more." }] };
    await page.evaluate(() => (globalThis.events = []));
    await send(page, { type: "conversation.item.create", item: text });
    await send(page, { type: "response.create", response: { audio: { output: { format: { type: "audio/pcmu" } } } } });
    await event(page, "output_audio_buffer.started");
    await send(page, { type: "output_audio_buffer.clear" });
    await event(page, "output_audio_buffer.cleared");
    assert.ok((await event(page, "conversation.item.truncated")).audio_end_ms < 2_000);
    passed("what is played is cleared on request");
    await send(page, { type: "no.such.event", event_id: "mine" });
    assert.equal((await event(page, "error")).error.event_id, "mine");
    for (const [body, type, field] of [["v=0", "application/sdp", "sdp"], ["{}", "application/json", "content type"]]) {
      const answer = await fetch(new URL("/v1/realtime/calls", url), { method: "POST", body, headers: { "content-type": type } });
      const { error } = await answer.json();
      assert.ok([400, 415].includes(answer.status) && error.message.includes(field), error.message);
    }
    passed("errors are told");
    await page.evaluate(() => globalThis.peer.close());
  },

  async interrupts(page) {
    await call(page);
    assert.equal((await event(page, "session.updated")).session.instructions, "Be brief.");
    passed("a client secret opens a call with its session");
    const cleared = await event(page, "output_audio_buffer.cleared");
    const truncated = await event(page, "conversation.item.truncated");
    const started = await event(page, "output_audio_buffer.started");
    assert.equal(cleared.response_id, started.response_id);
    assert.ok(truncated.audio_end_ms > 0 && truncated.audio_end_ms < 20_000, `${truncated.audio_end_ms} ms`);
    passed("speech ends what is played, and the server knows how much that was");
    // A page that is closed says nothing.
    await page.context().close();
  },
};

try {
  await parts[part](await open());
  if (failure) throw failure;
  console.log(`passed: all of ${part}`);
} finally {
  await browser.close();
  await rm(folder, { recursive: true, force: true });
}
