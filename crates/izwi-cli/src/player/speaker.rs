//! The sound output of macOS in this process: the system has no program that plays a stream.
//!
//! Knows no request and no file.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Samples on their way from the writer to the output device, no more than a second.
#[derive(Debug)]
struct SampleQueue {
    samples: Mutex<VecDeque<f32>>,
    capacity: usize,
    /// Notified when samples were taken.
    taken: Condvar,
}

impl SampleQueue {
    fn new(capacity: usize) -> Self {
        Self { samples: Mutex::default(), capacity, taken: Condvar::new() }
    }

    /// Appends samples, and waits for space; `false` if the device takes none for `timeout`.
    fn push(&self, samples: &[f32], timeout: Duration) -> bool {
        let mut rest = samples;
        let mut queue = self.lock();
        while !rest.is_empty() {
            let space = self.capacity.saturating_sub(queue.len()).min(rest.len());
            let (now, later) = rest.split_at(space);
            queue.extend(now);
            rest = later;
            if rest.is_empty() {
                break;
            }
            let waited = self.taken.wait_timeout(queue, timeout).unwrap_or_else(PoisonError::into_inner);
            queue = waited.0;
            if waited.1.timed_out() && queue.len() >= self.capacity {
                return false;
            }
        }
        true
    }

    /// Fills `to` with the next samples, then with silence.
    fn fill(&self, to: &mut [f32]) {
        let mut queue = self.lock();
        for sample in to {
            *sample = queue.pop_front().unwrap_or(0.0);
        }
        self.taken.notify_all();
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    /// A panic leaves the samples valid.
    fn lock(&self) -> MutexGuard<'_, VecDeque<f32>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(target_os = "macos")]
mod core_audio {
    use anyhow::{Context as _, Result, bail};
    use coreaudio::audio_unit::audio_format::LinearPcmFlags;
    use coreaudio::audio_unit::render_callback::{Args, data};
    use coreaudio::audio_unit::{AudioUnit, Element, IOType, SampleFormat, Scope, StreamFormat};

    use super::*;

    /// How long the output device may take no samples before it counts as lost.
    const DEVICE_TIMEOUT: Duration = Duration::from_secs(5);
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    /// What the device still plays when the queue is empty.
    const DEVICE_BUFFER: Duration = Duration::from_millis(300);

    /// A stream on the default output device, which converts the sample rate. Dropping it stops it.
    pub(crate) struct Speaker {
        unit: AudioUnit,
        queue: Arc<SampleQueue>,
    }

    impl std::fmt::Debug for Speaker {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Speaker").field("waiting", &self.queue.len()).finish_non_exhaustive()
        }
    }

    impl Speaker {
        /// Starts a stream of mono samples.
        ///
        /// # Errors
        /// There is no output device, or it refuses the stream.
        pub(crate) fn open(sample_rate_hz: u32) -> Result<Self> {
            let queue = Arc::new(SampleQueue::new(sample_rate_hz as usize));
            let mut unit = AudioUnit::new_uninitialized(IOType::DefaultOutput)
                .context("the sound output of macOS cannot be opened")?;
            let format = StreamFormat {
                sample_rate: f64::from(sample_rate_hz),
                sample_format: SampleFormat::F32,
                flags: LinearPcmFlags::IS_FLOAT
                    | LinearPcmFlags::IS_PACKED
                    | LinearPcmFlags::IS_NON_INTERLEAVED,
                channels: 1,
            };
            unit.set_stream_format(format, Scope::Input, Element::Output)
                .with_context(|| format!("the sound output refuses {sample_rate_hz} Hz"))?;
            let source = Arc::clone(&queue);
            let render = move |mut args: Args<data::NonInterleaved<f32>>| {
                args.data.channels_mut().for_each(|channel| source.fill(channel));
                Ok(())
            };
            unit.set_render_callback(render).context("the sound output takes no samples")?;
            unit.initialize().context("the sound output cannot be prepared")?;
            unit.start().context("the sound output does not start")?;
            Ok(Self { unit, queue })
        }

        /// Plays more samples; blocks while a second of them waits.
        ///
        /// # Errors
        /// The device takes no more samples.
        pub(crate) fn write(&self, samples: &[f32]) -> Result<()> {
            if !self.queue.push(samples, DEVICE_TIMEOUT) {
                bail!("the output device takes no more samples")
            }
            Ok(())
        }

        /// Waits until all samples were played.
        ///
        /// # Errors
        /// The device takes no more samples, or does not stop.
        pub(crate) async fn finish(mut self) -> Result<()> {
            let (mut waiting, mut idle) = (self.queue.len(), Duration::ZERO);
            while waiting > 0 {
                tokio::time::sleep(POLL_INTERVAL).await;
                let now = self.queue.len();
                idle = if now < waiting { Duration::ZERO } else { idle + POLL_INTERVAL };
                waiting = now;
                if idle > DEVICE_TIMEOUT {
                    bail!("the output device takes no more samples")
                }
            }
            tokio::time::sleep(DEVICE_BUFFER).await;
            self.unit.stop().context("the sound output does not stop")
        }
    }
}

#[cfg(target_os = "macos")]
pub(crate) use core_audio::Speaker;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_arrive_in_order_with_silence_behind_them() {
        let queue = SampleQueue::new(10);
        assert!(queue.push(&[1.0, 2.0, 3.0], Duration::ZERO));
        let mut played = [9.0; 2];
        queue.fill(&mut played);
        assert_eq!((played, queue.len()), ([1.0, 2.0], 1));
        let mut played = [9.0; 3];
        queue.fill(&mut played);
        assert_eq!(played, [3.0, 0.0, 0.0]);
    }

    #[test]
    fn a_full_queue_waits_for_the_device_and_gives_up_on_a_lost_one() {
        let queue = Arc::new(SampleQueue::new(4));
        assert!(!queue.push(&[1.0; 5], Duration::from_millis(10)));
        let device = Arc::clone(&queue);
        let taken = std::thread::spawn(move || {
            let mut sum = 0.0;
            while sum < 24.0 {
                let mut played = [0.0; 3];
                device.fill(&mut played);
                sum += played.iter().sum::<f32>();
            }
            sum
        });
        assert!(queue.push(&[1.0; 20], Duration::from_secs(10)));
        assert_eq!(taken.join().unwrap(), 24.0);
    }
}
