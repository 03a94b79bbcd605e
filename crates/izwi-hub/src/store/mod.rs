//! The store's folder: lists, installs, verifies and removes models. Owns the layout on disk and the locks. Knows no
//! kind of source.
//!
//! ```text
//! <root>/manifests/*.toml        the user's own manifests
//! <root>/models/<name>/          an installed model, with its record
//! <root>/models/.first-use/<name>.json   hashes of files that the manifest does not pin, as first pulled
//! <root>/models/.partial/<name>/ a running or interrupted pull
//! <root>/models/.partial/<name>.lock
//! <root>/voices/<name>.safetensors   a saved voice
//! <root>/speakers/<name>.json        a saved speaker
//! <root>/lexicons/<name>.json        a saved lexicon
//! ```

mod first_use;
mod pull;
mod record;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use izwi_types::Task;

use crate::access::Access;
use crate::catalogue::Catalogue;
use crate::error::{HubError, with_causes};
use crate::files::{bytes_of, remove_folder};
use crate::home;
use crate::io_error::IoError;
use crate::lexicons::LexiconStore;
use crate::manifest::Manifest;
use crate::progress::{ProgressSink, Silent};
use crate::rules::is_plain_name;
use crate::sources::Source;
use crate::speakers::SpeakerStore;
use crate::voices::{self, VoiceLimits, VoiceStore};
use pull::Pull;
use record::Record;

/// The component with the weights of the voice activity detector, and its file.
const VAD: (&str, &str) = ("silero-vad", "silero_vad_16k.safetensors");

/// The models of one home folder. Every method blocks on the disk, [`Store::pull`] on the network too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    models: PathBuf,
    /// Folder of models that the store does not manage.
    external: Option<PathBuf>,
    voices: VoiceStore,
    speakers: SpeakerStore,
    lexicons: LexiconStore,
    catalogue: Catalogue,
    access: Access,
    accepts_changes: bool,
}

/// One model and whether it is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStatus<'a> {
    /// The model's manifest.
    pub manifest: &'a Manifest,
    /// Whether it can be loaded.
    pub installed: bool,
    /// Bytes of its installed files, without caches that a load writes; 0 if it is not installed.
    pub bytes: u64,
    /// The source of its files, as [`crate::Source::id`] names it, or the folder of an external model.
    pub source: Option<String>,
}

impl Store {
    /// Opens the store in `root`, else in `IZWI_HOME`, else in the platform's data folder. Creates nothing.
    ///
    /// # Errors
    /// No such folder can be named, or a manifest is unusable.
    pub fn open(root: Option<PathBuf>) -> Result<Self, HubError> {
        let root = home::folder(root).ok_or(HubError::NoHome)?;
        Self::open_with(&root, Access::from_env())
    }

    /// Opens the store in `root`, reaching sources by `access`.
    ///
    /// # Errors
    /// A manifest is unusable.
    pub fn open_with(root: &Path, access: Access) -> Result<Self, HubError> {
        Ok(Self {
            models: root.join("models"),
            external: None,
            voices: VoiceStore::at(voices::folder(root)),
            speakers: SpeakerStore::at(root),
            lexicons: LexiconStore::at(root),
            catalogue: Catalogue::load(&root.join("manifests"))?,
            access,
            accepts_changes: false,
        })
    }

    /// The same store, whose pulls accept files that the publisher changed since the first pull.
    #[must_use]
    pub fn accepting_changes(self) -> Self {
        Self { accepts_changes: true, ..self }
    }

    /// The same store with limits of the saved voices.
    #[must_use]
    pub fn with_voice_limits(self, limits: VoiceLimits) -> Self {
        Self { voices: self.voices.with_limits(limits), ..self }
    }

    /// The same store with external models: a model with a subfolder of its name in `models_dir` counts as installed
    /// there. The store never pulls, verifies or removes such a model.
    #[must_use]
    pub fn with_models_dir(self, models_dir: Option<PathBuf>) -> Self {
        Self { external: models_dir, ..self }
    }

    /// The voices that users saved.
    pub fn voices(&self) -> &VoiceStore {
        &self.voices
    }

    /// The speakers that users saved.
    pub fn speakers(&self) -> &SpeakerStore {
        &self.speakers
    }

    /// The lexicons that users saved.
    pub fn lexicons(&self) -> &LexiconStore {
        &self.lexicons
    }

    /// Where a server keeps its jobs.
    pub fn jobs(&self) -> PathBuf {
        self.models.with_file_name("jobs")
    }

    /// Every model, sorted by name.
    pub fn manifests(&self) -> &[Manifest] {
        self.catalogue.all()
    }

    /// The model of this name.
    ///
    /// # Errors
    /// There is none; the error suggests similar names.
    pub fn manifest(&self, name: &str) -> Result<&Manifest, HubError> {
        self.catalogue.find(name)
    }

    /// The model for `task` where a request names none.
    pub fn default_for(&self, task: Task) -> Option<&Manifest> {
        self.manifests().iter().find(|manifest| manifest.default_for.contains(&task))
    }

    /// Every model and whether it is installed.
    pub fn list(&self) -> Vec<ModelStatus<'_>> {
        self.manifests().iter().map(|manifest| self.status_of(manifest)).collect()
    }

    /// The model of this name and whether it is installed.
    ///
    /// # Errors
    /// There is none; the error suggests similar names.
    pub fn status(&self, name: &str) -> Result<ModelStatus<'_>, HubError> {
        Ok(self.status_of(self.manifest(name)?))
    }

    fn status_of<'a>(&self, manifest: &'a Manifest) -> ModelStatus<'a> {
        if let Some(folder) = self.external_folder(manifest) {
            let source = Some(folder.display().to_string());
            return ModelStatus { manifest, installed: true, bytes: own_bytes(&folder), source };
        }
        let record = Record::of_installed(manifest, &self.folder(manifest)).ok();
        ModelStatus {
            manifest,
            installed: record.is_some(),
            bytes: record.as_ref().map_or(0, Record::bytes),
            source: record.map(|record| record.source),
        }
    }

    /// A model that speaks a language, and whether it is installed: an installed one before others, one with voices of its own
    /// before one that needs a recording, then the one with the fewest other languages.
    pub fn speaker_of(&self, language: &str) -> Option<(&str, bool)> {
        let speaks = |manifest: &Manifest| {
            manifest.tasks.contains(&Task::Tts)
                && manifest.language_codes().iter().any(|code| code == language)
        };
        let speakers = self.list().into_iter().filter(|status| speaks(status.manifest));
        let best = speakers.min_by_key(|status| {
            (!status.installed, status.manifest.clones_voices, status.manifest.languages.len())
        })?;
        Some((&best.manifest.name, best.installed))
    }

    /// What to do about a text in a language that a model does not speak: the words of a hint.
    pub fn speaker_hint(&self, language: &str) -> String {
        match self.speaker_of(language) {
            Some((name, true)) => format!("'{name}', which is installed, does"),
            Some((name, false)) => format!("`izwi pull {name}` installs a model that does"),
            None => "no model that can be pulled does".to_owned(),
        }
    }

    /// The folder of an installed model. Checks the lengths of the files, not their contents.
    ///
    /// # Errors
    /// There is no such model, it was not pulled, or a file is missing; the error names the remedy.
    pub fn installed(&self, name: &str) -> Result<PathBuf, HubError> {
        let manifest = self.manifest(name)?;
        if let Some(folder) = self.external_folder(manifest) {
            return Ok(folder);
        }
        let folder = self.folder(manifest);
        Record::of_installed(manifest, &folder)?;
        Ok(folder)
    }

    /// Where the weights of the voice activity detector are, once they are installed.
    pub fn vad_weights(&self) -> PathBuf {
        let (name, file) = VAD;
        let external =
            self.external.as_ref().map(|folder| folder.join(name)).filter(|folder| folder.is_dir());
        external.unwrap_or_else(|| self.models.join(name)).join(file)
    }

    /// Installs a model from the first of its sources that works, with the components that it uses, and returns its folder;
    /// returns at once if all is installed. Waits for a pull of the same model in another thread or process, and resumes an
    /// interrupted one. A component that cannot be pulled is noted: the model works without it.
    ///
    /// # Errors
    /// There is no such model, the hub's address is refused, no source worked, or a file operation failed.
    pub fn pull(&self, name: &str, progress: &mut dyn ProgressSink) -> Result<PathBuf, HubError> {
        let folder = self.pull_one(name, progress)?;
        for component in &self.manifest(name)?.uses {
            if let Err(error) = self.pull_one(component, progress) {
                let error = with_causes(&error);
                tracing::warn!(model = name, component, error, "a component was not pulled");
                progress.note(&format!("{name} works without {component}, which was not pulled: {error}"));
            }
        }
        Ok(folder)
    }

    fn pull_one(&self, name: &str, progress: &mut dyn ProgressSink) -> Result<PathBuf, HubError> {
        if let Ok(folder) = self.installed(name) {
            return Ok(folder);
        }
        let manifest = self.manifest(name)?;
        if !self.access.offline && manifest.sources.iter().any(Source::is_hub) {
            self.access.check_endpoint()?;
        }
        let folder = self.folder(manifest);
        let _lock = self.lock(name, progress)?;
        // Another pull may have finished while this one waited.
        if Record::of_installed(manifest, &folder).is_ok() {
            return Ok(folder);
        }
        let staging = self.partial().join(name);
        fs::create_dir_all(&staging).map_err(IoError::at("create", &staging))?;
        let first_use = self.models.join(".first-use");
        let pull = Pull {
            manifest,
            access: &self.access,
            staging,
            installed: folder.clone(),
            first_use,
            accepts_changes: self.accepts_changes,
        };
        pull.run(progress)?;
        tracing::info!(model = name, folder = %folder.display(), "installed");
        Ok(folder)
    }

    /// Removes an installed model and the files of an interrupted pull of it, even without a manifest. The hashes of its
    /// first pull stay.
    ///
    /// # Errors
    /// There is no such model, it has no files here, or a file operation failed.
    pub fn remove(&self, name: &str) -> Result<(), HubError> {
        let folder = self.models.join(name);
        let staging = self.partial().join(name);
        if !is_plain_name(name) || (!folder.exists() && !staging.exists()) {
            self.manifest(name)?;
            return Err(HubError::NotInstalled { name: name.to_owned() });
        }
        let _lock = self.lock(name, &mut Silent)?;
        // Renamed first, so that the model is complete or absent.
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
        if self.external_folder(manifest).is_some() {
            return Ok(());
        }
        let folder = self.folder(manifest);
        Record::of_installed(manifest, &folder)?.verify(&folder)
    }

    /// The folder of an external model.
    fn external_folder(&self, manifest: &Manifest) -> Option<PathBuf> {
        self.external.as_ref().map(|folder| folder.join(&manifest.name)).filter(|folder| folder.is_dir())
    }

    fn folder(&self, manifest: &Manifest) -> PathBuf {
        self.models.join(&manifest.name)
    }

    fn partial(&self) -> PathBuf {
        self.models.join(".partial")
    }

    /// Takes the model's lock, waiting for another holder. Dropping the file releases it.
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
                progress.note(&format!("another pull of {name} is running; waiting for it"));
                file.lock().map_err(IoError::at("lock", &path))?;
            }
            Err(TryLockError::Error(error)) => return Err(IoError::at("lock", &path)(error)),
        }
        Ok(file)
    }
}

/// Part of the names of cache files that a load writes alongside the weights.
const CACHE_NAME: &str = ".izwi-";

/// Bytes of a model's own files in a folder.
fn own_bytes(folder: &Path) -> u64 {
    let is_cached =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(CACHE_NAME));
    bytes_of(folder, &is_cached)
}
