//! Markdown tables of scores, and the machine description of a measurement.

use std::fmt::Write as _;
use std::process::Command;

use izwi_tests::wer::{self, Alignment, Score};
use serde::Serialize;

/// One text and the transcript of each model.
#[derive(Debug, Clone)]
pub struct Item {
    /// Name in the table; may be empty.
    pub name: String,
    /// Reference text.
    pub reference: String,
    /// Transcripts, in the order of the models.
    pub hypotheses: Vec<String>,
}

impl Item {
    fn alignments(&self) -> impl Iterator<Item = Alignment> {
        self.hypotheses.iter().map(|hypothesis| wer::compare(&self.reference, hypothesis))
    }
}

/// The sum over all items for each of `count` models.
pub fn totals(items: &[Item], count: usize) -> Vec<Score> {
    let of =
        |model| items.iter().filter_map(|item| item.alignments().nth(model)).map(|found| found.score()).sum();
    (0..count).map(of).collect()
}

/// A table with a row per item and a row of totals, followed by every item with errors.
pub fn table(models: &[&str], items: &[Item]) -> String {
    let mut text = String::from("| reference |");
    let mut rule = String::from("|---|");
    for model in models {
        let _ = write!(text, " {model} | WER |");
        rule.push_str("---|---|");
    }
    text = format!("{text}\n{rule}\n");
    for item in items {
        let name = if item.name.is_empty() { String::new() } else { format!("*{}*: ", cell(&item.name)) };
        let _ = write!(text, "| {name}{} |", cell(&item.reference));
        for (hypothesis, alignment) in item.hypotheses.iter().zip(item.alignments()) {
            let _ = write!(text, " {} | {} |", cell(hypothesis), rate(alignment.score()));
        }
        text.push('\n');
    }
    text.push_str("| **all** |");
    for score in totals(items, models.len()) {
        let _ = write!(text, " {} of {} words | **{:.3}** |", score.errors, score.words, score.rate());
    }
    text.push_str("\n\n");
    text.push_str(&differences(models, items));
    text
}

fn differences(models: &[&str], items: &[Item]) -> String {
    let mut text = String::new();
    for item in items {
        for (model, alignment) in models.iter().zip(item.alignments()) {
            if alignment.score().errors > 0 {
                let _ = writeln!(text, "- {model}: {alignment}");
            }
        }
    }
    if text.is_empty() { text } else { format!("Errors, word by word after normalisation:\n\n{text}") }
}

fn rate(score: Score) -> String {
    if score.errors == 0 { "0".to_owned() } else { format!("{:.3}", score.rate()) }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The machine of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: u64,
    os: String,
    rustc: String,
}

impl Machine {
    /// This machine; facts that the system does not report are `unknown`.
    pub fn this() -> Self {
        let field = |file: &str, key: &str| {
            let text = std::fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once([':', '='])?.1.trim().trim_matches('"').to_owned())
        };
        let unknown = || "unknown".to_owned();
        let memory_kib =
            field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok());
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory_kib.unwrap_or(0_u64) >> 20,
            os: field("/etc/os-release", "PRETTY_NAME").unwrap_or_else(unknown),
            rustc: answer("rustc", &["--version"]).unwrap_or_else(unknown),
        }
    }
}

/// The commit that is checked out, with a plus where files differ from it.
pub fn commit() -> String {
    let hash = answer("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let clean =
        answer("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| text.is_empty());
    if clean { hash } else { format!("{hash}+") }
}

fn answer(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).current_dir(crate::clips::root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_scores_each_model_and_shows_errors() {
        let items = [
            Item {
                name: String::new(),
                reference: "One cat.".into(),
                hypotheses: vec!["one cat".into(), "1 hat".into()],
            },
            Item {
                name: "x".into(),
                reference: "a | b".into(),
                hypotheses: vec!["a b".into(), "a b".into()],
            },
        ];
        let text = table(&["big", "small"], &items);
        assert!(text.contains("| One cat. | one cat | 0 | 1 hat | 0.500 |\n| *x*: a \\| b |"), "{text}");
        assert!(text.contains("| **all** | 0 of 4 words | **0.000** | 1 of 4 words | **0.250** |"), "{text}");
        assert!(text.ends_with("- small: 1 [cat → hat]\n"), "{text}");
    }
}
