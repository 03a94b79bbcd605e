//! The cost model of `docs/metal.md`: a table of estimated frame times, made from `benches/baselines/metal-counts.json`.
//!
//! frame time = dispatches × e + bytes of weights ÷ (bandwidth × η) + waits × w

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
    "dispatches",
    "waits",
    "weights, GB",
    "chip",
    "GB/s",
    "dispatches, ms",
    "weights, ms",
    "waits, ms",
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

struct Assumptions {
    us_per_dispatch: f64,
    /// Of the bandwidth that the maker states.
    bandwidth_share: f64,
    us_per_wait: f64,
}

/// What a frame asks of the device.
struct Frame {
    dispatches: f64,
    waits: f64,
    weight_gb: f64,
    /// Milliseconds of audio.
    audio_ms: f64,
}

/// Milliseconds of a frame.
struct Cost {
    dispatches: f64,
    weights: f64,
    waits: f64,
}

impl Cost {
    fn of(frame: &Frame, gb_per_s: f64, assumptions: &Assumptions) -> Self {
        Self {
            dispatches: frame.dispatches * assumptions.us_per_dispatch / 1e3,
            weights: 1e3 * frame.weight_gb / (gb_per_s * assumptions.bandwidth_share),
            waits: frame.waits * assumptions.us_per_wait / 1e3,
        }
    }

    fn sum(&self) -> f64 {
        self.dispatches + self.weights + self.waits
    }
}

fn table(counts: &Value) -> Result<String> {
    let assumed = &counts["assumptions"];
    let assumptions = Assumptions {
        us_per_dispatch: number(assumed, "us_per_dispatch")?,
        bandwidth_share: number(assumed, "bandwidth_share")?,
        us_per_wait: number(assumed, "us_per_wait")?,
    };
    let Assumptions { us_per_dispatch, bandwidth_share, us_per_wait } = assumptions;
    let mut table = format!(
        "\nAssumptions, not measured: e = {us_per_dispatch} µs, η = {bandwidth_share}, w = {us_per_wait} µs.\n\
         Counts: {}.\n\n| {} |\n|{}\n",
        text(counts, "note")?,
        HEAD.join(" | "),
        "---|".repeat(HEAD.len())
    );
    for counted in list(counts, "frames")? {
        let frame = Frame {
            dispatches: number(counted, "dispatches")?,
            waits: number(counted, "waits")?,
            weight_gb: number(counted, "weight_gb")?,
            audio_ms: number(counted, "audio_ms")?,
        };
        let model = text(counted, "model")?;
        for chip in list(counts, "chips")? {
            let (name, gb_per_s) = (text(chip, "name")?, number(chip, "gb_per_s")?);
            let cost = Cost::of(&frame, gb_per_s, &assumptions);
            let (sum, rtf) = (cost.sum(), cost.sum() / frame.audio_ms);
            let Frame { dispatches, waits, weight_gb, .. } = frame;
            write!(table, "| {model} | {dispatches} | {waits} | {weight_gb} | {name} | {gb_per_s} | ")?;
            write!(table, "{:.1} | {:.1} | {:.1} | ", cost.dispatches, cost.weights, cost.waits)?;
            writeln!(table, "{sum:.1} | {rtf:.2} | {} |", measured(counts, model, name)?)?;
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
        serde_json::json!({
            "note": "as counted",
            "assumptions": {"us_per_dispatch": 2.0, "bandwidth_share": 0.5, "us_per_wait": 500},
            "chips": [{"name": "A", "gb_per_s": 100}, {"name": "B", "gb_per_s": 200}],
            "frames": [{"model": "m", "dispatches": 750, "waits": 1, "weight_gb": 2, "audio_ms": 80}],
            "measured": [],
        })
    }

    #[test]
    fn a_frame_is_its_dispatches_its_weights_and_its_waits() {
        let mut counts = counts();
        let page = table(&counts).unwrap();
        assert!(
            page.contains("| m | 750 | 1 | 2 | A | 100 | 1.5 | 40.0 | 0.5 | 42.0 | 0.53 |  |\n"),
            "{page}"
        );
        assert!(page.contains("| B | 200 | 1.5 | 20.0 | 0.5 | 22.0 | 0.28 |  |\n"), "{page}");
        assert!(page.contains("The last column is empty"), "{page}");
        counts["measured"] = serde_json::json!([{"model": "m", "chip": "B", "rtf": 0.3}]);
        let page = table(&counts).unwrap();
        assert!(page.contains("| 22.0 | 0.28 | 0.30 |\n") && !page.contains("column is empty"), "{page}");
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
