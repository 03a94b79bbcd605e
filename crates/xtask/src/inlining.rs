//! Reads the release code of the CPU kernels for x86-64 and aarch64, Linux and macOS: every intrinsic is an instruction, and
//! no function of a level calls another part of a kernel. Where the compiler fails to inline, a kernel is tens of times
//! slower at that level alone, and right.
//!
//! Decides without a clock and without a processor of the level. A target that cannot be installed is skipped.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::targets;

const PACKAGE: &str = "izwi-kernels";
/// Instances of the kernels that only other crates have.
const EXAMPLE: &str = "instances";
/// Crates whose code is read, as their files are named.
const CRATES: [&str; 2] = ["izwi_kernels-", "instances-"];

/// Targets, and the levels that each must have code for: those whose instructions not every processor of it has.
const TARGETS: [(&str, &[&str]); 3] = [
    (
        "x86_64-unknown-linux-gnu",
        &["Avx2Level", "AvxVnniLevel", "Avx512Level", "Avx512VnniLevel", "Avx512Bf16Level"],
    ),
    ("aarch64-unknown-linux-gnu", &["NeonDotprodLevel", "NeonI8mmLevel"]),
    ("aarch64-apple-darwin", &["NeonI8mmLevel"]),
];

/// Functions that a kernel may call: memory, the growth of its buffers, the ends of failed checks, and the conversion
/// of a single f16, which detects the processor first.
const ALLOWED: &str = r"^_?(?:mem(?:cpy|set|move|cmp|set_pattern\d+)|bcmp|bzero)\b|panic|_fail|handle_error|handle_alloc|raw_vec|RawVec|alloc\.\.vec|5alloc3vec|__rust|reserve|spec_fill|copy_from_slice|10std_detect|_to_f(?:16|32)_fp16|_Unwind_Resume";

pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    for (target, levels) in TARGETS {
        if let Err(missing) = targets::add(root, target) {
            eprintln!("\n==> inlining: {target} skipped, {missing:#}");
            continue;
        }
        let folder = process::target_folder()?.join("inlining");
        let mut build = cargo(root, &["build", "--release", "-p", PACKAGE, "--example", EXAMPLE]);
        build.args(["--target", target]).env("RUSTFLAGS", "--emit=asm").env("CARGO_TARGET_DIR", &folder);
        steps.run(&format!("inlining on {target}"), &mut build)?;
        let release = folder.join(target).join("release");
        let mut found = Code::default();
        for place in [release.join("deps"), release.join("examples")] {
            read_folder(&place, &mut found)?;
        }
        for level in levels {
            ensure!(found.has(level), "inlining: {target} has no function of {level}: is its code read?");
        }
        found.calls.sort();
        found.calls.dedup();
        if !found.calls.is_empty() {
            bail!("inlining on {target}: not inlined:\n{}", found.calls.join("\n"));
        }
    }
    Ok(())
}

fn read_folder(place: &Path, found: &mut Code) -> Result<()> {
    for entry in place.read_dir().with_context(|| format!("cannot read {}", place.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".s") && CRATES.iter().any(|start| name.starts_with(start)) {
            found.read(&crate::workspace::read(&path)?)?;
        }
    }
    Ok(())
}

/// What was read.
#[derive(Debug, Default)]
struct Code {
    /// The functions that enable the instructions of a level.
    entries: Vec<String>,
    /// A line for each call that should not be there.
    calls: Vec<String>,
}

impl Code {
    fn has(&self, level: &str) -> bool {
        self.entries.iter().any(|entry| entry.contains(level))
    }

    /// Reads assembly of one part of a crate.
    fn read(&mut self, assembly: &str) -> Result<()> {
        let label = Regex::new(r"^([_a-zA-Z][\w$.]*):").context("the pattern of labels")?;
        let call = Regex::new(r"^\s+(?:callq?|jmpq?|bl|b)\s+\*?([_a-zA-Z][\w$.]*)")
            .context("the pattern of calls")?;
        let allowed = Regex::new(ALLOWED).context("the pattern of allowed calls")?;
        let mut function = String::new();
        for line in assembly.lines() {
            if let Some(found) = label.captures(line).filter(|found| !is_local(&found[1])) {
                function = found[1].to_owned();
                if is_entry(&function) {
                    self.entries.push(function.clone());
                }
                if is_intrinsic(&function) {
                    self.calls.push(format!("  {function} is a function"));
                }
            } else if let Some(found) = call.captures(line).filter(|found| !is_local(&found[1])) {
                let callee = &found[1];
                if is_intrinsic(callee) || is_entry(&function) && !allowed.is_match(callee) {
                    self.calls.push(format!("  {function} calls {callee}"));
                }
            }
        }
        Ok(())
    }
}

/// Whether the label is one within a function.
fn is_local(label: &str) -> bool {
    ["LBB", "Ltmp", "ltmp", "Lfunc", "l_", "LJTI", "LCPI", "Lloh"]
        .iter()
        .any(|start| label.starts_with(start))
}

fn is_intrinsic(symbol: &str) -> bool {
    symbol.contains("core_arch")
}

/// Whether the function enables the instructions of a level: the portable one, which enables none, has no such name.
fn is_entry(symbol: &str) -> bool {
    symbol.contains("izwi_kernels") && symbol.contains("Level") && symbol.contains("5enter")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "_ZN104_izwi_kernels..arch..x86_64..avx2..Avx2Level5enter17hE";

    fn calls(lines: &str) -> Vec<String> {
        let mut code = Code::default();
        code.read(&format!("{ENTRY}:\n{lines}\n.Lfunc_end0:\n")).unwrap();
        assert!(code.has("Avx2Level") && !code.has("NeonLevel"));
        code.calls
    }

    #[test]
    fn intrinsics_and_parts_of_kernels_that_are_called_are_found() {
        let intrinsic = "_ZN4core9core_arch3x863fma15_mm256_fmadd_psE";
        assert_eq!(calls(&format!("\tcallq\t{intrinsic}")), [format!("  {ENTRY} calls {intrinsic}")]);
        assert_eq!(calls(&format!("\tbl\t{intrinsic}")).len(), 1);
        assert_eq!(calls(&format!("\tjmp\t*{intrinsic}@GOTPCREL(%rip)")).len(), 1);
        assert_eq!(calls("\tcallq\t_ZN12izwi_kernels6linear6panels4Tile7columnsE").len(), 1);
        assert_eq!(calls("\tcallq\t*_ZN4core4iter4foldE@GOTPCREL(%rip)").len(), 1);
        assert_eq!(calls(&format!("{intrinsic}:\n\tretq")), [format!("  {intrinsic} is a function")]);
    }

    #[test]
    fn memory_and_failed_checks_may_be_called() {
        let lines = "\tcallq\t*memset@GOTPCREL(%rip)\n\tbl\t_memcpy\n\tjne\t.LBB0_1\n\tb\tLBB0_2\n\tjmp\t.LBB0_3
\tbl\t_bzero\n\tcallq\t*_ZN4core9panicking18panic_bounds_checkE@GOTPCREL(%rip)\n\tcallq\t_ZN5alloc7raw_vecE\n\tb.ne\tLBB0_4";
        assert!(calls(lines).is_empty(), "{:?}", calls(lines));
    }
}
