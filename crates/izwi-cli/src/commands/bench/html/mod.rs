//! The report of a measurement as one HTML file: charts as inline SVG, and no other host.
//!
//! Knows results and series of numbers; no engine.

mod audio;
mod chart;

use std::fmt::Write as _;

use self::audio::{spectrogram, waveform};
use self::chart::{Row, Series};
use super::report::{Detail, Measured, Report};
use crate::output;

/// Colours follow the light or dark setting of the reader's system.
const STYLE: &str = include_str!("style.css");

/// The page. `settings` are names and values of the settings that the measurement ran with.
pub(super) fn page(report: &Report, settings: &[(String, String)]) -> String {
    let mut body = String::new();
    let models: Vec<&str> = report.results.iter().map(|result| result.model.as_str()).collect();
    let title = format!("izwi bench: {}", unique(&models).join(", "));
    // Writing to a String cannot fail.
    let _ = writeln!(body, "<h1>{}</h1>\n<p>{}</p>", escaped(&title), escaped(report.page().trim_end()));
    body.push_str(&results(&report.results));
    body.push_str(&real_time_factors(report));
    body.push_str(&first_audio(report));
    body.push_str(&utterance(report));
    body.push_str(&parts(&report.results));
    body.push_str(&table("Settings and machine", &["name", "value"], settings.iter().map(pair)));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escaped(&title)
    )
}

fn pair((name, value): &(String, String)) -> Vec<String> {
    vec![name.clone(), value.clone()]
}

fn results(results: &[Measured]) -> String {
    let columns = [
        "model",
        "weights",
        "threads",
        "at once",
        "rate",
        "RTF",
        "first audio p50",
        "p95",
        "bandwidth",
        "memory",
    ];
    let rows = results.iter().map(|result| {
        let (rate, unit) = result.rate();
        let ms = |value: Option<f64>| value.map_or_else(String::new, |ms| format!("{ms:.0} ms"));
        vec![
            result.model.clone(),
            result.dtype.clone(),
            result.threads.to_string(),
            result.batch.to_string(),
            format!("{rate:.1} {unit}"),
            format!("{:.2}", result.rtf),
            ms(result.ttfa_ms_p50),
            ms(result.ttfa_ms_p95),
            result.bandwidth_share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share)),
            result.peak_rss_bytes.map_or_else(String::new, output::format_bytes),
        ]
    });
    table("Results", &columns, rows)
}

fn real_time_factors(report: &Report) -> String {
    let series: Vec<Series> = labelled(report)
        .filter(|(_, detail)| !detail.rtf.is_empty())
        .map(|(name, detail)| Series { name, lines: detail.rtf.clone() })
        .collect();
    if series.is_empty() {
        return String::new();
    }
    let text = "Time to compute over time of audio of one request so far, at each chunk that arrives; a line for each round. \
                Below 1 the audio is generated faster than it plays. First chunks that took much longer are cut off.";
    let chart = chart::lines("seconds since the start of the round", "RTF", Some(1.0), &series);
    section("Real-time factor over time", text, &(legend(&series) + &chart))
}

fn first_audio(report: &Report) -> String {
    let rows: Vec<Row> = labelled(report)
        .filter(|(_, detail)| !detail.first_audio_ms.is_empty())
        .map(|(name, detail)| Row { name, values: detail.first_audio_ms.clone() })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let text = "A dot for each request of each round. The long mark is the median, the short one the 95th percentile.";
    section("Time to first audio", text, &chart::dots("milliseconds", &rows))
}

fn utterance(report: &Report) -> String {
    let found = labelled(report).find_map(|(name, detail)| Some((name, detail.utterance.as_ref()?)));
    let Some((name, utterance)) = found else { return String::new() };
    let text = format!(
        "The first request of the first round: {name}. Above its waveform, below its frequencies over time."
    );
    let charts = waveform(utterance) + &spectrogram(utterance);
    section("An utterance", &text, &charts)
}

fn parts(results: &[Measured]) -> String {
    let rows = results.iter().flat_map(|result| {
        result.parts_ms.iter().map(|(part, ms)| vec![label(result), part.clone(), format!("{ms:.2}")])
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    table("Time of a step", &["result", "part", "ms per step"], rows.into_iter())
}

/// The results with what was kept of them.
fn labelled(report: &Report) -> impl Iterator<Item = (String, &Detail)> {
    report.results.iter().map(label).zip(&report.details)
}

fn label(result: &Measured) -> String {
    format!("{} {}, {} at once", result.model, result.dtype, result.batch)
}

fn unique<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(name) {
            found.push(name);
        }
    }
    found
}

fn section(title: &str, text: &str, content: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n<p>{}</p>\n{content}</section>\n", escaped(title), escaped(text))
}

fn table(title: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = cells("th", columns.iter().copied());
    let row = |row: Vec<String>| format!("<tr>{}</tr>\n", cells("td", row.iter().map(String::as_str)));
    let rows: String = rows.map(row).collect();
    format!(
        "<section>\n<h2>{}</h2>\n<div class=\"wide\">\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table>\n</div>\n</section>\n",
        escaped(title)
    )
}

fn cells<'a>(tag: &str, cells: impl Iterator<Item = &'a str>) -> String {
    cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
}

fn legend(series: &[Series]) -> String {
    let entries = series
        .iter()
        .enumerate()
        .map(|(at, one)| format!("<li class=\"c{}\">{}</li>\n", at % chart::COLOURS, escaped(&one.name)));
    format!("<ul class=\"legend\">\n{}</ul>\n", entries.collect::<String>())
}

/// Text for elements and attributes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no other control characters.
            control if control.is_control() && !matches!(control, '\n' | '\t') => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, ParsingOptions};

    use super::super::batch::Utterance;
    use super::super::machine::Machine;
    use super::*;

    /// A rising tone of two seconds, which gets louder.
    fn tone() -> Utterance {
        let rate_hz = 24_000;
        let samples = (0..2 * rate_hz).map(|index| {
            let at_s = index as f64 / f64::from(rate_hz);
            (at_s / 2.0 * 0.8 * (std::f64::consts::TAU * (200.0 + 1_000.0 * at_s) * at_s).sin()) as f32
        });
        Utterance { samples: samples.collect(), rate_hz }
    }

    fn report() -> Report {
        let result = |batch: usize| Measured {
            dtype: "q8".to_owned(),
            threads: 2,
            rtf: 0.4 * batch as f64,
            ttfa_ms_p50: Some(180.0),
            ttfa_ms_p95: Some(260.5),
            bandwidth_share: Some(0.71),
            peak_rss_bytes: Some(900 << 20),
            parts_ms: [("talker".to_owned(), 8.25), ("<codec>".to_owned(), 3.5)].into(),
            ..Measured::example(batch, 25.0)
        };
        let detail = |batch: usize| Detail {
            rtf: (0..3)
                .map(|round| {
                    let point = |at: usize| {
                        let at_s = 0.2 + 0.1 * at as f64;
                        (at_s, batch as f64 * (0.4 + 0.3 / at_s + 0.02 * f64::from(round)))
                    };
                    (0..40).map(point).collect()
                })
                .collect(),
            first_audio_ms: (0..12).map(|at| 150.0 * batch as f64 + 7.0 * f64::from(at * at % 11)).collect(),
            utterance: Some(tone()),
        };
        Report {
            machine: Machine { cores: 2, read_bandwidth_gb_s: 21.5 },
            results: vec![result(1), result(4)],
            details: vec![detail(1), detail(4)],
        }
    }

    fn parsed(page: &str) -> Document<'_> {
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        Document::parse_with_options(page, options).unwrap()
    }

    #[test]
    fn the_page_is_whole_and_needs_no_other_host() {
        let settings = vec![("engine.model".to_owned(), "a \"<model>\" & more\u{7}".to_owned())];
        let page = page(&report(), &settings);
        if let Some(file) = std::env::var_os("IZWI_BENCH_PAGE") {
            std::fs::write(file, &page).unwrap();
        }
        let document = parsed(&page);
        let named = |tag: &str| document.descendants().filter(|node| node.has_tag_name(tag)).count();
        assert_eq!((named("svg"), named("section")), (4, 6), "{page}");
        let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(texts.contains(&"a \"<model>\" & more\u{fffd}"), "{texts:?}");
        assert!(texts.contains(&"<codec>"));
        // Two of the dots' series, with twelve requests each.
        assert_eq!(named("circle"), 24);
        for node in document.descendants() {
            for attribute in node.attributes() {
                let loads = ["href", "src", "data", "action"].contains(&attribute.name());
                assert!(!loads, "{attribute:?} loads something");
                assert!(
                    !attribute.value().contains("NaN") && !attribute.value().contains("inf"),
                    "{attribute:?}"
                );
            }
        }
        assert!(!page.contains("url(") && !page.contains("@import") && named("script") == 0);
    }

    #[test]
    fn a_report_without_details_has_tables_alone() {
        let report = Report { details: Vec::new(), ..report() };
        let page = page(&report, &[]);
        assert_eq!(parsed(&page).descendants().filter(|node| node.has_tag_name("svg")).count(), 0);
    }

    #[test]
    fn silence_and_single_values_have_charts() {
        let detail = Detail {
            rtf: vec![vec![(0.5, 0.5)], Vec::new()],
            first_audio_ms: vec![0.0],
            utterance: Some(Utterance { samples: vec![0.0; 100], rate_hz: 24_000 }),
        };
        let report = Report { details: vec![detail], ..report() };
        let page = page(&report, &[]);
        assert_eq!(parsed(&page).descendants().filter(|node| node.has_tag_name("svg")).count(), 4);
        assert!(!page.contains("NaN"));
    }
}
