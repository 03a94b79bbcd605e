//! Suggestions for unknown names of settings.

/// The names most similar to `wanted`, best first; empty if none is similar.
pub(super) fn similar<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    const SIMILAR_ENOUGH: f64 = 0.75;
    const WORSE_THAN_BEST: f64 = 0.1;
    const MOST: usize = 3;
    let wanted = wanted.to_lowercase().replace('-', "_");
    let mut ranked: Vec<(f64, &str)> = names
        .map(|name| (strsim::jaro_winkler(&wanted, name), name))
        .filter(|(similarity, _)| *similarity >= SIMILAR_ENOUGH)
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let best = ranked.first().map_or(0.0, |(similarity, _)| *similarity);
    let close = ranked.into_iter().take_while(|(similarity, _)| *similarity >= best - WORSE_THAN_BEST);
    close.map(|(_, name)| name).take(MOST).collect()
}
