// The audio thread of the recorder: hands on what the microphone hears, in pieces of about 20 ms.

class CaptureProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Float32Array(Math.round(sampleRate / 50));
    this.at = 0;
  }

  process([[input]]) {
    if (!input) return true;
    for (const sample of input) {
      this.piece[this.at++] = sample;
      if (this.at === this.piece.length) {
        this.port.postMessage(this.piece.slice());
        this.at = 0;
      }
    }
    return true;
  }
}

registerProcessor("izwi-capture", CaptureProcessor);
