// Stream speech over the WebSocket and collect the chunks as they arrive. Runs in a browser and in Node 22
// (Node 20: node --experimental-websocket stream.mjs).
const socket = new WebSocket("ws://127.0.0.1:8080/v1/audio/speech/stream");
socket.binaryType = "arraybuffer";

socket.onopen = () =>
  socket.send(JSON.stringify({ type: "speak", text: "Hello from Izwi. This streams during generation." }));

let samples = 0;
socket.onmessage = ({ data }) => {
  if (data instanceof ArrayBuffer) {
    samples += new Int16Array(data).length; // 200 ms of PCM: hand it to an AudioWorklet here
    return;
  }
  const event = JSON.parse(data);
  if (event.type === "audio.done") console.log(`${samples} samples, RTF ${event.rtf.toFixed(3)}`);
  if (event.type === "error") console.error(event.message);
  if (event.type === "session.done") socket.close();
};
