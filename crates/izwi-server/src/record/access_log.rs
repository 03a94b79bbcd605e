//! The line of a request or a session in the access log. Its names are part of the public interface (docs/operations.md).

use std::sync::atomic::Ordering;

use super::{Findings, Record};
use crate::traces::RequestSpan;

/// Target of the lines, for filters.
const TARGET: &str = "izwi::access";

/// Writes the line of a record that has ended. Probes come every few seconds: theirs have the level debug.
pub(super) fn write(record: &Record, findings: &Findings) {
    // A level must be known at compile time.
    macro_rules! write_line {
        ($level:expr) => {
            tracing::event!(
                target: TARGET,
                $level,
                method = record.origin.method,
                route = record.origin.route.as_str(),
                status = findings.status,
                close_code = findings.close_code,
                bytes_in = record.bytes_in.load(Ordering::Relaxed),
                bytes_out = record.bytes_out.load(Ordering::Relaxed),
                duration_ms = rounded_ms(record.begun.elapsed().as_secs_f64()),
                request_id = record.origin.id.as_str(),
                trace_id = record.span.as_ref().map(RequestSpan::trace_id),
                model = findings.model.as_deref(),
                generations = Some(findings.generations).filter(|count| *count > 0),
                audio_s = Some(findings.audio.as_secs_f64()).filter(|_| findings.generations > 0),
                finish_reason = findings.finish_reason,
                peer = record.origin.peer,
                "{}",
                if findings.is_session(&record.origin) { "session" } else { "request" }
            )
        };
    }
    if record.origin.is_probe {
        write_line!(tracing::Level::DEBUG)
    } else {
        write_line!(tracing::Level::INFO)
    }
}

/// Milliseconds with three digits.
fn rounded_ms(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}
