//! Charts of numbers as SVG: lines over time, and dots in rows. Knows no result.

use std::fmt::Write as _;

use super::escaped;
use crate::commands::bench::statistics::quantile;

/// Colours of the style sheet, `c0` and so on.
pub(super) const COLOURS: usize = 6;

const WIDTH: f64 = 860.0;
/// Space of the axes.
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 14.0;
const LINES_HEIGHT: f64 = 300.0;
const ROW_HEIGHT: f64 = 40.0;
/// About how many marks an axis has.
const TICKS: f64 = 6.0;

/// Lines of one colour.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// Points (x, y) of each line.
    pub(super) lines: Vec<Vec<(f64, f64)>>,
}

/// Dots in a row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) values: Vec<f64>,
}

/// A scale from zero.
#[derive(Debug, Clone, Copy)]
struct Scale {
    step: f64,
    end: f64,
}

impl Scale {
    /// A scale to `largest`, whose marks are 1, 2 or 5 times a power of ten apart.
    fn to(largest: f64) -> Self {
        let largest = if largest.is_finite() && largest > 0.0 { largest } else { 1.0 };
        let raw = largest / TICKS;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= raw);
        let step = step.unwrap_or(raw);
        Self { step, end: (largest / step).ceil() * step }
    }

    /// The share of the scale that a value is at.
    fn share(self, value: f64) -> f64 {
        (value / self.end).clamp(0.0, 1.0)
    }

    fn ticks(self) -> impl Iterator<Item = (f64, String)> {
        let count = (self.end / self.step).round() as usize;
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        (0..=count).map(move |number| {
            let value = number as f64 * self.step;
            (value, format!("{value:.digits$}"))
        })
    }
}

/// A chart of lines, from zero. A dashed line marks `limit`.
pub(super) fn lines(x_name: &str, y_name: &str, limit: Option<f64>, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|one| one.lines.iter().flatten());
    let x_scale = Scale::to(points().map(|point| point.0).fold(0.0, f64::max));
    // The first chunk of a large batch would flatten all the rest.
    let mut heights: Vec<f64> = points().map(|point| point.1).chain(limit).collect();
    heights.sort_by(f64::total_cmp);
    let usual = 1.5 * quantile(&heights, 0.9);
    let y_scale = Scale::to(heights.last().copied().unwrap_or(1.0).min(usual));
    let bottom = LINES_HEIGHT - BOTTOM;
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * x_scale.share(value);
    let y = |value: f64| bottom - (bottom - TOP) * y_scale.share(value);
    let mut svg = open(LINES_HEIGHT, &format!("{y_name} over {x_name}"));
    // Writing to a String cannot fail.
    for (value, text) in y_scale.ticks() {
        let at = y(value);
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
        let _ =
            writeln!(svg, "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>", LEFT - 6.0, at + 4.0);
    }
    svg.push_str(&x_axis(x_scale, x_name, bottom, LINES_HEIGHT));
    let middle = f64::midpoint(TOP, bottom);
    let _ = writeln!(
        svg,
        "<text class=\"middle\" transform=\"translate(14 {middle:.1}) rotate(-90)\">{}</text>",
        escaped(y_name)
    );
    if let Some(limit) = limit.filter(|limit| *limit <= y_scale.end) {
        let _ = writeln!(svg, "<path class=\"limit\" d=\"M{LEFT} {:.1}H{:.1}\"/>", y(limit), WIDTH - RIGHT);
    }
    for (at, one) in series.iter().enumerate() {
        for line in one.lines.iter().filter(|line| !line.is_empty()) {
            let path: Vec<String> =
                line.iter().map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(*value))).collect();
            let _ = writeln!(svg, "<path class=\"line c{}\" d=\"M{}\"/>", at % COLOURS, path.join("L"));
        }
    }
    svg + "</svg>\n"
}

/// Rows of dots on one scale from zero, with marks at the median and the 95th percentile.
pub(super) fn dots(x_name: &str, rows: &[Row]) -> String {
    let bottom = TOP + ROW_HEIGHT * rows.len() as f64;
    let scale = Scale::to(rows.iter().flat_map(|row| &row.values).copied().fold(0.0, f64::max));
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * scale.share(value);
    let mut svg = open(bottom + BOTTOM, &format!("{x_name} of each request"));
    svg.push_str(&x_axis(scale, x_name, bottom, bottom + BOTTOM));
    // Writing to a String cannot fail.
    for (at, row) in rows.iter().enumerate() {
        let middle = TOP + ROW_HEIGHT * (at as f64 + 0.66);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {middle:.1}H{:.1}\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT + 4.0,
            middle - 10.0,
            escaped(&row.name)
        );
        for value in &row.values {
            let _ = writeln!(
                svg,
                "<circle class=\"dot c{}\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"4\"/>",
                at % COLOURS,
                x(*value)
            );
        }
        let mut sorted = row.values.clone();
        sorted.sort_by(f64::total_cmp);
        for (share, half) in [(0.5, 11.0), (0.95, 7.0)] {
            let at = x(quantile(&sorted, share));
            let _ = writeln!(
                svg,
                "<path class=\"mark\" d=\"M{at:.1} {:.1}V{:.1}\"/>",
                middle - half,
                middle + half
            );
        }
    }
    svg + "</svg>\n"
}

/// The opening tag of a chart with this height. `name` is read to those who do not see it.
pub(super) fn open(height: f64, name: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(name)
    )
}

/// A horizontal axis of time in seconds below a chart that fills the width.
pub(super) fn seconds_axis(duration_s: f64, bottom: f64, height: f64) -> String {
    let step = Scale::to(duration_s).step;
    x_axis(Scale { step, end: duration_s.max(f64::MIN_POSITIVE) }, "seconds", bottom, height)
}

/// The left edge and the width of charts.
pub(super) fn inner_width() -> (f64, f64) {
    (LEFT, WIDTH - LEFT - RIGHT)
}

fn x_axis(scale: Scale, name: &str, bottom: f64, height: f64) -> String {
    let (left, width) = inner_width();
    let mut svg = format!("<path class=\"axis\" d=\"M{left} {bottom:.1}H{:.1}\"/>\n", left + width);
    // Writing to a String cannot fail.
    for (value, text) in scale.ticks().filter(|(value, _)| *value <= scale.end * 1.0001) {
        let at = left + width * scale.share(value);
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{at:.1} {bottom:.1}v4\"/>\n<text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{text}</text>",
            bottom + 17.0
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        left + width / 2.0,
        height - 8.0,
        escaped(name)
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_marks_and_hold_the_largest_value() {
        for (largest, step, end) in
            [(1.0, 0.2, 1.0), (0.93, 0.2, 1.0), (7.0, 2.0, 8.0), (260.0, 50.0, 300.0), (0.0, 0.2, 1.0)]
        {
            let scale = Scale::to(largest);
            assert!(
                (scale.step - step).abs() < 1e-9 && (scale.end - end).abs() < 1e-9,
                "{largest}: {scale:?}"
            );
        }
        let texts: Vec<String> = Scale::to(1.0).ticks().map(|(_, text)| text).collect();
        assert_eq!(texts, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(Scale::to(f64::NAN).end, 1.0);
    }
}
