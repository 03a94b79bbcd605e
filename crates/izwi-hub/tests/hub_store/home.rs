//! A store in a temporary folder, with manifests written by the test.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use izwi_hub::{Access, HubError, ProgressSink, Silent, Store};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A store's home.
pub(crate) struct Home {
    folder: TempDir,
    pub(crate) access: Access,
}

/// Records the progress of a pull.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) notes: Vec<String>,
    pub(crate) bytes: u64,
    /// Files started and not finished.
    pub(crate) open: usize,
}

impl ProgressSink for Notes {
    fn start(&mut self, _file: &str, _total: u64) {
        self.bytes = 0;
        self.open += 1;
    }

    fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    fn finish(&mut self) {
        self.open -= 1;
    }

    fn note(&mut self, message: &str) {
        self.notes.push(message.to_owned());
    }
}

impl Home {
    /// A home with the hub at `endpoint`.
    pub(crate) fn new(endpoint: &str) -> Self {
        let access = Access::resolve(|name| (name == "HF_ENDPOINT").then(|| endpoint.to_owned()));
        Self { folder: tempfile::tempdir().unwrap(), access }
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside)
    }

    /// Writes the manifest of the model `lark` with these sources.
    pub(crate) fn offer(&self, sources: &[String]) {
        let head = "name = \"lark\"\nfamily = \"bird\"\ndescription = \"sings\"\ntask = [\"tts\"]\n\
                    licence = \"MIT\"\nlanguages = [\"en\"]\n";
        fs::create_dir_all(self.path("manifests")).unwrap();
        fs::write(self.path("manifests/lark.toml"), format!("{head}{}", sources.concat())).unwrap();
    }

    pub(crate) fn store(&self) -> Store {
        Store::open_with(self.folder.path(), self.access.clone()).unwrap()
    }

    pub(crate) fn pull(&self) -> Result<PathBuf, HubError> {
        self.store().pull("lark", &mut Silent)
    }

    /// Reads a file of the installed model.
    pub(crate) fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path("models/lark").join(file)).unwrap()
    }

    /// Files of an interrupted pull, in the model's staging folder.
    pub(crate) fn left_over(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.path("models/.partial/lark")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path.display().to_string());
                }
            }
        }
        found
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The git id of a file.
pub(crate) fn git_blob(bytes: &[u8]) -> String {
    hex(&Sha1::digest([format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// A hub source's head.
pub(crate) fn hub(repo: &str) -> String {
    format!("[[sources]]\nkind = \"hub\"\nrepo = \"{repo}\"\nrevision = \"main\"\n")
}

/// A file of the source before it: TOML for its path, its contents, more fields.
pub(crate) fn file(path: &str, target: &str, contents: &[u8], more: &str) -> String {
    format!(
        "[[sources.files]]\npath = {path}\ntarget = \"{target}\"\nsha256 = \"{}\"\nsize = {}\n{more}\n",
        sha256(contents),
        contents.len()
    )
}

/// A file of the source before it, trusted on first use.
pub(crate) fn trusted(path: &str, more: &str) -> String {
    format!("[[sources.files]]\npath = \"{path}\"\ntarget = \"{path}\"\ntrust = \"first-use\"\n{more}\n")
}

/// `size` pseudo-random bytes.
pub(crate) fn noise(size: usize) -> Vec<u8> {
    (0..size as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
