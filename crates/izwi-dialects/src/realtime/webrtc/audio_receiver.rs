//! Decodes the packets of a client to the audio of its session.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use izwi_audio::opus_packets::{OpusError, OpusPacketDecoder, PACKET_SAMPLES};
use izwi_audio::pcm;
use serde_json::json;

/// Units of RTP's clock in a packet that is concealed: 20 ms at 48 kHz.
const PACKET_UNITS: u64 = 960;
/// The packets that are concealed one after another; what is lost beyond that is missing.
const MAX_CONCEALED: u64 = 10;

/// The audio of a client.
pub(super) struct AudioReceiver {
    decoder: OpusPacketDecoder,
    /// When the next packet begins, in units of RTP's clock.
    next: Option<u64>,
}

impl AudioReceiver {
    /// A receiver at the start of a stream.
    ///
    /// # Errors
    /// The codec fails.
    pub(super) fn new() -> Result<Self, OpusError> {
        Ok(Self { decoder: OpusPacketDecoder::new()?, next: None })
    }

    /// The event of a packet that begins at `at`, with what stands for packets that were lost before it; `None` if it is
    /// damaged or late.
    pub(super) fn receive(&mut self, at: u64, packet: &[u8]) -> Option<String> {
        let mut bytes = Vec::new();
        let missing = match self.next {
            Some(next) if at < next => return None,
            Some(next) => ((at - next) / PACKET_UNITS).min(MAX_CONCEALED),
            None => 0,
        };
        for _ in 0..missing {
            let silence = [0.0; PACKET_SAMPLES];
            pcm::write_i16_le(self.decoder.conceal().unwrap_or(&silence), &mut bytes);
        }
        let samples = self.decoder.decode(packet).ok()?;
        // RTP counts at 48 kHz whatever the rate of the samples.
        self.next = Some(at + 2 * samples.len() as u64);
        pcm::write_i16_le(samples, &mut bytes);
        let event = json!({"type": "input_audio_buffer.append", "audio": STANDARD.encode(bytes)});
        Some(event.to_string())
    }
}

#[cfg(test)]
mod tests {
    use izwi_audio::opus_packets::OpusPacketEncoder;

    use super::*;

    fn samples(event: &str) -> usize {
        let event: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(event["type"], "input_audio_buffer.append");
        STANDARD.decode(event["audio"].as_str().unwrap()).unwrap().len() / 2
    }

    #[test]
    fn what_is_lost_takes_its_time_up_to_a_bound() {
        let packet = OpusPacketEncoder::new().unwrap().encode(&[0.1; PACKET_SAMPLES]).unwrap();
        let mut audio_receiver = AudioReceiver::new().unwrap();
        let mut received = |at: u64| audio_receiver.receive(at, &packet).map(|event| samples(&event));
        assert_eq!(received(5_000), Some(480));
        assert_eq!(received(5_960), Some(480));
        assert_eq!(received(5_960), None, "a packet comes once");
        assert_eq!(received(5_960 + 3 * 960), Some(3 * 480), "two are lost");
        assert_eq!(received(10_000_000), Some(11 * 480));
        assert_eq!(audio_receiver.receive(20_000_000, &[255; 90]), None, "damaged");
    }
}
