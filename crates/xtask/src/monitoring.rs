//! The files of `assets/monitoring`: Prometheus reads the alert rules, tests them, and reads the dashboard's expressions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::process;
use crate::steps::Steps;
use crate::workspace::{read, write};

const FOLDER: &str = "assets/monitoring";
const PROMTOOL: &str = "promtool";
/// The Debian package that has it.
const PACKAGE: &str = "prometheus";

/// Checks the files, where `promtool` is installed or can be taken out of Debian's package.
pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    let promtool = match promtool() {
        Ok(promtool) => promtool,
        Err(missing) => {
            eprintln!("\n==> monitoring: skipped, {PROMTOOL} is not installed, {missing:#}");
            return Ok(());
        }
    };
    let folder = root.join(FOLDER);
    let run = |of: &str, file: &Path| {
        let mut command = Command::new(&promtool);
        command.args([of, "rules"]).arg(file).current_dir(&folder);
        command
    };
    steps.run("alert rules", &mut run("check", Path::new("alerts.yml")))?;
    steps.run("tests of alert rules", &mut run("test", Path::new("alerts_test.yml")))?;
    let rules = process::target_folder()?.join("dashboard-rules.json");
    write(&rules, &rules_of(&read(&folder.join("grafana.json"))?)?.to_string())?;
    steps.run("expressions of the dashboard", &mut run("check", &rules))
}

/// The dashboard's expressions as recording rules, with values for its variables. JSON is YAML.
fn rules_of(dashboard: &str) -> Result<Value> {
    let dashboard: Value = serde_json::from_str(dashboard).context("the dashboard is not JSON")?;
    let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(index, target)| {
            let expression = target["expr"].as_str().context("a target has no expression")?;
            let expression = expression
                .replace("$__rate_interval", "5m")
                .replace("$instance", ".*")
                .replace("$model", ".*");
            ensure!(!expression.contains('$'), "an unknown variable in {expression}");
            Ok(json!({"record": format!("dashboard:{index}"), "expr": expression}))
        })
        .collect::<Result<_>>()?;
    ensure!(!rules.is_empty(), "the dashboard has no expressions");
    Ok(json!({"groups": [{"name": "dashboard", "rules": rules}]}))
}

/// The installed program, or that of Debian's package, unpacked below the target folder.
fn promtool() -> Result<PathBuf> {
    if process::is_installed(PROMTOOL) {
        return Ok(PROMTOOL.into());
    }
    let folder = process::target_folder()?.join(PROMTOOL);
    let program = folder.join("usr/bin").join(PROMTOOL);
    if program.exists() {
        return Ok(program);
    }
    ensure!(process::is_installed("apt-get"), "and apt-get is not there to download it");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let apt = |args: &[&str]| process::run(Command::new("apt-get").args(args).current_dir(&folder));
    apt(&["download", PACKAGE]).or_else(|_| apt(&["update"]).and_then(|()| apt(&["download", PACKAGE])))?;
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let package = files.find(|path| path.extension().is_some_and(|end| end == "deb"));
    let package = package.context("and apt-get downloaded nothing")?;
    process::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&folder))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_become_rules_with_values_for_their_variables() {
        let dashboard = |expression: &str| {
            let panels = json!([{"type": "row"}, {"targets": [{"expr": expression}]}]);
            rules_of(&json!({"panels": panels}).to_string())
        };
        let rules = dashboard("rate(a{model=~\"$model\"}[$__rate_interval])").unwrap();
        assert_eq!(rules["groups"][0]["rules"][0]["expr"], "rate(a{model=~\".*\"}[5m])");
        assert!(dashboard("a{b=\"$other\"}").unwrap_err().to_string().contains("$other"));
        assert!(rules_of("{\"panels\": []}").is_err());
    }
}
