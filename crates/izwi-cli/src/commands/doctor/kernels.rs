//! The check of the CPU kernels: whether they run as fast as this processor lets them.

use izwi_core::engine::executor::KernelSpeeds;

use super::finding::Finding;

/// Measures the kernels, which takes less than a second.
pub(super) fn finding() -> Finding {
    judge(&KernelSpeeds::measure())
}

fn judge(speeds: &KernelSpeeds) -> Finding {
    let shares = speeds.products.iter().filter(|product| product.rows > 1);
    let shares = shares.map(|product| format!("{} {}", product.weights, percent(product.share)));
    let detail = format!(
        "{}, {} multiply-adds/s a thread; of the peak with 8 rows: {}",
        speeds.level,
        billions(speeds.peak),
        shares.collect::<Vec<_>>().join(", ")
    );
    let far = speeds.products.iter().filter(|product| product.is_far).map(|product| {
        let rows = if product.rows == 1 { "1 row".to_owned() } else { format!("{} rows", product.rows) };
        let (share, rate) = (percent(product.share), billions(product.rate));
        format!("{} with {rows} at {share} ({rate}/s)", product.weights)
    });
    let far: Vec<String> = far.collect();
    if !far.is_empty() {
        let detail = format!("{}, far below the processor's peak: {}", speeds.level, far.join(", "));
        let remedy = "speech is many times slower than it should be; install a released build of Izwi, and report this \
                      line with the name of the processor if it has the same";
        return Finding::warning("kernels", detail, remedy);
    }
    if !speeds.has_vectors() {
        let remedy = "speech is many times slower than with vector instructions; use a processor with AVX2 or NEON, or let \
                      the virtual machine pass them on";
        return Finding::warning("kernels", format!("no vector instructions: {detail}"), remedy);
    }
    Finding::ok("kernels", detail)
}

/// A share as a percentage, with a decimal where it is small.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 10.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn billions(rate: f64) -> String {
    let billions = rate / 1e9;
    if billions < 10.0 { format!("{billions:.1} G") } else { format!("{billions:.0} G") }
}

#[cfg(test)]
mod tests {
    use izwi_core::engine::executor::ProductSpeed;

    use super::super::finding::Verdict;
    use super::*;

    fn speeds(level: &'static str, f32_share: f64) -> KernelSpeeds {
        let product = |weights, rows, share: f64| ProductSpeed {
            weights,
            rows,
            rate: share * 56e9,
            share,
            is_far: share < 0.1,
        };
        let products = vec![product("f32", 1, 0.34), product("f32", 8, f32_share), product("q8", 8, 0.6)];
        KernelSpeeds { level, peak: 56e9, products }
    }

    #[test]
    fn kernels_far_from_the_peak_are_named() {
        let finding = judge(&speeds("Avx2", 0.007));
        assert_eq!(finding.verdict, Verdict::Warning);
        assert_eq!(
            finding.detail,
            "Avx2, far below the processor's peak: f32 with 8 rows at 0.7 % (0.4 G/s)"
        );
        assert!(finding.remedy.is_some());
    }

    #[test]
    fn kernels_near_the_peak_are_fine_and_missing_instructions_are_told() {
        let finding = judge(&speeds("Avx2", 0.5));
        assert_eq!(finding.verdict, Verdict::Ok);
        let detail = "Avx2, 56 G multiply-adds/s a thread; of the peak with 8 rows: f32 50 %, q8 60 %";
        assert_eq!(finding.detail, detail);
        let finding = judge(&speeds("Portable", 0.5));
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.detail.starts_with("no vector instructions: Portable"), "{}", finding.detail);
    }
}
