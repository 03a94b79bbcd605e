// Speak, report playback, survive a lost connection, and fall silent when the user talks. Runs in a browser and in Node 22
// (Node 20: node --experimental-websocket barge_in.mjs [url]). A real client plays the audio; here a clock stands for the
// player. docs/protocol.md describes every message.
const url = globalThis.process?.argv[2] ?? "ws://127.0.0.1:8080/v1/audio/speech/stream";
const text =
  "This is a long answer that nobody wants to hear to its end. It goes on and on until the user interrupts it.";

let created, utterance, startedAt, socket;
let received = 0; // samples of the session
let played = 0; // samples of the utterance

const playedMs = () =>
  startedAt ? Math.min(Math.round(performance.now() - startedAt), Math.floor((played * 1000) / created.sample_rate)) : 0;

const send = (type, members = {}) => socket.send(JSON.stringify({ type, ...members }));

// Connects; a session that has begun continues at the first sample it has not received.
function open(onEvent) {
  socket = new WebSocket(url);
  const own = socket;
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    if (!created) return send("session.config", { first_chunk_ms: 80 });
    const { session_id, resume_token } = created;
    send("session.resume", { session_id, resume_token, next_sample: received });
  };
  socket.onmessage = ({ data }) => {
    if (own !== socket) return; // a connection that was given up
    if (data instanceof ArrayBuffer) {
      const samples = new Int16Array(data).length; // hand them to an AudioWorklet here
      received += samples;
      played += samples;
      startedAt ??= performance.now();
      send("playback.ack", { utterance, played_ms: playedMs() });
      return onEvent({ type: "audio" });
    }
    const event = JSON.parse(data);
    if (event.type === "session.created") created = event;
    if (event.type === "audio.start") [utterance, played, startedAt] = [event.utterance, 0, undefined];
    if (event.type === "error") throw new Error(event.message);
    onEvent(event);
  };
}

let chunks = 0;
open((event) => {
  if (event.type === "session.created") {
    send("input.text", { text });
    send("input.flush");
  }
  if (event.type !== "audio" || ++chunks < 2) return;
  // The network fails: this client opens another connection, which takes the place of the first.
  open((event) => {
    if (event.type === "session.resumed") console.log(`resumed at sample ${event.next_sample}`);
    // The user talks: stop the player, and ask what was heard.
    if (event.type === "audio" && ++chunks === 3) send("interrupt", { utterance, played_ms: playedMs() });
    if (event.type === "interrupted") {
      const { played_ms, text_spoken, text_remaining } = event;
      console.log(`heard ${played_ms} ms: "${text_spoken}", not heard: "${text_remaining}"`);
      send("input.done");
    }
    if (event.type === "session.done") socket.close();
  });
});
