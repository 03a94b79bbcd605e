//! Saved voices, each a voice pack: `<root>/voices/<name>.safetensors`.
//!
//! Owns names, files and the metadata of packs. Knows no model: only the model of a pack interprets its tensors. Packs
//! are untrusted input.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use izwi_types::suggest;
use safetensors::SafeTensors;

use crate::files;
use crate::io_error::IoError;
use crate::rules::{PLAIN_NAME, is_plain_name};

/// The most bytes of a voice pack.
pub const MAX_PACK_BYTES: usize = 16 << 20;

/// Value of `format` in a pack's metadata.
const FORMAT: &str = "izwi-voice-1";
const EXTENSION: &str = "safetensors";
/// A voice that is being written. No voice has this name: names do not begin with a dot.
const PART: &str = ".new.part";
/// The most characters of a metadata value that are shown.
const MAX_VALUE_CHARS: usize = 4_096;

/// The saved voices of one folder. Every method blocks on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoiceStore {
    folder: PathBuf,
    limits: VoiceLimits,
}

/// The most voices that are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VoiceLimits {
    /// Number of voices.
    pub count: usize,
    /// MiB of their files together.
    pub mib: u64,
}

impl Default for VoiceLimits {
    fn default() -> Self {
        Self { count: 1_000, mib: 1_024 }
    }
}

/// A saved voice, as the metadata of its pack describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedVoice {
    /// Its name.
    pub name: String,
    /// Fingerprint of the checkpoint it belongs to.
    pub model: String,
    /// Architecture of that checkpoint.
    pub family: String,
    /// Time of creation, as RFC 3339.
    pub created: String,
    /// Id of the model that made it, if recorded.
    pub made_by: Option<String>,
    /// Transcript of its recording, if known.
    pub text: Option<String>,
    /// Bytes of its file.
    pub bytes: u64,
}

/// Metadata to add to a pack when it is saved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VoiceNotes {
    /// Id of the model that made it.
    pub made_by: Option<String>,
    /// Transcript of its recording.
    pub text: Option<String>,
}

/// A request to the saved voices that failed.
#[derive(Debug, thiserror::Error)]
pub enum VoiceError {
    /// No voice can have this name.
    #[error("voice name '{name}' must be {PLAIN_NAME}")]
    Name {
        /// The requested name, shortened.
        name: String,
    },
    /// No voice has this name.
    #[error("no voice '{name}' is saved; {remedy}")]
    Unknown {
        /// The requested name.
        name: String,
        /// Similar names, or all names.
        remedy: String,
    },
    /// A voice has this name already.
    #[error("a voice '{name}' is saved already; take another name, remove it, or ask to overwrite it")]
    Exists {
        /// The name.
        name: String,
    },
    /// The limit of saved voices is reached.
    #[error("no further voice is saved: {reason}; remove some, or raise {setting}")]
    Full {
        /// What is there and what is allowed.
        reason: String,
        /// The setting of the limit.
        setting: &'static str,
    },
    /// The file is not a voice pack.
    #[error("voice '{name}' cannot be used: {reason}; remove it and create it again")]
    Damaged {
        /// The voice.
        name: String,
        /// What is wrong with its file.
        reason: String,
    },
    /// Something else stands in the place of its file.
    #[error("'{name}.{EXTENSION}' in the folder of the voices is no file; remove it by hand")]
    NoFile {
        /// The voice.
        name: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

impl VoiceStore {
    /// The voices in `folder`, which need not exist.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), limits: VoiceLimits::default() }
    }

    /// The same voices with other limits.
    #[must_use]
    pub fn with_limits(self, limits: VoiceLimits) -> Self {
        Self { limits, ..self }
    }

    /// Their folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Names of the saved voices, sorted. Files without the name of a voice are skipped.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn names(&self) -> Result<Vec<String>, VoiceError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(IoError::at("list", &self.folder)(error).into()),
        };
        let mut names = Vec::new();
        for entry in entries {
            let path = entry.map_err(IoError::at("list", &self.folder))?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| is_plain_name(stem));
            if path.extension().is_some_and(|extension| extension == EXTENSION) && path.is_file() {
                names.extend(stem.map(str::to_owned));
            }
        }
        names.sort();
        Ok(names)
    }

    /// The saved voices, sorted by name. A file that is not a voice pack is skipped with a warning in the log.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn list(&self) -> Result<Vec<SavedVoice>, VoiceError> {
        let readable = |name: String| match self.read(&name) {
            Ok((voice, _)) => Some(voice),
            Err(error) => {
                tracing::warn!(voice = name, %error, "a saved voice is skipped");
                None
            }
        };
        Ok(self.names()?.into_iter().filter_map(readable).collect())
    }

    /// A voice and its pack.
    ///
    /// # Errors
    /// There is none of this name, or its file is not a voice pack.
    pub fn read(&self, name: &str) -> Result<(SavedVoice, Vec<u8>), VoiceError> {
        let path = self.file(name)?;
        let damaged = |reason: String| VoiceError::Damaged { name: name.to_owned(), reason };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.unknown(name)),
            Err(error) => return Err(IoError::at("open", &path)(error).into()),
        };
        let mut pack = Vec::new();
        file.take(MAX_PACK_BYTES as u64 + 1).read_to_end(&mut pack).map_err(IoError::at("read", &path))?;
        let voice = describe(name, &pack).map_err(damaged)?;
        Ok((voice, pack))
    }

    /// Saves a pack with its notes. The file appears complete or not at all; its owner alone can read it.
    ///
    /// # Errors
    /// The name is invalid or taken (unless `overwrite`), the bytes are not a pack, the limit of voices is reached, or a
    /// file operation failed.
    pub fn save(
        &self,
        name: &str,
        pack: &[u8],
        notes: &VoiceNotes,
        overwrite: bool,
    ) -> Result<SavedVoice, VoiceError> {
        let path = self.file(name)?;
        let damaged = |reason: String| VoiceError::Damaged { name: name.to_owned(), reason };
        let noted = annotate(name, pack, notes).map_err(damaged)?;
        let voice = describe(name, &noted).map_err(damaged)?;
        let _lock = self.lock()?;
        if !overwrite && path.exists() {
            return Err(VoiceError::Exists { name: name.to_owned() });
        }
        self.check_room(&path, noted.len() as u64)?;
        // The holder of the lock writes it: what is there is of a save that was killed.
        let part = self.folder.join(PART);
        files::remove(&part)?;
        let write = || {
            let mut file = files::private_file().create_new(true).open(&part)?;
            file.write_all(&noted)?;
            file.sync_all()
        };
        if let Err(error) = write() {
            files::remove(&part)?;
            return Err(IoError::at("write", &part)(error).into());
        }
        fs::rename(&part, &path).map_err(IoError::at("create", &path))?;
        Ok(voice)
    }

    /// Refuses a file of `bytes` at `path` beyond the limits. A file that it replaces does not count.
    fn check_room(&self, path: &Path, bytes: u64) -> Result<(), VoiceError> {
        let VoiceLimits { count, mib } = self.limits;
        let mut others = 0;
        let mut used = bytes;
        for name in self.names()? {
            let other = self.folder.join(format!("{name}.{EXTENSION}"));
            if other != path {
                others += 1;
                used += fs::metadata(&other).map_or(0, |metadata| metadata.len());
            }
        }
        if others >= count {
            let reason = format!("{others} are saved, at most {count} are allowed");
            return Err(VoiceError::Full { reason, setting: "max_voices" });
        }
        if used > mib.saturating_mul(1 << 20) {
            let reason = format!("all voices would take {used} bytes, at most {mib} MiB are allowed");
            return Err(VoiceError::Full { reason, setting: "max_voices_mib" });
        }
        Ok(())
    }

    /// Checks a name before a pack is made for it.
    ///
    /// # Errors
    /// The name is invalid or taken (unless `overwrite`), or the limit of voices is reached.
    pub fn check_free(&self, name: &str, overwrite: bool) -> Result<(), VoiceError> {
        let path = self.file(name)?;
        if !overwrite && path.exists() {
            return Err(VoiceError::Exists { name: name.to_owned() });
        }
        self.check_room(&path, 1)
    }

    /// Removes a voice, valid or not.
    ///
    /// # Errors
    /// There is none of this name, or a file operation failed.
    pub fn remove(&self, name: &str) -> Result<(), VoiceError> {
        let path = self.file(name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.unknown(name)),
            other => Ok(other.map_err(IoError::at("remove", &path))?),
        }
    }

    /// The file of a voice of this name, which need not exist. The name becomes part of a path, so it must be plain.
    fn file(&self, name: &str) -> Result<PathBuf, VoiceError> {
        if !is_plain_name(name) {
            return Err(VoiceError::Name { name: izwi_types::excerpt(name) });
        }
        let path = self.folder.join(format!("{name}.{EXTENSION}"));
        // Neither can a folder be removed as a file, nor a pipe be opened without waiting.
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(VoiceError::NoFile { name: name.to_owned() });
        }
        Ok(path)
    }

    fn unknown(&self, name: &str) -> VoiceError {
        let names = self.names().unwrap_or_default();
        let remedy = suggest(name, "voices", names.iter().map(String::as_str));
        VoiceError::Unknown { name: name.to_owned(), remedy }
    }

    /// Takes the folder's lock, so that the second of two concurrent saves under one name fails.
    fn lock(&self) -> Result<File, IoError> {
        files::create_private_folder(&self.folder)?;
        let path = self.folder.join(".lock");
        let open = || {
            let file = files::private_file().create(true).truncate(false).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        open().map_err(IoError::at("lock", &path))
    }
}

/// The metadata and the tensors of a pack, after checks of size, layout and format.
fn metadata(pack: &[u8]) -> Result<(HashMap<String, String>, SafeTensors<'_>), String> {
    if pack.len() > MAX_PACK_BYTES {
        return Err(format!("its file has more than {MAX_PACK_BYTES} bytes"));
    }
    let unreadable = |error| format!("its file is not a safetensors file ({error})");
    let (_, header) = SafeTensors::read_metadata(pack).map_err(unreadable)?;
    let tensors = SafeTensors::deserialize(pack).map_err(unreadable)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    match metadata.get("format").map(String::as_str) {
        Some(FORMAT) => Ok((metadata, tensors)),
        Some(other) => {
            Err(format!("its format is '{}', this program reads '{FORMAT}'", izwi_types::excerpt(other)))
        }
        None => Err(format!("its metadata names no format, this program reads '{FORMAT}'")),
    }
}

fn describe(name: &str, pack: &[u8]) -> Result<SavedVoice, String> {
    let (metadata, _) = metadata(pack)?;
    let given =
        |key: &str| metadata.get(key).filter(|value| !value.trim().is_empty()).map(|value| shown(value));
    let needed = |key: &str| given(key).ok_or_else(|| format!("its metadata lacks '{key}'"));
    Ok(SavedVoice {
        name: name.to_owned(),
        model: needed("model")?,
        family: needed("family")?,
        created: needed("created")?,
        made_by: given("made_by"),
        text: given("text"),
        bytes: pack.len() as u64,
    })
}

/// The same pack with the notes added to its metadata.
fn annotate(name: &str, pack: &[u8], notes: &VoiceNotes) -> Result<Vec<u8>, String> {
    let (mut metadata, tensors) = metadata(pack)?;
    metadata.insert("name".to_owned(), name.to_owned());
    for (key, value) in [("made_by", &notes.made_by), ("text", &notes.text)] {
        if let Some(value) = value {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    safetensors::serialize(tensors.iter(), Some(metadata)).map_err(|error| error.to_string())
}

/// A value for display: shortened, without control characters, which a terminal would interpret.
fn shown(value: &str) -> String {
    value.chars().filter(|character| !character.is_control()).take(MAX_VALUE_CHARS).collect()
}

/// The folder of saved voices in the home folder `root`.
pub(crate) fn folder(root: &Path) -> PathBuf {
    root.join("voices")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    fn pack(metadata: &[(&str, &str)]) -> Vec<u8> {
        let bytes = [1, 2, 3, 4];
        let tensor = TensorView::new(Dtype::U8, vec![4], &bytes).unwrap();
        let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        safetensors::serialize([("speaker", tensor)], Some(metadata)).unwrap()
    }

    const WHOLE: [(&str, &str); 4] =
        [("format", FORMAT), ("model", "abc"), ("family", "bird"), ("created", "2026-01-01T00:00:00Z")];

    fn store() -> (tempfile::TempDir, VoiceStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = VoiceStore::at(folder.path().join("voices"));
        (folder, store)
    }

    #[test]
    fn saved_voices_are_listed_read_and_removed() {
        let (_folder, store) = store();
        assert_eq!(store.names().unwrap(), Vec::<String>::new());
        let notes = VoiceNotes { made_by: Some("lark".into()), text: Some("tweet".into()) };
        let saved = store.save("anna", &pack(&WHOLE), &notes, false).unwrap();
        assert_eq!((saved.made_by.as_deref(), saved.text.as_deref()), (Some("lark"), Some("tweet")));
        assert_eq!((saved.model.as_str(), saved.family.as_str()), ("abc", "bird"));
        let (read, bytes) = store.read("anna").unwrap();
        assert_eq!(read, saved);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor("speaker").unwrap().data(), [1, 2, 3, 4]);
        assert_eq!(store.list().unwrap(), [saved]);

        let again = store.save("anna", &pack(&WHOLE), &VoiceNotes::default(), false).unwrap_err();
        assert!(matches!(again, VoiceError::Exists { .. }), "{again}");
        assert!(store.check_free("anna", false).is_err() && store.check_free("anna", true).is_ok());
        let replaced = store.save("anna", &pack(&WHOLE), &VoiceNotes::default(), true).unwrap();
        assert_eq!(replaced.text, None);

        store.remove("anna").unwrap();
        let gone = store.remove("anna").unwrap_err().to_string();
        assert_eq!(gone, "no voice 'anna' is saved; there are no voices yet");
    }

    #[test]
    fn unknown_names_get_suggestions() {
        let (_folder, store) = store();
        store.save("anna", &pack(&WHOLE), &VoiceNotes::default(), false).unwrap();
        let error = store.read("ana").unwrap_err().to_string();
        assert_eq!(error, "no voice 'ana' is saved; did you mean 'anna'?");
    }

    #[test]
    fn names_that_could_mean_a_path_are_refused() {
        let (_folder, store) = store();
        let long = "a".repeat(65);
        for name in
            ["", "..", "../anna", "a/b", "a\\b", "/etc/passwd", ".hidden", "Anna", "a b", "ä", "a\0b", &long]
        {
            for error in [
                store.read(name).unwrap_err(),
                store.remove(name).unwrap_err(),
                store.check_free(name, true).unwrap_err(),
                store.save(name, &pack(&WHOLE), &VoiceNotes::default(), true).unwrap_err(),
            ] {
                assert!(matches!(error, VoiceError::Name { .. }), "{name:?}: {error}");
            }
        }
    }

    #[test]
    fn a_file_that_is_not_a_pack_is_skipped() {
        let (_folder, store) = store();
        store.save("good", &pack(&WHOLE), &VoiceNotes::default(), false).unwrap();
        let mut other_format = WHOLE;
        other_format[0] = ("format", "izwi-voice-9");
        let large = vec![0; MAX_PACK_BYTES + 1];
        for (name, bytes, complaint) in [
            ("empty", Vec::new(), "not a safetensors file"),
            ("text", b"hello".to_vec(), "not a safetensors file"),
            ("bare", pack(&[]), "names no format"),
            ("later", pack(&other_format), "its format is 'izwi-voice-9'"),
            ("poor", pack(&WHOLE[..2]), "lacks 'family'"),
            ("large", large, "more than 16777216 bytes"),
        ] {
            fs::write(store.folder.join(format!("{name}.safetensors")), &bytes).unwrap();
            let error = store.read(name).unwrap_err();
            assert!(matches!(&error, VoiceError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains(complaint), "{error}");
        }
        fs::write(store.folder.join("notes.txt"), "not a voice").unwrap();
        fs::create_dir(store.folder.join("folder.safetensors")).unwrap();
        let overwrite = store.save("folder", &pack(&WHOLE), &VoiceNotes::default(), true).map(drop);
        for outcome in [store.read("folder").map(drop), store.remove("folder"), overwrite] {
            assert!(matches!(&outcome, Err(VoiceError::NoFile { name }) if name == "folder"), "{outcome:?}");
        }
        let names: Vec<String> = store.list().unwrap().into_iter().map(|voice| voice.name).collect();
        assert_eq!(names, ["good"]);
        store.remove("large").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_voices() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_folder, store) = store();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // A folder of an earlier version, with a file that a killed save left.
        fs::create_dir(&store.folder).unwrap();
        fs::set_permissions(&store.folder, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(store.folder.join(PART), "half a voice").unwrap();
        store.save("anna", &pack(&WHOLE), &VoiceNotes::default(), false).unwrap();
        assert_eq!(mode(&store.folder), 0o700);
        for file in ["anna.safetensors", ".lock"] {
            assert_eq!(mode(&store.folder.join(file)), 0o600, "{file}");
        }
        assert!(!store.folder.join(PART).exists());
        let fresh = VoiceStore::at(store.folder.join("sub/voices"));
        fresh.save("anna", &pack(&WHOLE), &VoiceNotes::default(), false).unwrap();
        assert_eq!(mode(&fresh.folder), 0o700);
    }

    #[test]
    fn a_full_store_refuses_further_voices_and_replaces_old_ones() {
        let (_folder, store) = store();
        let store = store.with_limits(VoiceLimits { count: 2, mib: 1 });
        let save = |store: &VoiceStore, name: &str, overwrite| {
            store.save(name, &pack(&WHOLE), &VoiceNotes::default(), overwrite)
        };
        save(&store, "anna", false).unwrap();
        save(&store, "bella", false).unwrap();
        for error in [save(&store, "carla", false).unwrap_err(), store.check_free("carla", true).unwrap_err()]
        {
            assert_eq!(
                error.to_string(),
                "no further voice is saved: 2 are saved, at most 2 are allowed; remove some, or raise max_voices"
            );
        }
        save(&store, "anna", true).unwrap();
        store.check_free("anna", true).unwrap();
        store.remove("bella").unwrap();
        save(&store, "carla", false).unwrap();
        let small = store.clone().with_limits(VoiceLimits { count: 9, mib: 0 });
        let error = save(&small, "dora", false).unwrap_err().to_string();
        assert!(error.contains("at most 0 MiB are allowed; remove some, or raise max_voices_mib"), "{error}");
        assert_eq!(store.names().unwrap(), ["anna", "carla"]);
    }

    #[test]
    fn control_characters_are_removed() {
        let (_folder, store) = store();
        let mut metadata = WHOLE.to_vec();
        metadata.push(("text", "a\u{1b}[2Jb"));
        let saved = store.save("x", &pack(&metadata), &VoiceNotes::default(), false).unwrap();
        assert_eq!(saved.text.as_deref(), Some("a[2Jb"));
    }

    proptest! {
        #[test]
        fn damaged_packs_never_panic(at in 0usize..400, value: u8, cut in 0usize..400) {
            let mut bytes = pack(&WHOLE);
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut % bytes.len());
            let _ = describe("x", &bytes);
            let _ = annotate("x", &bytes, &VoiceNotes::default());
        }
    }
}
