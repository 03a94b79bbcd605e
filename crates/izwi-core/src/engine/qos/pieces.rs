//! How long steps keep the device: the longest of their pieces between yield points, as a part of their time.
//!
//! Must not know where the yield points are.

use std::time::Duration;

use super::cost::StepShape;

/// Steps whose longest part counts.
const WINDOW: usize = 32;
/// Shorter steps tell little.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest piece of each of the last steps over its time, of those with a prompt or an encoder, and of others.
#[derive(Debug, Default)]
pub(in crate::engine) struct Pieces([Window; 2]);

#[derive(Debug, Default)]
struct Window {
    parts: Vec<f64>,
    next: usize,
}

impl Window {
    /// 1 before the first step.
    fn longest(&self) -> f64 {
        self.parts.iter().copied().reduce(f64::max).unwrap_or(1.0)
    }

    fn add(&mut self, part: f64) {
        if self.parts.len() < WINDOW {
            self.parts.push(part);
        } else {
            self.parts[self.next] = part;
            self.next = (self.next + 1) % WINDOW;
        }
    }
}

impl Pieces {
    /// A step took `time`, and at most `longest` between two of its yield points.
    pub(in crate::engine) fn observe(&mut self, shape: StepShape, time: Duration, longest: Duration) {
        if time >= SHORTEST {
            let part = longest.as_secs_f64() / time.as_secs_f64();
            self.0[kind(shape)].add(part.clamp(0.0, 1.0));
        }
    }

    /// The longest part of a step that is counted on.
    pub(in crate::engine) fn longest(&self, shape: StepShape) -> f64 {
        self.0[kind(shape)].longest()
    }

    /// The longest part of a step with a prompt or an encoder.
    pub(in crate::engine) fn longest_of_prompts(&self) -> f64 {
        self.0[1].longest()
    }
}

fn kind(shape: StepShape) -> usize {
    usize::from(shape.prefill_tokens > 0 || shape.encoder_tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_longest_part_of_the_last_steps_of_a_kind_counts() {
        let (decode, prompt) =
            (StepShape::decode(4), StepShape { prefill_tokens: 90, ..StepShape::default() });
        let mut pieces = Pieces::default();
        assert_eq!((pieces.longest(decode), pieces.longest_of_prompts()), (1.0, 1.0), "nothing is known");
        for longest in [20, 30, 10] {
            pieces.observe(prompt, ms(100), ms(longest));
        }
        pieces.observe(prompt, ms(5), ms(5));
        assert_eq!((pieces.longest(decode), pieces.longest(prompt)), (1.0, 0.3));
        for _ in 0..WINDOW {
            pieces.observe(prompt, ms(400), ms(40));
        }
        assert!((pieces.longest_of_prompts() - 0.1).abs() < 1e-9);
        pieces.observe(decode, ms(50), ms(60));
        assert_eq!(pieces.longest(decode), 1.0);
    }
}
