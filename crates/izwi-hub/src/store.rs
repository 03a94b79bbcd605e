//! The store's folder and what callers do with it. Owns the layout on disk and the locks; delegates how files arrive.
//!
//! ```text
//! <root>/manifests/*.toml        the user's own manifests
//! <root>/models/<name>/          an installed model, with its record
//! <root>/models/.partial/<name>/ a pull under way or interrupted
//! <root>/models/.partial/<name>.lock
//! <root>/voices/<name>.safetensors   a saved voice
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::access::Access;
use crate::catalogue::Catalogue;
use crate::error::{HubError, IoError};
use crate::manifest::{Manifest, Task, is_plain_name};
use crate::progress::ProgressSink;
use crate::pull::{Pull, remove_folder};
use crate::record::Record;
use crate::voices::{self, VoiceStore};

/// The models of one home folder. Every method blocks on the disk, [`Store::pull`] on the network too.
#[derive(Debug, Clone)]
pub struct Store {
    models: PathBuf,
    /// Folder of models that somebody else keeps.
    kept: Option<PathBuf>,
    voices: VoiceStore,
    catalogue: Catalogue,
    access: Access,
}

/// One model and whether it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStatus<'a> {
    /// What the model is.
    pub manifest: &'a Manifest,
    /// Whether it can be loaded.
    pub installed: bool,
    /// Bytes of its installed files, 0 if it is not installed; without what a load keeps beside them.
    pub bytes: u64,
    /// Which source gave it, as [`crate::Source::id`] names it, or the folder in which somebody else keeps it.
    pub source: Option<String>,
}

impl Store {
    /// Opens the store in `root`, else in `IZWI_HOME`, else in the platform's data folder. Creates nothing.
    ///
    /// # Errors
    /// No such folder can be named, or a manifest is unusable.
    pub fn open(root: Option<PathBuf>) -> Result<Self, HubError> {
        let from_env = || std::env::var_os("IZWI_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let platform =
            || directories::ProjectDirs::from("", "", "izwi").map(|folders| folders.data_dir().to_path_buf());
        let root = root.or_else(from_env).or_else(platform).ok_or(HubError::NoHome)?;
        Self::open_with(&root, Access::from_env())
    }

    /// Opens the store in `root`, reaching sources by `access`.
    ///
    /// # Errors
    /// A manifest is unusable.
    pub fn open_with(root: &Path, access: Access) -> Result<Self, HubError> {
        Ok(Self {
            models: root.join("models"),
            kept: None,
            voices: VoiceStore::at(voices::folder(root)),
            catalogue: Catalogue::load(&root.join("manifests"))?,
            access,
        })
    }

    /// The store, in which a model with a subfolder of its name in `models_dir` counts as installed there. Such models are
    /// taken as they are: never pulled, verified or removed.
    #[must_use]
    pub fn with_models_dir(self, models_dir: Option<PathBuf>) -> Self {
        Self { kept: models_dir, ..self }
    }

    /// The voices that users saved.
    pub fn voices(&self) -> &VoiceStore {
        &self.voices
    }

    /// Every model there is, by name.
    pub fn manifests(&self) -> &[Manifest] {
        self.catalogue.all()
    }

    /// The model of this name.
    ///
    /// # Errors
    /// There is none; the error lists near names.
    pub fn manifest(&self, name: &str) -> Result<&Manifest, HubError> {
        self.catalogue.find(name)
    }

    /// The model taken for `task` when a request names none.
    pub fn default_for(&self, task: Task) -> Option<&Manifest> {
        self.manifests().iter().find(|manifest| manifest.default_for.contains(&task))
    }

    /// Every model and whether it is installed.
    pub fn list(&self) -> Vec<ModelStatus<'_>> {
        let status = |manifest| {
            if let Some(folder) = self.kept(manifest) {
                let source = Some(folder.display().to_string());
                return ModelStatus { manifest, installed: true, bytes: bytes_in(&folder), source };
            }
            let record = Record::of_installed(manifest, &self.folder(manifest)).ok();
            ModelStatus {
                manifest,
                installed: record.is_some(),
                bytes: record.as_ref().map_or(0, Record::bytes),
                source: record.map(|record| record.source),
            }
        };
        self.manifests().iter().map(status).collect()
    }

    /// The folder of an installed model. Looks at the files' lengths, not into them.
    ///
    /// # Errors
    /// There is no such model, it was not pulled, or files are missing; the error names the remedy.
    pub fn installed(&self, name: &str) -> Result<PathBuf, HubError> {
        let manifest = self.manifest(name)?;
        if let Some(folder) = self.kept(manifest) {
            return Ok(folder);
        }
        let folder = self.folder(manifest);
        Record::of_installed(manifest, &folder)?;
        Ok(folder)
    }

    /// Installs a model from the first of its sources that works and returns its folder; returns at once if it is
    /// installed. A pull of the same model in another thread or process is waited for. What an interrupted pull left
    /// is used again.
    ///
    /// # Errors
    /// There is no such model, no source worked, or the disk refused.
    pub fn pull(&self, name: &str, progress: &mut dyn ProgressSink) -> Result<PathBuf, HubError> {
        if let Ok(folder) = self.installed(name) {
            return Ok(folder);
        }
        let manifest = self.manifest(name)?;
        let folder = self.folder(manifest);
        let _lock = self.lock(name, progress)?;
        // Another pull may have finished while this one waited.
        if Record::of_installed(manifest, &folder).is_ok() {
            return Ok(folder);
        }
        let staging = self.partial().join(name);
        fs::create_dir_all(&staging).map_err(IoError::at("create", &staging))?;
        Pull { manifest, access: &self.access, staging, installed: folder.clone() }.run(progress)?;
        tracing::info!(model = name, folder = %folder.display(), "installed");
        Ok(folder)
    }

    /// Removes an installed model and what an interrupted pull of it left. A model whose manifest is gone can be
    /// removed too.
    ///
    /// # Errors
    /// There is no such model, nothing of it is here, or the disk refused.
    pub fn remove(&self, name: &str) -> Result<(), HubError> {
        let folder = self.models.join(name);
        let staging = self.partial().join(name);
        if !is_plain_name(name) || (!folder.exists() && !staging.exists()) {
            self.manifest(name)?;
            return Err(HubError::NotInstalled { name: name.to_owned() });
        }
        let _lock = self.lock(name, &mut crate::Silent)?;
        // Renamed first, so that the model is there whole or not at all.
        fs::create_dir_all(&staging).map_err(IoError::at("create", &staging))?;
        let removed = staging.join("removed");
        remove_folder(&removed)?;
        if folder.exists() {
            fs::rename(&folder, &removed).map_err(IoError::at("remove", &folder))?;
        }
        Ok(remove_folder(&staging)?)
    }

    /// Reads every file of an installed model and compares it with the record of its installation, where there is one.
    ///
    /// # Errors
    /// There is no such model, it is not installed, or a file differs.
    pub fn verify(&self, name: &str) -> Result<(), HubError> {
        let manifest = self.manifest(name)?;
        if self.kept(manifest).is_some() {
            return Ok(());
        }
        let folder = self.folder(manifest);
        Record::of_installed(manifest, &folder)?.verify(&folder)
    }

    /// The folder of a model that somebody else keeps.
    fn kept(&self, manifest: &Manifest) -> Option<PathBuf> {
        self.kept.as_ref().map(|folder| folder.join(&manifest.name)).filter(|folder| folder.is_dir())
    }

    fn folder(&self, manifest: &Manifest) -> PathBuf {
        self.models.join(&manifest.name)
    }

    fn partial(&self) -> PathBuf {
        self.models.join(".partial")
    }

    /// Takes the model's lock, waiting for whoever has it; it is given back when the file is dropped.
    fn lock(&self, name: &str, progress: &mut dyn ProgressSink) -> Result<File, IoError> {
        let folder = self.partial();
        fs::create_dir_all(&folder).map_err(IoError::at("create", &folder))?;
        let path = folder.join(format!("{name}.lock"));
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(IoError::at("create", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.note(&format!("another pull of {name} is under way; waiting for it"));
                file.lock().map_err(IoError::at("lock", &path))?;
            }
            Err(TryLockError::Error(error)) => return Err(IoError::at("lock", &path)(error)),
        }
        Ok(file)
    }
}

/// What the names of files have in them that a load left beside the weights and could make again.
const CACHED: &str = ".izwi-";

/// Bytes of a model's own files in a folder, as far as they can be seen.
fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let is_cached =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(CACHED));
    let bytes = |path: PathBuf| match fs::metadata(&path) {
        _ if is_cached(&path) => 0,
        Ok(found) if found.is_dir() => bytes_in(&path),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.flatten().map(|entry| bytes(entry.path())).sum()
}
