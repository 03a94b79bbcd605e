//! The cost model of `docs/metal.md`: a table of estimated frame times, made from `benches/baselines/metal-counts.json`.
//!
//! frame time = gaps between dispatches + weights that are read + draws + encoding + waits + the codec, each from the best to the worst
//! that is assumed; nothing of it overlaps.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace::read;

const COUNTS: &str = "benches/baselines/metal-counts.json";
const PAGE: &str = "metal.md";
/// The lines of the page between which everything is generated.
const BEGIN: &str = "<!-- Written by `cargo xtask docs` from benches/baselines/metal-counts.json. -->\n";
const END: &str = "<!-- End of what `cargo xtask docs` writes. -->\n";
const HEAD: [&str; 12] = [
    "model",
    "chip",
    "GB/s",
    "dispatches",
    "weights",
    "draws",
    "encoding",
    "waits",
    "codec",
    "frame, ms",
    "RTF",
    "measured RTF",
];

/// Writes the page with a current table into the folder `out`.
pub(crate) fn write(root: &Path, out: &Path) -> Result<()> {
    let counts = serde_json::from_str(&read(&root.join(COUNTS))?);
    let counts = counts.with_context(|| format!("{COUNTS} is not JSON"))?;
    let page = with_table(&read(&root.join("docs").join(PAGE))?, &table(&counts)?)?;
    fs::write(out.join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))
}

fn with_table(page: &str, table: &str) -> Result<String> {
    let missing = |line: &str| format!("docs/{PAGE} has no line `{}`", line.trim_end());
    let (before, rest) = page.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (_, after) = rest.split_once(END).with_context(|| missing(END))?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// From the best to the worst that is assumed.
#[derive(Debug, Clone, Copy, Default)]
struct Range(f64, f64);

impl Range {
    fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self(of(self.0), of(self.1))
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }

    fn longer(self, other: Self) -> Self {
        Self(self.0.max(other.0), self.1.max(other.1))
    }

    fn show(self, digits: usize) -> String {
        let (low, high) = (format!("{:.digits$}", self.0), format!("{:.digits$}", self.1));
        if low == high { low } else { format!("{low}–{high}") }
    }
}

/// What is assumed of all chips.
struct Assumptions {
    us_per_dispatch: Range,
    /// Of the bandwidth that the maker states.
    bandwidth_share: Range,
    us_per_wait: Range,
    /// Of the FLOP/s that the maker states.
    compute_share: Range,
}

/// Milliseconds of a frame by term.
fn terms(frame: &Value, chip: &Value, assumptions: &Assumptions) -> Result<[Range; 6]> {
    let bandwidth = number(chip, "gb_per_s")?;
    let read = |gb: f64| assumptions.bandwidth_share.map(|share| 1e3 * gb / (bandwidth * share));
    let dispatches = number(frame, "dispatches")?;
    let codec = if frame["codec_gb"].is_null() {
        Range::default()
    } else {
        let (flop, tflops) = (number(frame, "codec_gflop")?, number(chip, "tflops")?);
        let compute = assumptions.compute_share.map(|share| flop / (tflops * share));
        read(number(frame, "codec_gb")?).longer(compute)
    };
    let (waits, draws) = (number(frame, "waits")?, number(frame, "draws")? * number(chip, "draw_us")?);
    Ok([
        assumptions.us_per_dispatch.map(|us| dispatches * us / 1e3),
        read(number(frame, "weight_gb")?),
        Range(draws / 1e3, draws / 1e3),
        range(chip, "encode_us")?.map(|us| dispatches * us / 1e3),
        assumptions.us_per_wait.map(|us| waits * us / 1e3),
        codec,
    ])
}

fn table(counts: &Value) -> Result<String> {
    let assumed = &counts["assumptions"];
    let assumptions = Assumptions {
        us_per_dispatch: range(assumed, "us_per_dispatch")?,
        bandwidth_share: range(assumed, "bandwidth_share")?,
        us_per_wait: range(assumed, "us_per_wait")?,
        compute_share: range(assumed, "compute_share")?,
    };
    let sources = &counts["sources"];
    let mut table = "\n| assumed, not measured | best to worst | from |\n|---|---|---|\n".to_owned();
    for (key, name, shown) in [
        ("us_per_dispatch", "time of a dispatch, µs", assumptions.us_per_dispatch.show(0)),
        ("bandwidth_share", "share of the bandwidth", assumptions.bandwidth_share.show(2)),
        ("draw_us", "time of a draw, µs", each(counts, "draw_us")?),
        ("encode_us", "encoding of a dispatch, µs", each(counts, "encode_us")?),
        ("us_per_wait", "a wait, µs", assumptions.us_per_wait.show(0)),
        ("compute_share", "share of the FLOP/s, codec", assumptions.compute_share.show(2)),
    ] {
        writeln!(table, "| {name} | {shown} | {} |", text(sources, key)?)?;
    }
    let (note, head) = (text(counts, "note")?, HEAD.join(" | "));
    write!(table, "\nCounts: {note}.\nTerms are in ms.\n\n| {head} |\n|{}\n", "---|".repeat(HEAD.len()))?;
    for frame in list(counts, "frames")? {
        let model = text(frame, "model")?;
        for chip in list(counts, "chips")? {
            let name = text(chip, "name")?;
            let terms = terms(frame, chip, &assumptions)?;
            let sum = terms.iter().fold(Range::default(), |sum, term| sum.plus(*term));
            let audio_ms = number(frame, "audio_ms")?;
            write!(table, "| {model} | {name} | {} | ", number(chip, "gb_per_s")?)?;
            for term in terms {
                write!(table, "{} | ", if term.1 > 0.0 { term.show(1) } else { "not counted".to_owned() })?;
            }
            let rtf = sum.map(|ms| ms / audio_ms).show(2);
            writeln!(table, "{} | {rtf} | {} |", sum.show(1), measured(counts, model, name)?)?;
        }
    }
    if list(counts, "measured")?.is_empty() {
        table.push_str(
            "\nThe last column is empty: nobody has run `izwi bench --device metal` on a Mac yet. A measured RTF is an entry \
             with\n`model`, `chip` and `rtf` in `measured` of that file.\n",
        );
    }
    table.push('\n');
    Ok(table)
}

/// A figure of each chip, by name.
fn each(counts: &Value, key: &str) -> Result<String> {
    let chips = list(counts, "chips")?.iter();
    let shown = chips.map(|chip| Ok(format!("{} {}", text(chip, "name")?, range(chip, key)?.show(1))));
    Ok(shown.collect::<Result<Vec<_>>>()?.join(", "))
}

/// Two numbers, the best first, or one that is both.
fn range(of: &Value, key: &str) -> Result<Range> {
    match of[key].as_array().map(Vec::as_slice) {
        Some([best, worst]) => {
            let pair = serde_json::json!({"best": best, "worst": worst});
            Ok(Range(number(&pair, "best")?, number(&pair, "worst")?))
        }
        _ => number(of, key).map(|both| Range(both, both)),
    }
}

/// The measured RTF; empty if there is none.
fn measured(counts: &Value, model: &str, chip: &str) -> Result<String> {
    let is_of_row = |row: &&Value| row["model"] == model && row["chip"] == chip;
    let row = list(counts, "measured")?.iter().find(is_of_row);
    row.map_or(Ok(String::new()), |row| Ok(format!("{:.2}", number(row, "rtf")?)))
}

fn number(of: &Value, key: &str) -> Result<f64> {
    let positive = of[key].as_f64().filter(|number| number.is_finite() && *number > 0.0);
    positive.with_context(|| format!("{COUNTS}: `{key}` is {}, not a positive number", of[key]))
}

fn text<'a>(of: &'a Value, key: &str) -> Result<&'a str> {
    of[key].as_str().with_context(|| format!("{COUNTS}: `{key}` is {}, not a text", of[key]))
}

fn list<'a>(of: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    of[key].as_array().with_context(|| format!("{COUNTS}: `{key}` is {}, not a list", of[key]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Value {
        let sources: [&str; 6] =
            ["us_per_dispatch", "bandwidth_share", "us_per_wait", "compute_share", "draw_us", "encode_us"];
        let sources: Value = sources.iter().map(|key| ((*key).to_owned(), Value::from("a book"))).collect();
        serde_json::json!({
            "note": "as counted",
            "sources": sources,
            "assumptions": {"us_per_dispatch": [2, 4], "bandwidth_share": 0.5, "us_per_wait": [500, 1000], "compute_share": [0.5, 0.25]},
            "chips": [
                {"name": "A", "gb_per_s": 100, "tflops": 1, "draw_us": 50, "encode_us": [1, 2]},
                {"name": "B", "gb_per_s": 200, "tflops": 4, "draw_us": 50, "encode_us": 1},
            ],
            "frames": [
                {"model": "m", "dispatches": 500, "waits": 1, "draws": 10, "weight_gb": 2, "codec_gb": 0.5, "codec_gflop": 6, "audio_ms": 80},
                {"model": "n", "dispatches": 500, "waits": 1, "draws": 10, "weight_gb": 2, "audio_ms": 80},
            ],
            "measured": [],
        })
    }

    #[test]
    fn a_frame_is_the_sum_of_its_terms() {
        let mut counts = counts();
        let page = table(&counts).unwrap();
        let row = "| m | A | 100 | 1.0–2.0 | 40.0 | 0.5 | 0.5–1.0 | 0.5–1.0 | 12.0–24.0 | 54.5–68.5 | 0.68–0.86 |  |\n";
        assert!(page.contains(row), "{page}");
        assert!(
            page.contains("| n | B | 200 | 1.0–2.0 | 20.0 | 0.5 | 0.5 | 0.5–1.0 | not counted | "),
            "{page}"
        );
        assert!(page.contains("| encoding of a dispatch, µs | A 1.0–2.0, B 1.0 | a book |\n"), "{page}");
        assert!(page.contains("The last column is empty"), "{page}");
        counts["measured"] = serde_json::json!([{"model": "m", "chip": "B", "rtf": 0.3}]);
        let page = table(&counts).unwrap();
        assert!(page.contains(" | 0.30 |\n") && !page.contains("column is empty"), "{page}");
    }

    #[test]
    fn a_count_that_is_none_is_named() {
        let mut counts = counts();
        counts["frames"][0]["dispatches"] = serde_json::json!("many");
        let error = table(&counts).unwrap_err().to_string();
        assert!(error.contains("`dispatches` is \"many\""), "{error}");
    }

    #[test]
    fn only_the_marked_part_of_the_page_changes() {
        let page = format!("# Metal\n{BEGIN}old\n{END}after\n");
        assert_eq!(with_table(&page, "new\n").unwrap(), format!("# Metal\n{BEGIN}new\n{END}after\n"));
        assert!(with_table("# Metal\n", "new\n").is_err());
    }
}
