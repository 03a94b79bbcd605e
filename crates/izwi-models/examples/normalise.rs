//! Prints lines of text as they are read out in English.

use std::io::{BufRead, Write};

use izwi_models::text::{emoji::EmojiNames, markup::Markup, normalise::Normaliser, sentences};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (emoji, markup, normaliser) = (EmojiNames::new()?, Markup::new()?, Normaliser::new()?);
    for line in std::io::stdin().lock().lines() {
        let plain = markup.strip(&emoji.name(&line?));
        let read: Vec<String> =
            sentences::split(&plain).into_iter().map(|sentence| normaliser.normalise(sentence)).collect();
        writeln!(std::io::stdout(), "{}", read.join(" "))?;
    }
    Ok(())
}
