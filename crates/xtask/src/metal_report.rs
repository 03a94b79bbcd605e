//! One file about Metal on this Mac, to attach to an issue: system, GPU, `izwi doctor`, the tests on the device, and
//! `izwi bench`. A part that fails is a part of the report.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::workspace::write;

/// Below the repository's root.
const REPORT: &str = "target/metal-report.md";
/// Lines kept of the tests' output: the summary and the failures before it.
const TEST_LINES: usize = 200;
/// What is known of the machine, each a program with its arguments.
const MACHINE: [&[&str]; 5] = [
    &["sw_vers"],
    &[
        "sysctl",
        "machdep.cpu.brand_string",
        "hw.memsize",
        "hw.perflevel0.physicalcpu",
        "hw.perflevel1.physicalcpu",
    ],
    &["system_profiler", "SPDisplaysDataType", "-detailLevel", "mini"],
    &["rustc", "--version"],
    &["git", "rev-parse", "--short", "HEAD"],
];
const BENCH: [&str; 8] = [
    "bench",
    "--device",
    "metal",
    "--random-weights",
    "--models",
    "qwen3-tts-0.6b,lfm2-audio-1.5b",
    "--dtypes",
    "q8",
];
const TESTS: [&str; 12] = [
    "nextest",
    "run",
    "--profile",
    "device",
    "--features",
    "metal",
    "-p",
    "izwi-metal",
    "-p",
    "izwi-nn",
    "-p",
    "izwi-models",
];

pub(crate) fn write_report(root: &Path, steps: &mut Steps) -> Result<()> {
    ensure!(
        cfg!(target_os = "macos"),
        "metal-report describes Metal on a Mac, and this is none; `cargo xtask metal-emulate` runs the same tests in an \
         emulator"
    );
    steps.run("build izwi", &mut cargo(root, &["build", "--release", "--bin", "izwi"]))?;
    let izwi = process::target_folder()?.join("release/izwi");
    let mut report = String::from("# Metal report\n");
    for command in MACHINE {
        section(&mut report, steps, Command::new(command[0]).args(&command[1..]).current_dir(root))?;
    }
    section(&mut report, steps, Command::new(&izwi).arg("doctor").current_dir(root))?;
    section(&mut report, steps, cargo(root, &TESTS).env("IZWI_TEST_DEVICE", "metal"))?;
    section(&mut report, steps, Command::new(&izwi).args(BENCH).current_dir(root))?;
    let path = root.join(REPORT);
    write(&path, &report)?;
    eprintln!("\n{}: attach it to an issue", path.display());
    Ok(())
}

/// The command, how it ended, and the end of what it printed.
fn section(report: &mut String, steps: &mut Steps, command: &mut Command) -> Result<()> {
    let shown = process::shown(command);
    eprintln!("\n==> {shown}");
    let (ended, text) = steps.time(&shown, || {
        let ran = command.stdin(Stdio::null()).output();
        Ok(match ran {
            Ok(output) => {
                let text =
                    [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned());
                (output.status.to_string(), text.join("\n"))
            }
            Err(error) => (format!("could not be started: {error}"), String::new()),
        })
    })?;
    write_section(report, &shown, &ended, &text).context("a String takes every text")
}

fn write_section(report: &mut String, shown: &str, ended: &str, text: &str) -> std::fmt::Result {
    let lines: Vec<&str> = text.trim().lines().collect();
    let kept = &lines[lines.len().saturating_sub(TEST_LINES)..];
    writeln!(report, "\n## `{shown}`\n\n{ended}\n")?;
    if kept.len() < lines.len() {
        writeln!(report, "The last {TEST_LINES} of {} lines:\n", lines.len())?;
    }
    for line in kept {
        writeln!(report, "    {line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_the_command_its_end_and_the_last_lines() {
        let mut report = String::new();
        section(
            &mut report,
            &mut Steps::default(),
            Command::new("sh").args(["-c", "echo a; echo b; exit 3"]),
        )
        .unwrap();
        assert!(
            report.contains("## `sh -c echo a; echo b; exit 3`\n\nexit status: 3\n\n    a\n    b\n"),
            "{report}"
        );
        let many: String = (0..TEST_LINES + 5).map(|line| format!("line {line}\n")).collect();
        write_section(&mut report, "many", "exit status: 0", &many).unwrap();
        assert!(report.contains("The last 200 of 205 lines:\n\n    line 5\n"), "{report}");
    }

    #[test]
    fn a_missing_program_is_a_part_of_the_report() {
        let mut report = String::new();
        section(&mut report, &mut Steps::default(), &mut Command::new("no-such-program-here")).unwrap();
        assert!(report.contains("could not be started"), "{report}");
    }

    #[test]
    #[cfg(not(target_os = "macos"))]
    fn other_systems_are_told_what_they_can_run() {
        let error = write_report(&crate::root(), &mut Steps::default()).unwrap_err().to_string();
        assert!(error.contains("metal-emulate"), "{error}");
    }
}
