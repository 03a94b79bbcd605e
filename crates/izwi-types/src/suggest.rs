//! Suggestions for misspelt names, for error messages. Knows no kind of name.

/// Least similarity (Jaro-Winkler, 0 to 1) of a suggestion.
const MIN_SIMILARITY: f64 = 0.75;
/// A suggestion may be less similar than the best by this much.
const MAX_BELOW_BEST: f64 = 0.1;
/// The most suggestions.
const MAX_SUGGESTIONS: usize = 3;
/// The most names that a message lists where none is similar.
const MAX_LISTED: usize = 8;
/// Characters of the wanted name that are compared.
const MAX_COMPARED_CHARS: usize = 64;

/// The names most similar to `wanted`, best first; none if no name is similar. Case does not count, and `-` equals
/// `_`.
pub fn similar<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let normalised = |name: &str| name.to_lowercase().replace('-', "_");
    let wanted: String = wanted.chars().take(MAX_COMPARED_CHARS).collect();
    let wanted = normalised(&wanted);
    let mut ranked: Vec<(f64, &str)> = names
        .into_iter()
        .map(|name| (similarity(&wanted, &normalised(name)), name))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let best = ranked.first().map_or(0.0, |(similarity, _)| *similarity);
    let close = ranked.into_iter().take_while(|(similarity, _)| *similarity >= best - MAX_BELOW_BEST);
    close.map(|(_, name)| name).take(MAX_SUGGESTIONS).collect()
}

/// 0 to 1. Jaro-Winkler does not see two letters of a short name that are swapped.
fn similarity(wanted: &str, name: &str) -> f64 {
    let is_one_edit = wanted.chars().count() > 2 && strsim::osa_distance(wanted, name) == 1;
    strsim::jaro_winkler(wanted, name).max(if is_one_edit { MIN_SIMILARITY } else { 0.0 })
}

/// The remedy for the unknown name `wanted`: similar names, or the available names. `what` is their plural, such as
/// `models`.
pub fn suggest<'a>(wanted: &str, what: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    let quoted = |names: &[&str]| names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let similar = similar(wanted, names.iter().copied());
    if !similar.is_empty() {
        return format!("did you mean {}?", quoted(&similar));
    }
    names.sort_unstable();
    match names.split_at_checked(MAX_LISTED) {
        _ if names.is_empty() => format!("there are no {what} yet"),
        Some((listed, more)) if !more.is_empty() => {
            format!("the {what} are {} and {} more", quoted(listed), more.len())
        }
        _ => format!("the {what} are {}", quoted(&names)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested_best_first() {
        let remedy = |wanted| suggest(wanted, "models", ["wren", "lark-large", "lark"]);
        assert_eq!(remedy("lrak"), "did you mean 'lark'?");
        assert_eq!(remedy("Lark"), "did you mean 'lark'?");
        assert_eq!(similar("sya", ["say", "rm", "serve"]), ["say"]);
        assert_eq!(remedy("lark_l"), "did you mean 'lark', 'lark-large'?");
        assert_eq!(similar("servr", ["server", "engine", "scheduling_policy"]), ["server"]);
    }

    #[test]
    fn without_a_similar_name_the_available_ones_are_listed() {
        assert_eq!(suggest("penguin", "models", ["wren", "lark"]), "the models are 'lark', 'wren'");
        assert_eq!(suggest("penguin", "voices", []), "there are no voices yet");
        let many: Vec<String> = (0..10).map(|index| format!("{index}")).collect();
        let remedy = suggest("penguin", "voices", many.iter().map(String::as_str));
        assert_eq!(remedy, "the voices are '0', '1', '2', '3', '4', '5', '6', '7' and 2 more");
    }

    #[test]
    fn a_long_name_is_compared_by_its_beginning() {
        assert_eq!(similar(&"a".repeat(1 << 20), ["b"]), Vec::<&str>::new());
    }
}
