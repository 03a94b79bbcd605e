//! Embeds the model manifests of the repository: every `models/*.toml`, so that a new model needs no line of Rust.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../models").canonicalize()?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", folder.display());

    let mut manifests: Vec<PathBuf> =
        fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    manifests.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    manifests.sort();

    let mut table = String::from("&[\n");
    for path in &manifests {
        println!("cargo::rerun-if-changed={}", path.display());
        let name = path.file_name().and_then(|name| name.to_str()).ok_or("a manifest's name is not UTF-8")?;
        let text = path.to_str().ok_or("a manifest's path is not UTF-8")?;
        writeln!(table, "    ({name:?}, include_str!({text:?})),")?;
    }
    table.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("manifests.rs"), table)?;
    Ok(())
}
