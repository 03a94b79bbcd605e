//! The minutes of a meeting, by a language model. Long ones are read in pieces, whose notes are then one.

use anyhow::{Context as _, Result};
use izwi_hub::{WorkFolder, sha256};
use izwi_remote::LanguageModel;

use crate::failure;

/// The most bytes that are read at once: about 4,000 tokens, which small models have.
const PIECE_BYTES: usize = 12_000;
/// How often notes are made of notes.
const MAX_ROUNDS: usize = 4;
const NOTES: &str = "You take notes of a meeting. You are given a piece of its transcript, which was made by a machine and may have mistakes: \
    a time, who speaks, and what they say. Write down, as a list in the language of the transcript, what is said about each topic, what is \
    decided, who is to do what by when, and what stays open. Write nothing that is not in it.";
const MINUTES: &str = "You write the minutes of a meeting. You are given its transcript, or notes of it, made by a machine and \
    with possible mistakes. Write Markdown in the language of the meeting, with the sections `### Summary`, `### Decisions`, `### Actions` (who does \
    what by when) and `### Open questions`. Leave out a section that has nothing. Write nothing that is not in what you are given, and nothing before \
    or after the minutes.";

/// The minutes of a transcript, which has a line for each turn. What is answered is kept in `work`. `name` stands for the model.
///
/// # Errors
/// The model does not answer, or the answer cannot be kept.
pub(crate) async fn write(
    llm: &LanguageModel,
    name: &str,
    transcript: &str,
    work: &WorkFolder,
) -> Result<String> {
    let mut text = transcript.to_owned();
    for _ in 0..MAX_ROUNDS {
        if text.len() <= PIECE_BYTES {
            break;
        }
        let mut notes = Vec::new();
        for piece in pieces(&text) {
            notes.push(answer(llm, name, NOTES, &piece, work).await?);
        }
        let shorter = notes.join("\n\n");
        // A model that only repeats would go on for ever.
        let is_shorter = shorter.len() < text.len();
        text = shorter;
        if !is_shorter {
            break;
        }
    }
    answer(llm, name, MINUTES, &text, work).await
}

async fn answer(
    llm: &LanguageModel,
    name: &str,
    system: &str,
    text: &str,
    work: &WorkFolder,
) -> Result<String> {
    let file = format!("{}.answer", sha256(format!("{name}\n{system}\n{text}")));
    if let Ok(kept) = std::fs::read_to_string(work.file(&file)) {
        return Ok(kept);
    }
    let answer = llm.answer(system, text).await?;
    let answer = Some(answer.trim()).filter(|answer| !answer.is_empty());
    let answer = answer.context("the language model wrote nothing")?;
    work.store(&file, answer.as_bytes()).map_err(failure::of_storing)?;
    Ok(answer.to_owned())
}

/// Lines together, as many as fit. A line that does not fit is cut.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for line in text.lines() {
        let mut rest = line;
        while !rest.is_empty() {
            let cut = rest.floor_char_boundary(PIECE_BYTES - 1);
            let (own, after) = rest.split_at(cut);
            let last = pieces.last_mut().filter(|last| last.len() + own.len() < PIECE_BYTES);
            match last {
                Some(last) => *last += &format!("{own}\n"),
                None => pieces.push(format!("{own}\n")),
            }
            rest = after;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_all_lines_and_fit() {
        let text: String = (0..900).map(|n| format!("[0:{n:02}] ann: Ünd so {n}.\n")).collect();
        let found = pieces(&text);
        assert!(found.len() > 1 && found.iter().all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(found.concat(), text);
        let long = "ü".repeat(PIECE_BYTES);
        let found = pieces(&long);
        assert!(found.iter().all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(found.concat().replace('\n', ""), long);
        assert_eq!(pieces(""), [""]);
    }
}
