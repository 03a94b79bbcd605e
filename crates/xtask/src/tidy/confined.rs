//! Names that may stand in some places only. One row of the table is one rule. Comments and literals are not checked.

use anyhow::{Context, Result};
use regex::Regex;

use super::Violation;
use super::tree::{Tree, is_in, line_of};

struct Rule {
    name: &'static str,
    /// Matched against code without comments and literals.
    pattern: &'static str,
    /// Whether the rule holds for code of tests too.
    in_tests: bool,
    /// Prefixes of the paths where the rule holds.
    scopes: &'static [&'static str],
    /// Exceptions, each a file or a folder with its closing `/`, and the reason.
    except: &'static [(&'static str, &'static str)],
    remedy: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        name: "tensors in the engine",
        pattern: r"\bcandle(?:_\w+)?\b|\bizwi_(?:models|nn|kernels)\b",
        in_tests: true,
        scopes: &["crates/izwi-core/"],
        except: &[
            ("crates/izwi-core/src/engine/executor.rs", "the seam to the models"),
            ("crates/izwi-core/src/engine/executor/", "runs the models"),
        ],
        remedy: "move it behind the executor: only engine/executor.rs and engine/executor/ name tensors and models",
    },
    Rule {
        name: "wire format in the core",
        pattern: r"\bserde\w*|\bSerialize\b|\bDeserialize\b|\bjson!|\b[Vv]erbose\w*",
        in_tests: false,
        scopes: &["crates/izwi-core/src/"],
        except: &[],
        remedy: "the engine gives values; write formats in crates/izwi-server/src/dto/ or the command",
    },
    Rule {
        name: "device test in a family",
        pattern: r"\bis_(?:cpu|metal|cuda)\s*\(|\bDevice\s*::\s*(?:Metal|Cuda)\b|\bDevice\s*::\s*Cpu\s*(?:=>|\|)|\bmatches!\s*\([^;]*\bDevice\s*::|\bDeviceLocation\b|\bsame_device\b",
        in_tests: false,
        scopes: &["crates/izwi-models/src/families/"],
        except: &[],
        remedy: "ask a layer of izwi-nn, or let izwi-nn choose: a family is the same on every device",
    },
    Rule {
        name: "feature in a layer",
        pattern: r"\bfeature\s*=",
        in_tests: true,
        scopes: &["crates/izwi-nn/src/"],
        except: &[("crates/izwi-nn/src/device.rs", "knows which devices this build has")],
        remedy: "ask for the device: izwi-metal compiles everywhere, and without Metal has none",
    },
    Rule {
        name: "metric macro",
        pattern: r"\b(?:describe_)?(?:counter|gauge|histogram)!",
        in_tests: true,
        scopes: &["crates/", "tests/", "benches/"],
        except: &[
            ("crates/izwi-core/src/engine/metrics.rs", "the engine's metrics"),
            ("crates/izwi-server/src/metrics.rs", "metrics of the HTTP edge, which the engine cannot see"),
        ],
        remedy: "add a method to engine/metrics.rs (or the server's metrics.rs) and call that",
    },
    Rule {
        name: "wire type",
        pattern: r"\bderive\s*\([^)]*\bDeserialize\b",
        in_tests: true,
        scopes: &["crates/izwi-server/src/"],
        except: &[
            ("crates/izwi-server/src/dto/", "the wire types' home"),
            ("crates/izwi-server/src/jobs/record.rs", "what is on the disk and no client sees"),
        ],
        remedy: "move the type to crates/izwi-server/src/dto/",
    },
    Rule {
        name: "unsafe",
        pattern: r"\bunsafe\b|\b(?:allow|expect|warn)\s*\(\s*unsafe_code\b",
        in_tests: true,
        scopes: &[""],
        except: &[
            ("crates/izwi-kernels/", "CPU kernels and mapped memory"),
            ("crates/izwi-cuda/", "one call of CUDA's bindings"),
            ("scripts/metal-emulator/stand-ins/", "stand for bindings to C; no part of the product"),
        ],
        remedy: "write it safely, or move it into crates/izwi-kernels/",
    },
    Rule {
        name: "wall clock",
        pattern: r"\b(?:SystemTime|UNIX_EPOCH)\b",
        in_tests: false,
        scopes: &["crates/izwi-core/", "crates/izwi-server/", "crates/izwi-dialects/", "crates/izwi-cli/"],
        except: &[
            ("crates/izwi-server/src/traces/span.rs", "the times of spans, which collectors see"),
            ("crates/izwi-server/src/state.rs", "the time of the start, which clients see"),
            ("crates/izwi-server/src/routes/voices.rs", "the times of voices, which clients see"),
            ("crates/izwi-cli/src/commands/dictate/history.rs", "the times of dictations, which users see"),
            ("crates/izwi-cli/src/commands/plan/curve_file.rs", "the date of a measurement, which users see"),
            ("crates/izwi-dialects/src/deepgram/results.rs", "the time of an answer, which clients see"),
        ],
        remedy: "measure with Instant: the wall clock jumps, and a deadline must not",
    },
    Rule {
        name: "ignored test",
        pattern: r"#\[ignore\b",
        in_tests: true,
        scopes: &[""],
        except: &[],
        remedy: "make it pass, remove it, or leave it out of `test --fast` by the filter in .config/nextest.toml",
    },
    Rule {
        name: "shared lock",
        pattern: r"\bArc\s*<\s*(?:\w+\s*::\s*)*Mutex\b|\bArc\s*::\s*new\s*\(\s*(?:\w+\s*::\s*)*Mutex\b",
        in_tests: true,
        scopes: &[
            "crates/izwi-core/src/engine/",
            "crates/izwi-kernels/",
            "crates/izwi-metal/",
            "crates/izwi-nn/",
            "crates/izwi-models/",
        ],
        except: &[],
        remedy: "give the state one owner and reach it by a message or by moving it",
    },
];

pub(super) fn stays_in_its_place(tree: &Tree) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for rule in RULES {
        let pattern =
            Regex::new(rule.pattern).with_context(|| format!("the pattern of rule '{}'", rule.name))?;
        let in_scope = |path: &str| rule.scopes.iter().any(|scope| path.starts_with(scope));
        for file in tree.rust_files().filter(|file| in_scope(&file.path) && !is_in(&file.path, rule.except)) {
            let code = if rule.in_tests { &file.code } else { &file.product };
            for hit in pattern.find_iter(code) {
                let line = line_of(code, hit.start());
                violations.push(Violation::new(&file.path, line, rule.name, rule.remedy));
            }
        }
    }
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        assert_eq!(found(stays_in_its_place, files), expected);
    }

    #[test]
    fn only_the_executor_names_tensors() {
        let text = "//! knows no candle\nuse candle_core::Tensor;\nuse izwi_models::model;\n";
        check(
            &[
                ("crates/izwi-core/src/engine/executor.rs", text),
                ("crates/izwi-core/src/engine/executor/native.rs", text),
                ("crates/izwi-nn/src/lib.rs", text),
                ("crates/izwi-core/src/engine/executor_old.rs", text),
                (
                    "crates/izwi-core/src/engine/core.rs",
                    "//! x\n// no candle here\nlet a = \"izwi_models\";\n",
                ),
            ],
            &[
                "crates/izwi-core/src/engine/executor_old.rs:2",
                "crates/izwi-core/src/engine/executor_old.rs:3",
            ],
        );
    }

    #[test]
    fn metric_macros_have_two_homes() {
        let text = "metrics::counter!(\"a\").increment(1);\ndescribe_histogram!(\"a\", \"b\");\n";
        check(
            &[
                ("crates/izwi-core/src/engine/metrics.rs", text),
                ("crates/izwi-server/src/metrics.rs", text),
                ("crates/izwi-server/src/routes/speech.rs", text),
            ],
            &["crates/izwi-server/src/routes/speech.rs:1", "crates/izwi-server/src/routes/speech.rs:2"],
        );
    }

    #[test]
    fn wire_types_live_in_dto() {
        let text = "#[derive(Debug, Serialize)]\nstruct A;\n#[derive(\n    Debug,\n    serde::Deserialize,\n)]\nstruct B;\n";
        check(
            &[
                ("crates/izwi-server/src/dto/speech.rs", text),
                ("crates/izwi-hub/src/manifest.rs", text),
                ("crates/izwi-server/src/ws/protocol.rs", text),
            ],
            &["crates/izwi-server/src/ws/protocol.rs:3"],
        );
    }

    #[test]
    fn layers_ask_for_a_device_instead_of_a_feature() {
        let text = "#[cfg(\n    feature = \"metal\"\n)]\nfn f() {}\n";
        check(
            &[("crates/izwi-metal/src/lib.rs", text), ("crates/izwi-nn/src/linear.rs", text)],
            &["crates/izwi-nn/src/linear.rs:2"],
        );
    }

    #[test]
    fn deadlines_use_no_wall_clock() {
        let text = "use std::time::{Duration, SystemTime};\n// SystemTime\nlet now = Instant::now();\n";
        check(
            &[
                ("crates/izwi-server/src/state.rs", text),
                ("crates/izwi-nn/src/lib.rs", text),
                ("crates/izwi-server/src/serve.rs", text),
                ("crates/izwi-core/src/engine/core.rs", text),
            ],
            &["crates/izwi-core/src/engine/core.rs:1", "crates/izwi-server/src/serve.rs:1"],
        );
    }

    #[test]
    fn unsafe_stays_in_cpu_kernels() {
        let text =
            "// unsafe is a word here\nfn f() { unsafe { g() } }\n#![allow(unsafe_code, reason = \"x\")]\n";
        check(
            &[
                ("crates/izwi-kernels/src/linear.rs", text),
                ("crates/izwi-nn/src/linear.rs", text),
                ("crates/izwi-audio/src/lib.rs", "#![forbid(unsafe_code)]\n"),
            ],
            &["crates/izwi-nn/src/linear.rs:2", "crates/izwi-nn/src/linear.rs:3"],
        );
    }

    #[test]
    fn no_shared_locks_in_engine_and_models() {
        let text = "a: Arc<Mutex<u8>>,\nb: Arc<std::sync::Mutex<u8>>,\nArc::new(Mutex::new(0));\nc: Mutex<Arc<u8>>,\n";
        check(
            &[("crates/izwi-server/src/lib.rs", text), ("crates/izwi-core/src/engine/core.rs", text)],
            &[
                "crates/izwi-core/src/engine/core.rs:1",
                "crates/izwi-core/src/engine/core.rs:2",
                "crates/izwi-core/src/engine/core.rs:3",
            ],
        );
    }

    #[test]
    fn families_test_no_device_and_their_tests_may() {
        let text = "let a = device.is_cpu();\nlet b = Device::Cpu;\nmatches!(b, Device::Cpu);\n\
                    match b { Device::Cpu => 1, Device::Metal(_) => 2 }\n#[cfg(test)]\nmod tests { fn f() { d.is_cpu(); } }\n";
        let home = "crates/izwi-models/src/families/lark/network.rs";
        check(
            &[(home, text), ("crates/izwi-nn/src/linear.rs", text)],
            &[1, 3, 4, 4].map(|line| format!("{home}:{line}")).each_ref().map(String::as_str),
        );
    }

    #[test]
    fn the_core_knows_no_wire_format() {
        let text =
            "//! verbose_json\nuse serde::Serialize;\nlet a = \"verbose_json\";\nstruct VerboseTranscript;\n";
        let file = "crates/izwi-core/src/engine/sequences.rs";
        check(
            &[(file, text), ("crates/izwi-server/src/sse.rs", text)],
            &[2, 2, 4].map(|line| format!("{file}:{line}")).each_ref().map(String::as_str),
        );
    }

    #[test]
    fn tests_are_not_ignored() {
        check(&[("tests/tests/a.rs", "//! a\n#[ignore = \"slow\"]\n")], &["tests/tests/a.rs:2"]);
    }
}
