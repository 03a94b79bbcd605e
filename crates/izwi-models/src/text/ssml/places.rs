//! Which place of the written text a place of the spoken one is.

use std::ops::Range;

/// A stretch of spoken text, and the written text that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stretch {
    spoken: Range<usize>,
    written: Range<usize>,
    /// Whether both are the same text.
    is_verbatim: bool,
}

/// The places of a spoken text in the written one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places(Vec<Stretch>);

impl Places {
    /// Appends a stretch: `spoken` bytes that stand for a part of the written text.
    pub(super) fn push(&mut self, spoken: usize, written: Range<usize>, is_verbatim: bool) {
        let start = self.0.last().map_or(0, |last| last.spoken.end);
        if let Some(last) = self.0.last_mut()
            && last.is_verbatim
            && is_verbatim
            && last.written.end == written.start
        {
            (last.spoken.end, last.written.end) = (start + spoken, written.end);
            return;
        }
        self.0.push(Stretch { spoken: start..start + spoken, written, is_verbatim });
    }

    /// How much of the written text is said once the first `spoken` bytes are. What is said in other words counts as a whole.
    pub fn written(&self, spoken: usize) -> usize {
        let at = self.0.partition_point(|stretch| stretch.spoken.end < spoken);
        match self.0.get(at) {
            Some(stretch) if stretch.is_verbatim => {
                stretch.written.start + spoken.saturating_sub(stretch.spoken.start)
            }
            Some(stretch) if spoken <= stretch.spoken.start => stretch.written.start,
            Some(stretch) => stretch.written.end,
            None => self.0.last().map_or(0, |last| last.written.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_in_other_words_counts_as_a_whole() {
        let mut places = Places::default();
        // "<b/>The W3C said" spoken as "The World Wide said".
        places.push(4, 4..8, true);
        places.push(10, 8..11, false);
        places.push(5, 11..16, true);
        let written: Vec<usize> = [0, 3, 4, 9, 14, 15, 19, 40].map(|at| places.written(at)).into();
        assert_eq!(written, [4, 7, 8, 11, 11, 12, 16, 16]);
        assert_eq!(Places::default().written(3), 0);
    }
}
