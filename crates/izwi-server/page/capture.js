// The microphone as samples from -1 to 1, at a rate that every route takes.

// The routes take 8 to 48 kHz; devices with more are resampled by the browser.
const RATE = 48_000;

// Begins to record. `onsamples` receives the pieces, none after stop() has ended. Returns {rate, stop()}.
export async function capture(onsamples) {
  if (!navigator.mediaDevices?.getUserMedia || !globalThis.AudioWorkletNode) {
    throw new Error("Browsers give pages a microphone on https or localhost only. Open this page there, or drop a file.");
  }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true } });
  } catch (error) {
    const reasons = {
      NotAllowedError: "The microphone is blocked for this page. Allow it in the browser's address bar.",
      NotFoundError: "No microphone was found. Connect one, or drop a file.",
    };
    throw new Error(reasons[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
  let context = new AudioContext({ sampleRate: RATE });
  let node;
  try {
    let source;
    try {
      source = context.createMediaStreamSource(stream);
    } catch {
      // Firefox resamples no microphone: its context has the rate of the device.
      await context.close();
      context = new AudioContext();
      if (context.sampleRate > RATE) throw new Error(`The microphone has ${context.sampleRate} Hz; set it to 48 kHz or less.`);
      source = context.createMediaStreamSource(stream);
    }
    await context.audioWorklet.addModule("/page/capture-worklet.js");
    await context.resume();
    node = new AudioWorkletNode(context, "izwi-capture", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    node.port.onmessage = ({ data }) => onsamples(data);
    source.connect(node);
  } catch (error) {
    stream.getTracks().forEach((track) => track.stop());
    await context.close();
    throw error;
  }
  let isOn = true;
  return {
    rate: context.sampleRate,
    async stop() {
      if (!isOn) return;
      isOn = false;
      stream.getTracks().forEach((track) => track.stop());
      await context.close();
      // Pieces may still be on their way from the audio thread.
      node.port.onmessage = null;
    },
  };
}
