//! Programs of other projects: finds them on the search path and prepares their processes.
//!
//! A process of a package client must not run or obey a file of the folder that the user happens to work in. Knows no
//! package and no manifest.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::access::Access;

/// Prefixes of variables that change what a client loads or runs. Case does not matter.
const DROPPED_PREFIXES: &[&str] = &[
    "PYTHON",
    "PIP_",
    "NODE_",
    "NPM_CONFIG_",
    "NPM_LIFECYCLE_",
    "NPM_PACKAGE_",
    "NPM_EXECPATH",
    "NPM_NODE_EXECPATH",
    // Secrets and settings of this program and of the hub.
    "IZWI_",
    "HF_",
    "HUGGING_FACE_",
];

/// Variables that name a folder of an earlier command, or a file that a shell runs first.
const DROPPED: &[&str] = &["OLDPWD", "INIT_CWD", "PROJECT_CWD", "PYENV_DIR", "BASH_ENV", "ENV"];

/// Variables with a dropped prefix that stay: where the user's mirror is, and how it is reached.
const KEPT: &[&str] = &[
    "PIP_CONFIG_FILE",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_TRUSTED_HOST",
    "PIP_PROXY",
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_KEYRING_PROVIDER",
    "PIP_TIMEOUT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
    "PIP_CACHE_DIR",
    "PIP_NO_CACHE_DIR",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "NODE_USE_ENV_PROXY",
    "NPM_CONFIG_USERCONFIG",
    "NPM_CONFIG_GLOBALCONFIG",
    "NPM_CONFIG_REGISTRY",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "NPM_CONFIG_NOPROXY",
    "NPM_CONFIG_CA",
    "NPM_CONFIG_CAFILE",
    "NPM_CONFIG_CACHE",
];

/// The executable file of this name in the absolute folders of a search path. A relative folder, or an empty one, means
/// the working folder and is skipped.
pub fn find_program(name: &str, search: &OsStr) -> Option<PathBuf> {
    let with_suffix = format!("{name}{}", env::consts::EXE_SUFFIX);
    let names = if name.ends_with(".cmd") { [name, name] } else { [&with_suffix, name] };
    let places = absolute_folders(search).flat_map(|folder| names.map(|name| folder.join(name)));
    places.into_iter().find(|path| is_executable(path))
}

/// Python with pip, as [`crate::Store::pull`] would run it: the program, and the answer of `pip --version`.
///
/// # Errors
/// The program that has no pip, or nothing where there is no Python.
pub fn find_pip(access: &Access) -> Result<(PathBuf, String), Option<PathBuf>> {
    let search = env::var_os("PATH").unwrap_or_default();
    let found = |name: &String| locate(name, &search);
    let Some(python) = access.python.iter().find_map(found) else { return Err(None) };
    let folder = python.parent().unwrap_or(Path::new("/")).to_path_buf();
    let output = isolated(&python, &folder).args(["-I", "-m", "pip", "--version"]).output();
    match output {
        Ok(output) if output.status.success() => {
            Ok((python, String::from_utf8_lossy(&output.stdout).trim().to_owned()))
        }
        _ => Err(Some(python)),
    }
}

/// A program by its name on the search path, or by an absolute path.
pub(crate) fn locate(name: &str, search: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.is_absolute() { Some(path.to_path_buf()) } else { find_program(name, search) }
}

/// A process without input that runs in `folder` and has no variable that could make it load other code.
pub(crate) fn isolated(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if !is_kept(&name) {
            command.env_remove(name);
        }
    }
    // Scripts that stand for a program search for others.
    let search = env::var_os("PATH").unwrap_or_default();
    if let Ok(search) = env::join_paths(absolute_folders(&search)) {
        command.env("PATH", search);
    }
    command.current_dir(folder).env("PWD", folder).stdin(Stdio::null());
    command
}

fn is_kept(name: &OsString) -> bool {
    let Some(name) = name.to_str() else { return true };
    let name = name.to_ascii_uppercase().replace('-', "_");
    let is_dropped =
        DROPPED.contains(&name.as_str()) || DROPPED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    !is_dropped || KEPT.contains(&name.as_str())
}

fn absolute_folders(search: &OsStr) -> impl Iterator<Item = PathBuf> {
    let folders: Vec<PathBuf> = env::split_paths(search).filter(|folder| folder.is_absolute()).collect();
    folders.into_iter()
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_load_code_are_dropped_and_those_of_mirrors_and_proxies_kept() {
        let kept = |name: &str| is_kept(&OsString::from(name));
        for name in [
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PYTHONHOME",
            "PIP_PYTHON",
            "PIP_NO_BINARY",
            "PIP_TARGET",
            "pip_requirement",
            "NODE_OPTIONS",
            "NODE_PATH",
            "npm_config_ignore_scripts",
            "npm_config_script-shell",
            "NPM_CONFIG_NODE_OPTIONS",
            "npm_lifecycle_event",
            "npm_execpath",
            "HF_TOKEN",
            "IZWI_API_KEY",
            "BASH_ENV",
            "PYENV_DIR",
            "INIT_CWD",
        ] {
            assert!(!kept(name), "{name}");
        }
        for name in [
            "PATH",
            "HOME",
            "https_proxy",
            "NO_PROXY",
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "PIP_INDEX_URL",
            "PIP_CERT",
            "NODE_EXTRA_CA_CERTS",
            "npm_config_registry",
            "npm_config_https-proxy",
            "NPM_CONFIG_USERCONFIG",
            "NPM_TOKEN",
            "XDG_CONFIG_HOME",
            "PYENV_ROOT",
        ] {
            assert!(kept(name), "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn programs_in_the_working_folder_are_not_found() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir_in(".").unwrap();
        let file = folder.path().join("lark");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let relative = Path::new(".").join(folder.path().file_name().unwrap());
        assert!(relative.join("lark").exists());
        assert_eq!(find_program("lark", relative.as_os_str()), None);
        let absolute = std::path::absolute(folder.path()).unwrap();
        let both = env::join_paths([relative, absolute.clone()]).unwrap();
        assert_eq!(find_program("lark", &both), Some(absolute.join("lark")));
        assert_eq!(find_program("lark", OsStr::new("")), None);
    }
}
