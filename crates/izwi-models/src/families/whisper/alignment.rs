//! Word times: dynamic time warping over cross-attention weights.
//!
//! Knows no tensor and no token id. Source:
//! <https://github.com/openai/whisper/blob/main/whisper/timing.py>.

use std::ops::Range;

/// Width of the median filter along time: openai-whisper's `medfilt_width`.
const MEDIAN_WIDTH: usize = 7;
/// Marks that belong to the following word: openai-whisper's `prepend_punctuations`.
const PREPENDED: &str = "\"'“¿([{-";
/// Marks that belong to the preceding word: openai-whisper's `append_punctuations`.
const APPENDED: &str = "\"'.。,，!！?？:：”)]}、";
/// Marks next to which long words are shortened.
const SENTENCE_ENDS: &str = ".。!！?？";
/// Upper limit of the median word duration, in seconds.
const MAX_MEDIAN_S: f64 = 0.7;

/// A word with its times, in seconds from the start of the window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TimedWord {
    pub(super) text: String,
    /// Number of its text tokens.
    pub(super) tokens: usize,
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    pub(super) probability: f32,
}

/// Cross-attention weights of the alignment heads.
#[derive(Debug, Clone, Copy)]
pub(super) struct CrossWeights<'a> {
    /// `[rows, positions]` of each head.
    pub(super) heads: &'a [Vec<f32>],
    pub(super) rows: usize,
    pub(super) positions: usize,
    /// Positions of the window's audio; the rest is padding.
    pub(super) used: usize,
}

impl CrossWeights<'_> {
    /// Standardised and filtered weights, averaged over the heads: `[rows, used]`.
    fn matrix(&self) -> Vec<f32> {
        let (rows, used) = (self.rows, self.used);
        let mut sum = vec![0f32; rows * used];
        for head in self.heads {
            let mut weights = Vec::with_capacity(rows * used);
            for row in head.chunks_exact(self.positions) {
                // The softmax over a part is the whole softmax, rescaled.
                let total = row[..used].iter().sum::<f32>().max(f32::MIN_POSITIVE);
                weights.extend(row[..used].iter().map(|weight| weight / total));
            }
            standardise(&mut weights, used);
            for (sum, row) in sum.chunks_exact_mut(used).zip(weights.chunks_exact(used)) {
                median(row, MEDIAN_WIDTH).zip(sum).for_each(|(value, sum)| *sum += value);
            }
        }
        let heads = self.heads.len().max(1) as f32;
        sum.iter_mut().for_each(|value| *value /= heads);
        sum
    }

    /// The position at which each of `rows` starts.
    pub(super) fn begins(&self, rows: Range<usize>) -> Vec<usize> {
        let matrix = self.matrix();
        warp(&matrix[rows.start * self.used..rows.end * self.used], self.used)
    }

    /// The positions at which the tokens of `rows` start, and the end of the last. The row before a token, which predicts it,
    /// attends to it too early, and its own row too late: the start is between the two. What is before the text goes to the
    /// row before those.
    pub(super) fn bounds(&self, rows: Range<usize>) -> Vec<f64> {
        let matrix = self.matrix();
        let path =
            |rows: Range<usize>| warp(&matrix[rows.start * self.used..rows.end * self.used], self.used);
        let (early, late) = (path(rows.start - 2..rows.end), path(rows.start - 1..rows.end + 1));
        early.iter().zip(&late).skip(1).map(|(early, late)| (early + late) as f64 / 2.0).collect()
    }
}

/// Standardises each column to mean 0 and deviation 1.
fn standardise(weights: &mut [f32], columns: usize) {
    let rows = (weights.len() / columns.max(1)).max(1) as f32;
    for column in 0..columns {
        let values = || weights.iter().skip(column).step_by(columns);
        let mean = values().sum::<f32>() / rows;
        let deviation = (values().map(|v| (v - mean) * (v - mean)).sum::<f32>() / rows).sqrt();
        let scale = if deviation > 0.0 { 1.0 / deviation } else { 0.0 };
        weights.iter_mut().skip(column).step_by(columns).for_each(|v| *v = (*v - mean) * scale);
    }
}

/// Median filter of `width` values over a row reflected at its ends; a row that is too short is returned unchanged.
pub(super) fn median(row: &[f32], width: usize) -> impl Iterator<Item = f32> + '_ {
    let (reach, len) = (width / 2, row.len());
    let mut around = vec![0f32; width];
    (0..len).map(move |at| {
        if len <= reach {
            return row[at];
        }
        for (offset, value) in around.iter_mut().enumerate() {
            let at = (at + offset).abs_diff(reach);
            *value = row[if at < len { at } else { 2 * (len - 1) - at }];
        }
        around.sort_unstable_by(f32::total_cmp);
        around[reach]
    })
}

/// Dynamic time warping through the gains `matrix` `[rows, columns]`: the column at which the path enters each row.
pub(super) fn warp(matrix: &[f32], columns: usize) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum Step {
        Both,
        Row,
        Column,
    }
    let rows = matrix.len().checked_div(columns).unwrap_or(0);
    let width = columns + 1;
    let mut cost = vec![f32::INFINITY; (rows + 1) * width];
    // Only one step is possible along the edges.
    let mut steps = vec![Step::Row; (rows + 1) * width];
    steps[..width].fill(Step::Column);
    cost[0] = 0.0;
    for row in 1..=rows {
        for column in 1..=columns {
            let at = row * width + column;
            let (both, up, left) = (cost[at - width - 1], cost[at - width], cost[at - 1]);
            let (least, step) = if both < up && both < left {
                (both, Step::Both)
            } else if up < both && up < left {
                (up, Step::Row)
            } else {
                (left, Step::Column)
            };
            cost[at] = least - matrix[(row - 1) * columns + column - 1];
            steps[at] = step;
        }
    }
    let mut begins = vec![0; rows];
    let (mut row, mut column) = (rows, columns);
    while row > 0 {
        begins[row - 1] = column.saturating_sub(1);
        match steps[row * width + column] {
            Step::Both => (row, column) = (row - 1, column - 1),
            Step::Row => row -= 1,
            Step::Column => column -= 1,
        }
    }
    begins
}

/// Times words: `begins` holds the start of each token in seconds and the end of the last; `probabilities` is per token.
pub(super) fn time_words(
    words: Vec<(String, usize)>,
    begins: &[f64],
    probabilities: &[f32],
) -> Vec<TimedWord> {
    let mut at = 0;
    let mut timed = Vec::with_capacity(words.len());
    for (text, tokens) in words {
        let end = at + tokens;
        let (Some(&start_s), Some(&end_s)) = (begins.get(at), begins.get(end)) else { break };
        let sum: f32 = probabilities[at..end].iter().sum();
        timed.push(TimedWord { text, tokens, start_s, end_s, probability: sum / tokens.max(1) as f32 });
        at = end;
    }
    timed
}

/// Median duration of a word in seconds.
pub(super) fn median_duration(words: &[TimedWord]) -> f64 {
    let mut durations: Vec<f64> = words.iter().map(|w| w.end_s - w.start_s).filter(|d| *d != 0.0).collect();
    durations.sort_unstable_by(f64::total_cmp);
    let middle = durations.len() / 2;
    let median = match durations.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => durations[middle],
        _ => (durations[middle - 1] + durations[middle]) / 2.0,
    };
    median.min(MAX_MEDIAN_S)
}

/// Limits words next to the end of a sentence, where pauses are, to twice the median duration.
pub(super) fn shorten_at_sentence_ends(words: &mut [TimedWord], usual_s: f64) {
    let longest = 2.0 * usual_s;
    if longest == 0.0 {
        return;
    }
    for at in 1..words.len() {
        if words[at].end_s - words[at].start_s > longest {
            if SENTENCE_ENDS.contains(&words[at].text) {
                words[at].end_s = words[at].start_s + longest;
            } else if SENTENCE_ENDS.contains(&words[at - 1].text) {
                words[at].start_s = words[at].end_s - longest;
            }
        }
    }
}

/// Merges punctuation into its word, which keeps its times. A merged mark becomes an empty word, so that tokens can still
/// be counted.
pub(super) fn merge_punctuation(words: &mut [TimedWord]) {
    let mut following = words.len().saturating_sub(1);
    for at in (0..following).rev() {
        let opens = words[at].text.starts_with(' ') && PREPENDED.contains(words[at].text.trim());
        if opens {
            let (text, tokens) = (std::mem::take(&mut words[at].text), std::mem::take(&mut words[at].tokens));
            words[following].text.insert_str(0, &text);
            words[following].tokens += tokens;
        } else {
            following = at;
        }
    }
    let mut previous = 0;
    for at in 1..words.len() {
        if !words[previous].text.ends_with(' ') && APPENDED.contains(&words[at].text) {
            let (text, tokens) = (std::mem::take(&mut words[at].text), std::mem::take(&mut words[at].tokens));
            words[previous].text.push_str(&text);
            words[previous].tokens += tokens;
        } else {
            previous = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str, start_s: f64, end_s: f64) -> TimedWord {
        TimedWord { text: text.to_owned(), tokens: 1, start_s, end_s, probability: 1.0 }
    }

    #[test]
    fn the_path_follows_the_largest_weights() {
        // Rows attend to columns 0-2, 3-4, 5-9 in turn.
        let bright = |row: usize, column: usize| match column {
            0..3 => row == 0,
            3..5 => row == 1,
            _ => row == 2,
        };
        let matrix: Vec<f32> = (0..30).map(|i| if bright(i / 10, i % 10) { 1.0 } else { -1.0 }).collect();
        assert_eq!(warp(&matrix, 10), [0, 3, 5]);
        assert_eq!(warp(&[], 10), [0usize; 0]);
    }

    #[test]
    fn heads_are_averaged_without_padding() {
        // Four rows over six used positions of eight; the last two hold most of the weight.
        let row = |bright: usize| {
            let mut row = vec![0.01f32; 8];
            row[bright] = 0.2;
            row[6] = 0.7;
            row
        };
        let head: Vec<f32> = [0, 2, 4, 5].iter().flat_map(|&bright| row(bright)).collect();
        let heads = [head.clone(), head];
        let cross_weights = CrossWeights { heads: &heads, rows: 4, positions: 8, used: 6 };
        let matrix = cross_weights.matrix();
        assert_eq!(matrix.len(), 24);
        assert!(cross_weights.begins(0..4).is_sorted());
    }

    #[test]
    fn a_token_starts_between_what_its_prediction_and_its_own_row_attend_to() {
        // Five rows attend to ten positions each; the two tokens have the rows 2 and 3.
        let weight = |at: usize| if at % 50 / 10 == at / 50 { 0.09 } else { 0.0025 };
        let heads = [(0..250).map(weight).collect::<Vec<f32>>()];
        let cross_weights = CrossWeights { heads: &heads, rows: 5, positions: 50, used: 50 };
        assert_eq!(cross_weights.bounds(2..4), [15.0, 25.0, 35.0]);
    }

    #[test]
    fn the_median_filter_reflects_the_ends() {
        let filtered: Vec<f32> = median(&[9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 7.0], 7).collect();
        // 3 2 1 9 1 2 3 around the first, 4 5 0 7 0 5 4 around the last.
        assert_eq!(filtered[0], 2.0);
        assert_eq!(filtered[3], 3.0);
        assert_eq!(filtered[7], 4.0);
        assert_eq!(median(&[3.0, 1.0, 2.0], 7).collect::<Vec<_>>(), [3.0, 1.0, 2.0]);
    }

    #[test]
    fn columns_are_standardised_and_constant_ones_are_zero() {
        let mut weights = [1.0, 5.0, 3.0, 5.0];
        standardise(&mut weights, 2);
        assert_eq!(weights, [-1.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn punctuation_merges_into_its_word() {
        let mut words =
            [word(" \"", 0.0, 0.1), word("Hi", 0.1, 0.4), word(",", 0.4, 0.5), word("\"", 0.5, 0.6)];
        let mut more = [word(" generated", 0.6, 0.9), word(".", 0.9, 1.5)];
        merge_punctuation(&mut words);
        merge_punctuation(&mut more);
        let texts: Vec<&str> = words.iter().chain(&more).map(|word| word.text.as_str()).collect();
        assert_eq!(texts, ["", " \"Hi,\"", "", "", " generated.", ""]);
        assert_eq!((words[1].tokens, words[1].start_s, words[1].end_s), (4, 0.1, 0.4));
    }

    #[test]
    fn a_pause_does_not_stretch_the_words_around_it() {
        let mut words =
            [word(" a", 0.0, 0.2), word(" b", 0.2, 0.4), word(".", 0.4, 2.0), word(" c", 2.0, 4.0)];
        let usual_s = median_duration(&words);
        shorten_at_sentence_ends(&mut words, usual_s);
        // The median of 0.2, 0.2, 1.6 and 2.0 is 0.9, held to 0.7.
        assert!(words[2].start_s == 0.4 && (words[2].end_s - 1.8).abs() < 1e-9);
        assert!((words[3].start_s - 2.6).abs() < 1e-9 && words[3].end_s == 4.0);
    }

    #[test]
    fn words_get_the_times_of_their_tokens() {
        let words = vec![(" one".to_owned(), 2), (" two".to_owned(), 1)];
        let timed = time_words(words, &[0.0, 0.1, 0.5, 0.9], &[0.5, 1.0, 0.25]);
        assert_eq!((timed[0].start_s, timed[0].end_s, timed[0].probability), (0.0, 0.5, 0.75));
        assert_eq!((timed[1].start_s, timed[1].end_s, timed[1].probability), (0.5, 0.9, 0.25));
    }
}
