//! Kernels have no closures and no iterator adaptors: each is a function of its own, which the compiler need not inline into
//! the function that enables the instructions. Outside of that every intrinsic is a call, and a call in a loop costs more than
//! the loop.

use anyhow::{Context, Result};
use regex::Regex;

use super::Violation;
use super::tree::{Tree, line_of};

const KERNELS: &str = "crates/izwi-kernels/src/";
/// Where all functions are made of intrinsics.
const INTRINSICS: [&str; 2] = ["arch/x86_64/", "arch/aarch64/"];

/// A function is one of a kernel if its signature names one of these traits.
const TRAITS: &str = r"\b(?:Isa|Int8Isa|Level)\b";
const FUNCTION: &str = r"\bfn\s+\w+";
/// The start of a closure, or an adaptor. `enumerate`, `step_by` and slices of chunks are inlined: `cargo xtask inlining` sees
/// where they are not.
const CLOSURE: &str = r"(?:[(,=]|\bmove\b|\breturn\b)\s*\|[^|]*\||\.(?:all|and_then|any|chain|collect|copied|cloned|filter|filter_map|find|flat_map|fold|for_each|is_none_or|is_some_and|map|map_or|map_or_else|position|product|reduce|rev|skip|sum|take|then|unwrap_or_else|zip)\s*\(|\bfrom_fn\s*\(";

pub(super) fn have_no_closures(tree: &Tree) -> Result<Vec<Violation>> {
    let [traits, function, closure] = [TRAITS, FUNCTION, CLOSURE].map(Regex::new);
    let context = || "the patterns of kernels";
    let (traits, function, closure) =
        (traits.with_context(context)?, function.with_context(context)?, closure.with_context(context)?);
    let mut violations = Vec::new();
    for file in tree.rust_files() {
        let Some(path) = file.path.strip_prefix(KERNELS) else { continue };
        let intrinsics = INTRINSICS.iter().any(|folder| path.starts_with(folder));
        for start in function.find_iter(&file.product) {
            let Some((signature, body)) = parts(&file.product[start.start()..]) else { continue };
            if !intrinsics && !traits.is_match(signature) {
                continue;
            }
            let at = start.start() + signature.len();
            for found in closure.find_iter(body) {
                let line = line_of(&file.product, at + found.start());
                let remedy = "write a loop over indices, or a function with #[inline(always)]: this may be compiled as a function without the instructions of its caller";
                violations.push(Violation::new(&file.path, line, "closure or adaptor in a kernel", remedy));
            }
        }
    }
    Ok(violations)
}

/// Signature and body of the function that `code` begins with; none where it has no body.
fn parts(code: &str) -> Option<(&str, &str)> {
    let (mut depth, mut open) = (0_usize, None);
    for (at, c) in code.char_indices() {
        match (c, open) {
            (';', None) if depth == 0 => return None,
            ('{', None) if depth == 0 => (open, depth) = (Some(at), 1),
            ('(' | '[' | '{', _) => depth += 1,
            (')' | ']' | '}', _) => depth = depth.saturating_sub(1),
            _ => {}
        }
        if let (Some(open), 0) = (open, depth) {
            return Some((&code[..open], &code[open..=at]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn closures_in_functions_of_a_level_are_found_and_others_are_not() {
        let kernel = "//! x
unsafe fn panel<I: Isa, const R: usize>(x: [f32; R]) {
    (0..4).for_each(|vector| self.columns::<I, R, 1>(vector));
    let a: [I::V; R] = std::array::from_fn(|row| I::splat(x[row]));
    let b = |v| I::add(v, v);
    if x || y || (z) { a }
    match n { 1 | 2 => 3, _ => 4 };
}
fn packs(x: &[f32]) { x.iter().for_each(|x| drop(x)); }
#[cfg(test)]
mod tests { fn f<I: Isa>() { (0..4).for_each(|_| ()); } }
";
        let level = "//! x\nunsafe fn low(b: [B; 2]) -> [B; 2] {\n    b.map(and)\n}\n";
        let files = [
            ("crates/izwi-kernels/src/linear/panels.rs", kernel),
            ("crates/izwi-kernels/src/arch/x86_64/avx2.rs", level),
            ("crates/izwi-kernels/src/arch/portable/mod.rs", level),
            ("crates/izwi-nn/src/lib.rs", kernel),
        ];
        let panels = "crates/izwi-kernels/src/linear/panels.rs";
        let expected = [
            "crates/izwi-kernels/src/arch/x86_64/avx2.rs:3".to_owned(),
            format!("{panels}:3"),
            format!("{panels}:4"),
            format!("{panels}:5"),
        ];
        let mut lines = found(have_no_closures, &files);
        lines.dedup();
        assert_eq!(lines, expected);
    }
}
