//! The module of Speech Dispatcher in the folders of this user: a link to the program, and a line of the configuration
//! where one is needed.
//!
//! Speech Dispatcher finds modules in a folder by itself, unless its configuration names some. A configuration of the user
//! replaces that of the system.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use directories::BaseDirs;

use crate::speech_dispatcher::MODULE;
use crate::{failure, private_file};

const SYSTEM_CONFIGURATION: &str = "/etc/speech-dispatcher/speechd.conf";
/// A larger file is no configuration.
const MAX_BYTES: u64 = 1 << 20;
const BEGIN: &str = "# izwi begins: `izwi service uninstall --speech-dispatcher` removes these lines\n";
const END: &str = "# izwi ends\n";

/// Where the module is installed.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The folder of the user's data: Speech Dispatcher looks for modules next to it, and only if it exists.
    pub(crate) data: PathBuf,
    /// The link.
    pub(crate) module: PathBuf,
    /// The configuration of the user and that of the system.
    pub(crate) user: PathBuf,
    pub(crate) system: PathBuf,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// An empty folder.
    Folder {
        path: PathBuf,
    },
    /// A link to the program.
    Link {
        path: PathBuf,
        program: PathBuf,
    },
    /// The contents of a configuration.
    Write {
        path: PathBuf,
        text: String,
    },
    Remove {
        path: PathBuf,
    },
}

impl Places {
    /// Those of this user.
    ///
    /// # Errors
    /// The user has no home folder.
    pub(crate) fn of_user() -> Result<Self> {
        let folders = BaseDirs::new().ok_or_else(|| {
            failure::with_help("this user has no home folder", "set HOME to the folder of the user")
        })?;
        let data = folders.data_dir();
        let libexec = data.parent().unwrap_or(data).join("libexec");
        Ok(Self {
            data: data.to_path_buf(),
            module: libexec.join("speech-dispatcher-modules").join(MODULE),
            user: folders.config_dir().join("speech-dispatcher/speechd.conf"),
            system: SYSTEM_CONFIGURATION.into(),
        })
    }

    /// What an installation changes; nothing where all is there. With `force` another module of the name is replaced.
    ///
    /// # Errors
    /// Another module has the name, or a configuration cannot be read or changed.
    pub(crate) fn installation(&self, program: &Path, force: bool) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        if !self.data.is_dir() {
            changes.push(Change::Folder { path: self.data.clone() });
        }
        if fs::read_link(&self.module).ok().as_deref() != Some(program) {
            let is_free = fs::symlink_metadata(&self.module).is_err();
            if !is_free && !force {
                return Err(failure::with_help(
                    format!(
                        "{} is there already, and is no link to {}",
                        self.module.display(),
                        program.display()
                    ),
                    "`izwi service install --speech-dispatcher --force` replaces it",
                ));
            }
            changes.push(Change::Link { path: self.module.clone(), program: program.to_path_buf() });
        }
        let own = read(&self.user)?;
        let text = own.clone().or(read(&self.system)?).unwrap_or_default();
        let modules: Vec<&str> = text.lines().filter_map(module).collect();
        // Without a line for any module, all in the folders are found.
        if !modules.is_empty() && !modules.contains(&"izwi") {
            let text = with_line(&text, &self.module)?;
            changes.push(Change::Write { path: self.user.clone(), text });
        }
        Ok(changes)
    }

    /// What the removal of the module changes.
    ///
    /// # Errors
    /// It is not installed, or the configuration cannot be read.
    pub(crate) fn removal(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        if fs::read_link(&self.module).is_ok() {
            changes.push(Change::Remove { path: self.module.clone() });
        }
        if let Some(text) = read(&self.user)?
            && let Some(rest) = without_line(&text)
        {
            let path = self.user.clone();
            // A copy of the system's configuration that was made for the line goes with it.
            let is_copy = read(&self.system)?.is_some_and(|system| system == rest);
            changes.push(if is_copy { Change::Remove { path } } else { Change::Write { path, text: rest } });
        }
        if changes.is_empty() {
            return Err(failure::with_help(
                format!("the module is not installed: there is no link {}", self.module.display()),
                "`izwi service install --speech-dispatcher` installs it",
            ));
        }
        Ok(changes)
    }
}

impl Change {
    /// Does it: each file appears whole or not at all.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn apply(&self) -> Result<()> {
        match self {
            Self::Folder { path } => {
                fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
            }
            Self::Link { path, program } => {
                link(program, path).with_context(|| format!("cannot make the link {}", path.display()))
            }
            Self::Write { path, text } => private_file::write(path, text, true)
                .with_context(|| format!("cannot write {}", path.display())),
            Self::Remove { path } => {
                fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
            }
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder { path } => write!(f, "make {}", path.display()),
            Self::Link { path, program } => write!(f, "link {} -> {}", path.display(), program.display()),
            Self::Write { path, .. } => write!(f, "write {}", path.display()),
            Self::Remove { path } => write!(f, "remove {}", path.display()),
        }
    }
}

#[cfg(unix)]
fn link(program: &Path, path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // In a folder of its own, from which it is moved over what is there.
    let temporary = tempfile::Builder::new().prefix(".izwi-").tempdir_in(folder)?;
    let made = temporary.path().join(MODULE);
    std::os::unix::fs::symlink(program, &made)?;
    fs::rename(made, path)
}

#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "Speech Dispatcher does not run here"))
}

/// The text of a file, if it is there.
fn read(path: &Path) -> Result<Option<String>> {
    let cannot = || format!("cannot read {}", path.display());
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(cannot),
        Ok(found) if found.len() > MAX_BYTES || !found.is_file() => Err(failure::with_help(
            format!("{} is no configuration of Speech Dispatcher", path.display()),
            "move it away",
        )),
        Ok(_) => match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(failure::with_help(
                format!("{} is not UTF-8", path.display()),
                "convert it, e.g. with iconv",
            )),
            read => read.map(Some).with_context(cannot),
        },
    }
}

/// The name of the module that a line adds.
fn module(line: &str) -> Option<&str> {
    let (option, rest) = line.trim_start().split_once([' ', '\t'])?;
    if !option.eq_ignore_ascii_case("AddModule") {
        return None;
    }
    let rest = rest.trim_start();
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split_whitespace().next(),
    }
}

fn with_line(text: &str, module: &Path) -> Result<String> {
    let path =
        module.to_str().filter(|path| !path.contains(['"', '\\']) && !path.chars().any(char::is_control));
    let path = path.ok_or_else(|| {
        failure::with_help(
            format!("the path {module:?} cannot be written in a configuration of Speech Dispatcher"),
            "use a home folder whose path is UTF-8 without quotes",
        )
    })?;
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{text}{end}{BEGIN}AddModule \"izwi\" \"{path}\" \"izwi.conf\"\n{END}"))
}

/// The text without the lines of [`with_line`], if it has them.
fn without_line(text: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{after}"))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    fn places(folder: &Path) -> Places {
        Places {
            data: folder.join("share"),
            module: folder.join("libexec/modules").join(MODULE),
            user: folder.join("config/speechd.conf"),
            system: folder.join("system.conf"),
        }
    }

    fn apply(changes: &[Change]) {
        for change in changes {
            change.apply().unwrap();
        }
    }

    #[test]
    fn where_modules_are_found_a_link_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        fs::write(&places.system, "LogLevel 3\n#AddModule \"x\" \"y\"\n").unwrap();
        let program = Path::new("/opt/izwi");
        let changes = places.installation(program, false).unwrap();
        let link = Change::Link { path: places.module.clone(), program: program.into() };
        assert_eq!(changes, [Change::Folder { path: places.data.clone() }, link]);
        apply(&changes);
        assert_eq!(fs::read_link(&places.module).unwrap(), program);
        assert!(places.installation(program, false).unwrap().is_empty());
        let refused = places.installation(Path::new("/other"), false).unwrap_err();
        assert!(failure::render(&refused).contains("--force"), "{refused}");
        apply(&places.installation(Path::new("/other"), true).unwrap());
        apply(&places.removal().unwrap());
        assert!(fs::symlink_metadata(&places.module).is_err() && !places.user.exists());
        assert!(places.removal().unwrap_err().to_string().contains("not installed"));
    }

    #[test]
    fn a_configuration_keeps_what_the_user_has() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        fs::create_dir_all(places.user.parent().unwrap()).unwrap();
        let text = "DefaultModule espeak-ng\n  addmodule \"espeak-ng\" \"sd_espeak-ng\" \"espeak-ng.conf\"";
        fs::write(&places.user, text).unwrap();
        apply(&places.installation(Path::new("/opt/izwi"), false).unwrap());
        let written = fs::read_to_string(&places.user).unwrap();
        assert!(written.starts_with(&format!("{text}\n{BEGIN}AddModule \"izwi\" ")), "{written}");
        assert!(places.installation(Path::new("/opt/izwi"), false).unwrap().is_empty());
        apply(&places.removal().unwrap());
        assert_eq!(fs::read_to_string(&places.user).unwrap(), format!("{text}\n"));
    }

    #[test]
    fn the_configuration_of_the_system_is_copied_and_the_copy_removed() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        fs::write(&places.system, "AddModule flite sd_flite\n").unwrap();
        apply(&places.installation(Path::new("/opt/izwi"), false).unwrap());
        assert!(fs::read_to_string(&places.user).unwrap().starts_with("AddModule flite sd_flite\n"));
        apply(&places.removal().unwrap());
        assert!(!places.user.exists());
        fs::write(&places.system, [0xff, 0xfe]).unwrap();
        assert!(
            places.installation(Path::new("/opt/izwi"), false).unwrap_err().to_string().contains("not UTF-8")
        );
    }
}
