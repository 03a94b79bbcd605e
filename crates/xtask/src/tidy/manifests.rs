//! Model manifests (`models/*.toml`) say what the model store needs before anything is pulled.

use anyhow::Result;

use super::Violation;
use super::tree::{Tree, has_extension, line_of};

const TEXTS: &[&str] = &["name", "family", "licence"];

pub(super) fn are_complete(tree: &Tree) -> Result<Vec<Violation>> {
    let inside = |path: &str| path.strip_prefix("models/").is_some_and(|name| !name.contains('/'));
    let manifests = tree.files.iter().filter(|file| inside(&file.path) && has_extension(&file.path, "toml"));
    Ok(manifests
        .flat_map(|file| {
            let faults = faults(&file.text).into_iter();
            faults
                .map(|(line, remedy)| Violation::new(&file.path, line, "manifest", remedy))
                .collect::<Vec<_>>()
        })
        .collect())
}

/// What is wrong with a manifest: (line, remedy).
fn faults(text: &str) -> Vec<(usize, String)> {
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            return vec![(line, format!("is not TOML: {}", error.message()))];
        }
    };
    let is_text = |key: &&&str| table.get(**key).and_then(toml::Value::as_str).is_none_or(str::is_empty);
    let mut faults: Vec<_> = TEXTS
        .iter()
        .filter(is_text)
        .map(|key| (1, format!("give '{key}' as a text that is not empty")))
        .collect();
    let sources = match table.get("sources") {
        Some(toml::Value::Array(sources)) => sources.len(),
        Some(toml::Value::Table(sources)) => sources.len(),
        _ => 0,
    };
    if sources == 0 {
        faults.push((1, "list under 'sources' where the files come from".to_owned()));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn manifests_parse_and_are_complete() {
        let complete = "name = \"a\"\nfamily = \"b\"\nlicence = \"MIT\"\n[[sources]]\nkind = \"hub\"\n";
        let files = [
            ("models/complete.toml", complete),
            ("models/broken.toml", "name = \"a\"\nfamily = \n"),
            ("models/bare.toml", "name = \"a\"\nfamily = \"\"\nsources = []\n"),
            ("models/notes/other.toml", "x = 1\n"),
            ("models/README.md", ""),
        ];
        assert_eq!(
            found(are_complete, &files),
            ["models/bare.toml:1", "models/bare.toml:1", "models/bare.toml:1", "models/broken.toml:2"]
        );
    }
}
