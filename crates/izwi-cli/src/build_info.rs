//! What is compiled into this binary: its version and its compute backends.

use std::sync::LazyLock;

/// The version with the compiled backends.
pub(crate) static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} (features: {})", env!("CARGO_PKG_VERSION"), backends().join(", ")));

/// Names of the compiled compute backends.
pub(crate) fn backends() -> Vec<&'static str> {
    let optional = [
        (cfg!(any(feature = "metal", target_os = "macos")), "metal"),
        (cfg!(feature = "accelerate"), "accelerate"),
        (cfg!(feature = "cuda"), "cuda"),
    ];
    let built_in = optional.into_iter().filter(|(built_in, _)| *built_in).map(|(_, name)| name);
    std::iter::once("cpu").chain(built_in).collect()
}
