//! Names in error messages: suggestions for an unknown name, and a client's text cut to a safe length.

/// The most names that a message lists.
const MAX_LISTED: usize = 8;
/// The most characters of a client's text that a message repeats.
const MAX_CHARS: usize = 64;

/// "did you mean …" with the most similar names, or else the known names.
pub(crate) fn hint<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> String {
    let wanted: String = wanted.chars().take(MAX_CHARS).collect::<String>().to_lowercase();
    let mut ranked: Vec<(f64, &str)> =
        known.map(|name| (strsim::jaro_winkler(&wanted, &name.to_lowercase()), name)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let names = |ranked: &[(f64, &str)]| {
        ranked.iter().take(MAX_LISTED).map(|(_, name)| format!("'{name}'")).collect::<Vec<_>>().join(", ")
    };
    let similar: Vec<_> = ranked.iter().copied().filter(|(score, _)| *score > 0.8).collect();
    match (similar.is_empty(), ranked.is_empty()) {
        (false, _) => format!("did you mean {}?", names(&similar)),
        (true, false) => format!("known names: {}", names(&ranked)),
        (true, true) => "none is known yet".to_owned(),
    }
}

/// A client's text, cut to [`MAX_CHARS`].
pub(crate) fn truncated(text: &str) -> String {
    let mut truncated: String = text.chars().take(MAX_CHARS).collect();
    if truncated.len() < text.len() {
        truncated.push('…');
    }
    truncated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested_and_otherwise_all_are_listed() {
        assert_eq!(hint("harbuor", ["harbour", "kokoro"].into_iter()), "did you mean 'harbour'?");
        assert_eq!(hint("zzz", ["harbour", "kokoro"].into_iter()), "known names: 'harbour', 'kokoro'");
        assert_eq!(hint("zzz", std::iter::empty()), "none is known yet");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(truncated(&"a".repeat(100)).chars().count(), 65);
    }
}
