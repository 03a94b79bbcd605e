//! Names near to one that is unknown, for error messages.

/// The most names a message lists.
const LISTED: usize = 8;
/// The most characters of a client's text that a message repeats.
const SHOWN_CHARS: usize = 64;

/// "did you mean …" for near names, otherwise the names there are.
pub(crate) fn hint<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> String {
    let wanted: String = wanted.chars().take(SHOWN_CHARS).collect::<String>().to_lowercase();
    let mut ranked: Vec<(f64, &str)> =
        known.map(|name| (strsim::jaro_winkler(&wanted, &name.to_lowercase()), name)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let names = |ranked: &[(f64, &str)]| {
        ranked.iter().take(LISTED).map(|(_, name)| format!("'{name}'")).collect::<Vec<_>>().join(", ")
    };
    let near: Vec<_> = ranked.iter().copied().filter(|(score, _)| *score > 0.8).collect();
    match (near.is_empty(), ranked.is_empty()) {
        (false, _) => format!("did you mean {}?", names(&near)),
        (true, false) => format!("there is {}", names(&ranked)),
        (true, true) => "there is none yet".to_owned(),
    }
}

/// A client's text, cut to what a message may repeat.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_first_and_far_ones_are_listed() {
        assert_eq!(hint("harbuor", ["harbour", "kokoro"].into_iter()), "did you mean 'harbour'?");
        assert_eq!(hint("zzz", ["harbour", "kokoro"].into_iter()), "there is 'harbour', 'kokoro'");
        assert_eq!(hint("zzz", std::iter::empty()), "there is none yet");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(shown(&"a".repeat(100)).chars().count(), 65);
    }
}
