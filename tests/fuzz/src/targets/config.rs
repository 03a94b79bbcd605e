//! The configuration file.

use std::path::Path;

use crate::Target;

pub(super) const TARGET: Target = Target { name: "config", run, seeds, max_bytes: 2 << 10 };

fn seeds() -> Vec<Vec<u8>> {
    [
        "home = \"/h\"\n[engine]\nmax_batch_size = 0x10\nenable_preemption = false\n[server]\nport = 1\n",
        "[engine]\nthreads = 4\nscheduling_policy = \"fcfs\"\ndevice = \"cuda:0\"\n[server]\napi_key = \"k\"\n",
        "[server]\nallowed_hosts = [\"a\", \"b:1\"]\nmax_upload_mib = 100\nidle_timeout = 30.5\nhost = \"::1\"\n",
        "asr_model = \"a\"\nmodel = 'b'\nport = 1979-05-27T07:32:00Z\n[engine.x]\ny = [[1], {a = inf}]\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match izwi_cli::read_config(Path::new("c.toml"), text) {
        Ok(values) => assert!(values.len() <= text.len()),
        Err(problems) => {
            assert!(!problems.is_empty());
            let long = problems.iter().find(|problem| problem.len() > 1_000 + text.len());
            assert!(long.is_none(), "a long problem: {long:?}");
        }
    }
}
