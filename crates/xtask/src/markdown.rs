//! Links and headings of Markdown pages, outside of code.

use std::collections::BTreeMap;
use std::ops::Range;

use regex::Regex;

/// The target of a link or an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// From 1.
    pub(crate) line: usize,
    /// Where the target stands in the page.
    pub(crate) range: Range<usize>,
    /// A path as it is written, without its anchor; empty for the page itself.
    pub(crate) path: String,
    pub(crate) anchor: Option<String>,
}

/// The links of a page that are paths: those to other hosts are left out.
pub(crate) fn links(page: &str) -> Vec<Link> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant, and a test compiles it")]
    let pattern = Regex::new(r"\]\(([^()\s]+)\)").expect("the pattern is valid");
    let mut found = Vec::new();
    for (number, start, text) in prose(page) {
        for captures in pattern.captures_iter(&text) {
            let Some(target) = captures.get(1).filter(|target| !target.as_str().contains(':')) else {
                continue;
            };
            let (path, anchor) = match target.as_str().split_once('#') {
                Some((path, anchor)) => (path, Some(anchor.to_owned())),
                None => (target.as_str(), None),
            };
            found.push(Link {
                line: number,
                range: start + target.start()..start + target.end(),
                path: path.to_owned(),
                anchor,
            });
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
pub(crate) fn anchors(page: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut in_code = false;
    let mut found = Vec::new();
    for line in page.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !in_code) else {
            continue;
        };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let slug: String = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = seen.entry(slug.clone()).or_default();
        found.push(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    found
}

/// The lines outside of code blocks: number, offset, and text in which code is blanked.
fn prose(page: &str) -> Vec<(usize, usize, String)> {
    let (mut found, mut start, mut in_code) = (Vec::new(), 0, false);
    for (index, line) in page.split_inclusive('\n').enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        if !in_code && !is_fence {
            found.push((index + 1, start, without_code(line)));
        }
        in_code ^= is_fence;
        start += line.len();
    }
    found
}

/// The line with the characters between backticks replaced, byte for byte. A link may have code as its text.
fn without_code(line: &str) -> String {
    let mut inside = false;
    let blank = |c: char| {
        inside ^= c == '`';
        if inside && c != '`' { "_".repeat(c.len_utf8()) } else { c.to_string() }
    };
    line.chars().map(blank).collect()
}

/// A path from the repository's root, of a path written in the page at `page`.
pub(crate) fn resolved(page: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(page.to_owned());
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let page = "[a](b.md#c) ![d](e/f.png)\n`[no](x.md)` [`t`](g.md)\n```text\n[no](x.md)\n```\n[web](https://example.com) [own](#h)\n";
        let found = links(page);
        let found: Vec<_> = found
            .iter()
            .map(|link| (link.line, link.path.as_str(), link.anchor.as_deref(), &page[link.range.clone()]))
            .collect();
        assert_eq!(
            found,
            [
                (1, "b.md", Some("c"), "b.md#c"),
                (1, "e/f.png", None, "e/f.png"),
                (2, "g.md", None, "g.md"),
                (6, "", Some("h"), "#h"),
            ]
        );
    }

    #[test]
    fn anchors_are_those_of_the_headings() {
        let page = "# A page\n## `[engine]`\n```sh\n# no heading\n```\n## Streaming over WebSocket\n## A page\n### POST /v1/speak\n";
        assert_eq!(
            anchors(page),
            ["a-page", "engine", "streaming-over-websocket", "a-page-1", "post-v1speak"]
        );
    }

    #[test]
    fn paths_are_resolved_from_the_page() {
        for (page, path, expected) in [
            ("docs/a.md", "b.md", Some("docs/b.md")),
            ("docs/a.md", "../README.md", Some("README.md")),
            ("docs/a.md", "", Some("docs/a.md")),
            ("README.md", "../x", None),
        ] {
            assert_eq!(resolved(page, path).as_deref(), expected);
        }
    }
}
