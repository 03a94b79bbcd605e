//! Installing and removing with a service manager that only remembers what it was asked.

use std::cell::RefCell;

use super::*;

pub(super) fn definition() -> Definition {
    Definition {
        program: "/opt/izwi".into(),
        config: "/home/u/config.toml".into(),
        stop_timeout: Duration::from_secs(40),
        socket: None,
        search_path: "/opt/bin:/usr/bin".to_owned(),
    }
}

#[derive(Debug)]
struct Recorded {
    folder: PathBuf,
    /// Whether the user has a session.
    runs: bool,
    asked: RefCell<Vec<String>>,
}

impl Recorded {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), runs: true, asked: RefCell::default() }
    }

    fn ask(&self, what: &str, files: &[PathBuf]) -> Result<()> {
        let names = files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned());
        self.asked
            .borrow_mut()
            .push([what.to_owned()].into_iter().chain(names).collect::<Vec<_>>().join(" "));
        Ok(())
    }

    fn asked(&self) -> Vec<String> {
        self.asked.take()
    }

    fn file(&self, name: &str, text: &str) -> ServiceFile {
        ServiceFile { path: self.folder.join(name), text: text.to_owned() }
    }
}

impl Manager for Recorded {
    fn files(&self, _definition: &Definition) -> Result<Vec<ServiceFile>> {
        Ok(Vec::new())
    }
    fn paths(&self) -> Vec<PathBuf> {
        ["a", "b"].map(|name| self.folder.join(name)).to_vec()
    }
    fn check(&self) -> Result<()> {
        if self.runs { Ok(()) } else { Err(failure::with_help("no session", "log in")) }
    }
    fn start(&self, files: &[PathBuf]) -> Result<()> {
        self.ask("start", files)
    }
    fn stop(&self, files: &[PathBuf]) -> Result<()> {
        self.ask("stop", files)
    }
    fn reload(&self) -> Result<()> {
        self.ask("reload", &[])
    }
    fn restart(&self) -> Result<()> {
        self.ask("restart", &[])
    }
    fn states(&self, _files: &[PathBuf]) -> Result<Vec<UnitState>> {
        Ok(Vec::new())
    }
    fn log(&self, _lines: u32, _follow: bool) -> Result<Command> {
        Ok(Command::new("true"))
    }
    fn note(&self) -> &'static str {
        ""
    }
}

#[test]
fn a_service_is_installed_once_and_replaced_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Recorded::new(folder.path());
    let (one, other) = ([manager.file("a", "1"), manager.file("b", "1")], [manager.file("a", "2")]);
    assert_eq!(install(&manager, &one, false).unwrap(), Installed::New);
    assert_eq!(manager.asked(), ["reload", "start a b"]);
    assert_eq!(install(&manager, &one, false).unwrap(), Installed::Unchanged);
    assert_eq!(manager.asked(), ["reload", "start a b"]);
    let error = install(&manager, &other, false).unwrap_err();
    assert!(failure::render(&error).contains("--force"), "{error}");
    assert_eq!(manager.asked(), [] as [&str; 0]);
    assert_eq!(install(&manager, &other, true).unwrap(), Installed::New);
    assert_eq!(manager.asked(), ["stop a b", "reload", "start a"]);
    assert_eq!(installed(&manager), [folder.path().join("a")]);
    assert_eq!(uninstall(&manager).unwrap(), [folder.path().join("a")]);
    assert_eq!(manager.asked(), ["stop a", "reload"]);
    assert!(uninstall(&manager).unwrap_err().to_string().contains("not installed"));
}

#[test]
fn without_a_session_nothing_is_written_or_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut manager = Recorded::new(folder.path());
    manager.runs = false;
    let files = [manager.file("a", "1")];
    assert!(install(&manager, &files, false).unwrap_err().to_string().contains("no session"));
    assert!(installed(&manager).is_empty());
    fs::write(&files[0].path, "1").unwrap();
    assert!(uninstall(&manager).is_err());
    assert_eq!(installed(&manager).len(), 1);
}

#[cfg(unix)]
#[test]
fn relative_folders_leave_the_search_path() {
    assert_eq!(absolute_search_path(OsStr::new(".:/usr/bin::bin:/bin")), "/usr/bin:/bin");
}
