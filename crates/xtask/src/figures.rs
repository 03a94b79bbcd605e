//! The tables of `benches/baselines/`: `docs/performance.md`, and the durations at the end of `docs/development.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

const INTRODUCTION: &str = "\
# Performance

Written by `cargo xtask docs` from `benches/baselines/`. Machines are shared and noisy: compare the
rows of one table, not those of two. What each bench does is in [benches/README.md](../benches/README.md).
";

/// A file of results and how it is shown.
struct Figures {
    file: &'static str,
    title: &'static str,
    command: &'static str,
    /// Keys of a result, with dots for those inside.
    columns: &'static [&'static str],
}

/// Of every baseline of Qwen3-TTS.
const QWEN3_TTS: &[&str] = &[
    "model",
    "dtype",
    "batch",
    "threads",
    "frames_per_s",
    "rtf",
    "ttfa_ms_p50",
    "parts_ms.talker",
    "parts_ms.code predictor",
    "parts_ms.codec",
    "bandwidth_share",
];

const FIGURES: [Figures; 10] = [
    Figures {
        file: "qwen3-tts",
        title: "Frame models: Qwen3-TTS",
        command: "izwi bench --random-weights --models qwen3-tts-0.6b,qwen3-tts-1.7b --dtypes q8,bf16,f32 --json",
        columns: QWEN3_TTS,
    },
    Figures {
        file: "qwen3-tts-xeon",
        title: "Frame models: Qwen3-TTS on a slower machine",
        command: "izwi bench --random-weights --model qwen3-tts-0.6b --thread-counts 1,2 --tokens 30 --json",
        columns: QWEN3_TTS,
    },
    Figures {
        file: "lfm2-audio",
        title: "Frame models: LFM2-Audio",
        command: "izwi bench --random-weights --model lfm2-audio-1.5b --dtypes q8 --tokens 50",
        columns: &[
            "model",
            "dtype",
            "batch",
            "threads",
            "frames_per_s",
            "rtf",
            "ttfa_ms_p50",
            "parts_ms.backbone",
            "parts_ms.depthformer",
            "parts_ms.codec",
            "bandwidth_share",
        ],
    },
    Figures {
        file: "products",
        title: "CPU kernels at every instruction level",
        command: "cargo bench -p izwi-benches --bench products -- --json",
        columns: &[
            "kernel",
            "level",
            "rows",
            "peak_g_per_s",
            "cached_g_per_s",
            "cached_share_of_peak",
            "g_per_s",
            "share_of_peak",
        ],
    },
    Figures {
        file: "hibari",
        title: "hibari compared with the official package",
        command: "benches/hibari_official.py target/release/izwi",
        columns: &["text", "dtype", "threads", "audio_s", "izwi_rtf", "official_rtf", "times_faster"],
    },
    Figures {
        file: "kokoro",
        title: "Kokoro compared with ONNX Runtime",
        command: "benches/kokoro_onnxruntime.py target/release/izwi ONNX VOICES --dtypes auto,f32",
        columns: &["text", "dtype", "threads", "audio_s", "izwi_rtf", "onnxruntime_rtf", "times_faster"],
    },
    Figures {
        file: "asr",
        title: "ASR compared with faster-whisper",
        command: "cargo run --release -p izwi-benches --bin asr",
        columns: &["model", "threads", "workload", "runner", "rounds", "seconds", "times_izwi"],
    },
    Figures {
        file: "load",
        title: "Load over real WebSockets",
        command: "cargo run --release -p izwi-benches --bin load",
        columns: &[
            "load",
            "requests",
            "failed",
            "total_s",
            "ttfa_ms_p50",
            "ttfa_ms_p95",
            "ttfa_ms_p99",
            "latency_ms_p99",
            "underrun_s",
            "audio_s",
        ],
    },
    Figures {
        file: "simulate",
        title: "Live streams in virtual time",
        command: "cargo run --release -p izwi-benches --bin simulate -- --seed 14 --minutes 2000 --json",
        columns: &[
            "machine",
            "load",
            "accepted",
            "refused",
            "underrun_s",
            "underrun_streams",
            "live_audio",
            "first_audio_p50_s",
            "first_audio_error_p99",
            "retry_after_error_p50",
            "bulk_share",
            "idle_share",
        ],
    },
    Figures {
        file: "micro",
        title: "Engine overhead",
        command: "cargo bench -p izwi-benches",
        columns: &["name", "median_ns"],
    },
];

/// The steps of `cargo xtask ci`.
const DURATIONS: Figures =
    Figures { file: "ci", title: "Durations", command: "cargo xtask ci", columns: &["step", "seconds"] };
const DEVELOPMENT: &str = "development.md";
/// The line of `docs/development.md` behind which everything is generated.
const GENERATED: &str =
    "<!-- From here on: written by `cargo xtask docs` from benches/baselines/ci.json. -->\n";

/// Writes the pages into the folder `out`.
pub(crate) fn write(root: &Path, out: &Path) -> Result<()> {
    let mut page = INTRODUCTION.to_owned();
    for figures in &FIGURES {
        page.push_str(&table(root, figures)?);
    }
    fs::write(out.join("performance.md"), page).context("cannot write performance.md")?;
    let file = root.join("docs").join(DEVELOPMENT);
    let committed = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let page = with_table(&committed, &table(root, &DURATIONS)?)?;
    fs::write(out.join(DEVELOPMENT), page).with_context(|| format!("cannot write {DEVELOPMENT}"))
}

/// The section of the baseline that `figures` names.
fn table(root: &Path, figures: &Figures) -> Result<String> {
    let file = root.join(format!("benches/baselines/{}.json", figures.file));
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let baseline = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))?;
    section(figures, &baseline)
}

/// The handwritten part of the page, then the table.
fn with_table(page: &str, table: &str) -> Result<String> {
    let (written, _) = page
        .split_once(GENERATED)
        .with_context(|| format!("docs/{DEVELOPMENT} has no line `{}`", GENERATED.trim_end()))?;
    Ok(format!("{written}{GENERATED}{table}"))
}

/// The section of a baseline: where and when it was measured, and its `results`, a list of rows or rows by name.
fn section(figures: &Figures, baseline: &Value) -> Result<String> {
    let mut section = format!("\n## {}\n\n`{}`\n\n", figures.title, figures.command);
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let (machine, commit) = (text(&baseline["machine"]["cpu"]), text(&baseline["commit"]));
    write!(section, "{machine}; commit {commit}; {}.\n\n", text(&baseline["note"]))?;
    let rows: Vec<Map<String, Value>> = match &baseline["results"] {
        Value::Array(rows) => rows.iter().filter_map(Value::as_object).cloned().collect(),
        Value::Object(rows) => rows.iter().map(|(name, row)| named(name, row)).collect(),
        _ => bail!("{}.json has no results", figures.file),
    };
    let heads: Vec<_> = figures.columns.iter().map(|column| column.replace(['_', '.'], " ")).collect();
    writeln!(section, "| {} |", heads.join(" | "))?;
    writeln!(section, "|{}", "---|".repeat(heads.len()))?;
    for row in rows {
        let cells: Vec<_> = figures.columns.iter().map(|column| cell(&row, column)).collect();
        writeln!(section, "| {} |", cells.join(" | "))?;
    }
    Ok(section)
}

fn named(name: &str, row: &Value) -> Map<String, Value> {
    let mut named = row.as_object().cloned().unwrap_or_default();
    named.insert("name".to_owned(), Value::String(name.to_owned()));
    named
}

/// The value at a path of keys, fractions with three digits; empty if there is none.
fn cell(row: &Map<String, Value>, path: &str) -> String {
    let mut keys = path.split('.');
    let first = keys.next().and_then(|key| row.get(key));
    let found = keys.fold(first, |value, key| value.and_then(|value| value.get(key)));
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(value) if value.fract() != 0.0 => {
                let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 4);
                format!("{value:.*}", digits as usize)
            }
            _ => number.to_string(),
        },
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCH: Figures =
        Figures { file: "bench", title: "A bench", command: "run it", columns: &["name", "ms.p50", "count"] };

    #[test]
    fn rows_become_a_table_with_the_columns_that_are_named() {
        let mut baseline = serde_json::json!({
            "commit": "abc", "machine": {"cpu": "a chip"}, "note": "idle",
            "results": [{"name": "one", "ms": {"p50": 12.3456}, "count": 3}, {"name": "two", "count": 20.0}],
        });
        let page = section(&BENCH, &baseline).unwrap();
        let expected = "## A bench\n\n`run it`\n\na chip; commit abc; idle.\n\n| name | ms p50 | count |\n";
        assert!(page.contains(expected), "{page}");
        assert!(page.ends_with("| one | 12.3 | 3 |\n| two |  | 20.0 |\n"), "{page}");
        baseline["results"] = serde_json::json!({"a": {"ms": {"p50": 73555.1}}});
        assert!(section(&BENCH, &baseline).unwrap().ends_with("| a | 73555 |  |\n"));
        assert!(section(&BENCH, &serde_json::json!({})).is_err());
    }

    #[test]
    fn the_handwritten_part_stays_and_the_table_is_replaced() {
        let page = format!("# How\n{GENERATED}old\n");
        assert_eq!(with_table(&page, "new\n").unwrap(), format!("# How\n{GENERATED}new\n"));
        assert!(with_table("# How\n", "new\n").is_err());
    }
}
