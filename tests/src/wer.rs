//! Word error rate of a hypothesis against a reference, after normalisation of both.
//!
//! Errors are substitutions, deletions and insertions of the cheapest alignment; the rate of a corpus is the sum of
//! errors over the sum of words, so that long items weigh more.

mod english;
mod numbers;

use std::fmt;

pub use english::normalise;

/// One step of an alignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Correct word.
    Same(String),
    /// Substitution.
    Substituted {
        /// Reference word.
        reference: String,
        /// Hypothesis word.
        hypothesis: String,
    },
    /// Deletion.
    Deleted(String),
    /// Insertion.
    Inserted(String),
}

/// Alignment of reference and hypothesis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Alignment {
    /// In order.
    pub edits: Vec<Edit>,
}

/// Errors and the words they are counted against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Score {
    /// Substitutions, deletions and insertions.
    pub errors: usize,
    /// Reference words.
    pub words: usize,
}

impl Score {
    /// Errors over reference words. Without reference words 0 for an empty hypothesis, else 1.
    pub fn rate(self) -> f64 {
        match self {
            Self { errors: 0, .. } => 0.0,
            Self { words: 0, .. } => 1.0,
            Self { errors, words } => errors as f64 / words as f64,
        }
    }
}

impl std::iter::Sum for Score {
    fn sum<I: Iterator<Item = Self>>(scores: I) -> Self {
        scores.fold(Self::default(), |sum, score| Self {
            errors: sum.errors + score.errors,
            words: sum.words + score.words,
        })
    }
}

impl Alignment {
    /// Errors and words.
    pub fn score(&self) -> Score {
        let errors = self.edits.iter().filter(|edit| !matches!(edit, Edit::Same(_))).count();
        let inserted = self.edits.iter().filter(|edit| matches!(edit, Edit::Inserted(_))).count();
        Score { errors, words: self.edits.len() - inserted }
    }
}

/// The words, with `[reference → hypothesis]`, `[−reference]` and `[+hypothesis]` where they differ.
impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, edit) in self.edits.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            match edit {
                Edit::Same(word) => f.write_str(word)?,
                Edit::Substituted { reference, hypothesis } => write!(f, "[{reference} → {hypothesis}]")?,
                Edit::Deleted(word) => write!(f, "[−{word}]")?,
                Edit::Inserted(word) => write!(f, "[+{word}]")?,
            }
        }
        Ok(())
    }
}

/// Compares English texts after [`normalise`].
pub fn compare(reference: &str, hypothesis: &str) -> Alignment {
    let (reference, hypothesis) = (normalise(reference), normalise(hypothesis));
    align(&divided(&reference, &hypothesis), &divided(&hypothesis, &reference))
}

/// Compounds that the other side writes in two words, written in two as well: "coldhearted" alongside "cold-hearted" is
/// a spelling, not another word.
fn divided(words: &[String], other: &[String]) -> Vec<String> {
    let halves = |word: &String| {
        let halves = other.windows(2).find(|pair| pair.concat() == *word)?;
        (!other.contains(word)).then(|| halves.to_vec())
    };
    words.iter().flat_map(|word| halves(word).unwrap_or_else(|| vec![word.clone()])).collect()
}

/// The cheapest alignment of two lists of words; of equally cheap ones the one with the most substitutions near the
/// end.
pub fn align(reference: &[String], hypothesis: &[String]) -> Alignment {
    let costs = costs(reference, hypothesis);
    let (mut row, mut column) = (reference.len(), hypothesis.len());
    let mut edits = Vec::with_capacity(row.max(column));
    while row > 0 || column > 0 {
        let here = costs[row][column];
        if row > 0 && column > 0 {
            let (word, other) = (&reference[row - 1], &hypothesis[column - 1]);
            let cost = usize::from(word != other);
            if here == costs[row - 1][column - 1] + cost {
                edits.push(match cost {
                    0 => Edit::Same(word.clone()),
                    _ => Edit::Substituted { reference: word.clone(), hypothesis: other.clone() },
                });
                (row, column) = (row - 1, column - 1);
                continue;
            }
        }
        if row > 0 && here == costs[row - 1][column] + 1 {
            row -= 1;
            edits.push(Edit::Deleted(reference[row].clone()));
        } else {
            column -= 1;
            edits.push(Edit::Inserted(hypothesis[column].clone()));
        }
    }
    edits.reverse();
    Alignment { edits }
}

/// `costs[i][j]`: the fewest edits from the first i reference words to the first j hypothesis words.
fn costs(reference: &[String], hypothesis: &[String]) -> Vec<Vec<usize>> {
    let mut costs = vec![(0..=hypothesis.len()).collect::<Vec<usize>>()];
    for (row, word) in reference.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, other) in hypothesis.iter().enumerate() {
            let above = &costs[row];
            let replaced = above[column] + usize::from(word != other);
            line.push(replaced.min(above[column + 1] + 1).min(line[column] + 1));
        }
        costs.push(line);
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reference: &str, hypothesis: &str, errors: usize, words: usize) {
        let alignment = compare(reference, hypothesis);
        assert_eq!(alignment.score(), Score { errors, words }, "{alignment}");
    }

    #[test]
    fn a_compound_may_be_written_in_one_word_or_two() {
        for (reference, hypothesis) in
            [("cold-hearted men", "coldhearted men"), ("a playground", "a play ground")]
        {
            assert_eq!(compare(reference, hypothesis).score().errors, 0, "{reference}");
        }
        assert_eq!(compare("a cold heart", "a coldhearted").score().errors, 2);
    }

    #[test]
    fn errors_are_counted_against_the_words_said() {
        check("the cat sat", "The cat sat.", 0, 3);
        check("the cat sat", "the bat sat", 1, 3);
        check("the cat sat", "the cat", 1, 3);
        check("the cat", "the cat sat down", 2, 2);
        check("", "", 0, 0);
        check("the cat", "", 2, 2);
        check("a b c d", "b c d e", 2, 4);
    }

    #[test]
    fn an_alignment_reads_as_text() {
        let alignment = compare("the quick brown fox ran", "the quiet fox ran away");
        assert_eq!(alignment.to_string(), "the [−quick] [brown → quiet] fox ran [+away]");
        assert_eq!(alignment.score(), Score { errors: 3, words: 5 });
    }

    #[test]
    fn a_corpus_sums_before_it_divides() {
        let scores = [Score { errors: 1, words: 2 }, Score { errors: 0, words: 8 }];
        let sum: Score = scores.into_iter().sum();
        assert!((sum.rate() - 0.1).abs() < 1e-12);
        assert_eq!(Score::default().rate(), 0.0);
        assert_eq!(Score { errors: 3, words: 0 }.rate(), 1.0);
    }
}
