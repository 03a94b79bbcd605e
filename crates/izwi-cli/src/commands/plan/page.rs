//! The plan as text.
//!
//! Must not know how it is made.

use izwi_core::engine::capacity::Limit;

use super::{Assumptions, Count, Kind, Plan};
use crate::output;

/// What limits the streams of a machine, in words.
pub(super) fn limit(limit: Limit) -> &'static str {
    match limit {
        Limit::Device => "the time of a step",
        Limit::Prompts => "the time of prompts",
        Limit::FirstAudio => "--first-audio",
        Limit::Settings => "max_running_requests or max_state_mib",
    }
}

/// The page.
pub(super) fn page(plan: &Plan<'_>) -> String {
    let mut text = format!("{} listeners of {}\n\n", plan.assumptions.listeners, plan.model);
    text.push_str(&assumptions(&plan.assumptions));
    text.push('\n');
    let header = ["MACHINE", "STREAMS", "MACHINES", "SESSIONS", "IN USE", "FIRST AUDIO", "MEMORY", "AN HOUR"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(plan.machines.iter().map(row));
    text.push_str(&output::format_columns(&rows));
    text.push('\n');
    for kind in &plan.machines {
        let Kind { machine, device, precision, threads, measured_at, version, limit, .. } = kind;
        text.push_str(&format!(
            "{machine}: {device}, {precision}, {threads} threads, izwi {version}, measured {measured_at}\n  limit: {limit}\n"
        ));
    }
    text.push_str(
        "\nMACHINES: each utterance goes to the machine with the fewest streams. SESSIONS: to any machine, or to that of its\n\
         WebSocket session. Both have the spare machines. FIRST AUDIO: beside as many streams as a machine keeps.\n",
    );
    text
}

fn assumptions(assumptions: &Assumptions) -> String {
    let percent = |share: f64| format!("{} %", (1e5 * share).round() / 1e3);
    let Assumptions {
        duty,
        utterance_s,
        burst,
        first_audio_s,
        waiting,
        refused,
        spare,
        headroom,
        streams,
        ..
    } = assumptions;
    let arrivals = if *burst > 1.0 { format!("{burst} together") } else { "independent".to_owned() };
    output::format_columns(&[
        [
            "speech".to_owned(),
            format!("{} of the time, {streams:.1} streams at once on average", percent(*duty)),
        ],
        ["utterances".to_owned(), format!("{utterance_s} s, {arrivals}")],
        [
            "first audio".to_owned(),
            format!("within {first_audio_s} s; {} wait for another stream to end", percent(*waiting)),
        ],
        ["refused".to_owned(), format!("at most {}", percent(*refused))],
        [
            "headroom".to_owned(),
            format!(
                "{} of the streams, and {spare} spare machine{}",
                percent(*headroom),
                if *spare == 1 { "" } else { "s" }
            ),
        ],
        ["besides".to_owned(), "no other work on these machines; every listener plays at once".to_owned()],
    ])
}

fn row(kind: &Kind) -> [String; 8] {
    let none = || "-".to_owned();
    let count = |count: &Option<Count>| count.as_ref().map_or_else(none, |count| count.machines.to_string());
    let in_use = kind.least_streams.as_ref().map(|count| format!("{:.0} %", 100.0 * count.utilisation));
    let price = kind.least_streams.as_ref().and_then(|count| count.price_per_hour);
    [
        kind.machine.clone(),
        kind.streams.to_string(),
        count(&kind.least_streams),
        count(&kind.sessions),
        in_use.unwrap_or_else(none),
        kind.first_audio_s.map_or_else(none, |seconds| format!("{seconds:.2} s")),
        kind.memory_bytes.map_or_else(none, output::format_bytes),
        price.map_or_else(none, |price| format!("{price:.2}")),
    ]
}
