//! Voices that users saved: one safetensors file for each, `<root>/voices/<name>.safetensors`.
//!
//! Owns names, files and what is noted in their metadata. Knows no model: what the tensors mean, and whether they fit,
//! is for the model that made them to say. The files may come from anybody and are read as such.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use crate::catalogue::suggestion;
use crate::error::IoError;
use crate::manifest::{PLAIN_NAME, is_plain_name};

/// The most bytes of a voice pack.
pub const MAX_PACK_BYTES: usize = 16 << 20;

/// What the metadata of a pack says it is.
const FORMAT: &str = "izwi-voice-1";
const EXTENSION: &str = "safetensors";
/// The most characters of a value of the metadata that is repeated to people.
const MAX_VALUE_CHARS: usize = 4_096;

/// The saved voices of one folder. Every method blocks on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoiceStore {
    folder: PathBuf,
}

/// What is known of a saved voice without its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedVoice {
    /// Its name.
    pub name: String,
    /// Fingerprint of the checkpoint that it fits.
    pub model: String,
    /// Architecture of that checkpoint.
    pub family: String,
    /// When it was made, as RFC 3339.
    pub created: String,
    /// Id of the model that made it, where that was noted.
    pub made_by: Option<String>,
    /// What is said in the recording it was made of, where that is known.
    pub text: Option<String>,
    /// Bytes of its file.
    pub bytes: u64,
}

/// What is noted in a pack when it is saved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VoiceNotes {
    /// Id of the model that made it.
    pub made_by: Option<String>,
    /// What is said in the recording it was made of.
    pub text: Option<String>,
}

/// A request to the saved voices that failed.
#[derive(Debug, thiserror::Error)]
pub enum VoiceError {
    /// No voice can have this name.
    #[error("voice name '{name}' must be {PLAIN_NAME}")]
    Name {
        /// What was asked for, cut to what a message may repeat.
        name: String,
    },
    /// No voice has this name.
    #[error("no voice '{name}' is saved; {remedy}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names that come near, or all there are.
        remedy: String,
    },
    /// A voice has this name already.
    #[error("a voice '{name}' is saved already; take another name, remove it, or ask to overwrite it")]
    Exists {
        /// The name.
        name: String,
    },
    /// The file is no voice pack.
    #[error("voice '{name}' cannot be used: {reason}; remove it and make it anew")]
    Damaged {
        /// The voice.
        name: String,
        /// What is wrong with its file.
        reason: String,
    },
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] IoError),
}

impl VoiceStore {
    /// The voices in `folder`, which need not exist.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Where they lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Names of what is saved, sorted. Files that are not named like a voice are passed over.
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
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                names.extend(stem.map(str::to_owned));
            }
        }
        names.sort();
        Ok(names)
    }

    /// What is saved, by name. A file that is no voice pack is left out and told to the log.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn list(&self) -> Result<Vec<SavedVoice>, VoiceError> {
        let readable = |name: String| match self.read(&name) {
            Ok((voice, _)) => Some(voice),
            Err(error) => {
                tracing::warn!(voice = name, %error, "a saved voice is left out");
                None
            }
        };
        Ok(self.names()?.into_iter().filter_map(readable).collect())
    }

    /// A voice and its pack.
    ///
    /// # Errors
    /// There is none of this name, or its file is no voice pack.
    pub fn read(&self, name: &str) -> Result<(SavedVoice, Vec<u8>), VoiceError> {
        let path = self.path(name)?;
        let damaged = |reason: String| VoiceError::Damaged { name: name.to_owned(), reason };
        // A pipe in the folder would be waited for.
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(damaged("it is no file".to_owned()));
        }
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

    /// Saves a pack with its notes. It appears whole or not at all.
    ///
    /// # Errors
    /// The name cannot be used or is taken (unless `overwrite`), the pack is none, or the disk refused.
    pub fn save(
        &self,
        name: &str,
        pack: &[u8],
        notes: &VoiceNotes,
        overwrite: bool,
    ) -> Result<SavedVoice, VoiceError> {
        let path = self.path(name)?;
        let damaged = |reason: String| VoiceError::Damaged { name: name.to_owned(), reason };
        let noted = annotate(name, pack, notes).map_err(damaged)?;
        let voice = describe(name, &noted).map_err(damaged)?;
        let _lock = self.lock()?;
        if !overwrite && path.exists() {
            return Err(VoiceError::Exists { name: name.to_owned() });
        }
        // No voice is called so: names do not begin with a dot.
        let part = self.folder.join(format!(".{name}.part"));
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(&noted)?;
            file.sync_all()
        };
        write().map_err(IoError::at("write", &part))?;
        fs::rename(&part, &path).map_err(IoError::at("create", &path))?;
        Ok(voice)
    }

    /// Refuses a name that no voice can have, or that is taken (unless `overwrite`), before a pack is made for it.
    ///
    /// # Errors
    /// See there.
    pub fn check_free(&self, name: &str, overwrite: bool) -> Result<(), VoiceError> {
        if !overwrite && self.path(name)?.exists() {
            return Err(VoiceError::Exists { name: name.to_owned() });
        }
        self.path(name).map(drop)
    }

    /// Removes a voice, whatever its file holds.
    ///
    /// # Errors
    /// There is none of this name, or the disk refused.
    pub fn remove(&self, name: &str) -> Result<(), VoiceError> {
        let path = self.path(name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.unknown(name)),
            other => Ok(other.map_err(IoError::at("remove", &path))?),
        }
    }

    /// Where a voice of this name lies. The name alone decides, so it must be plain.
    fn path(&self, name: &str) -> Result<PathBuf, VoiceError> {
        if !is_plain_name(name) {
            return Err(VoiceError::Name { name: name.chars().take(64).collect() });
        }
        Ok(self.folder.join(format!("{name}.{EXTENSION}")))
    }

    fn unknown(&self, name: &str) -> VoiceError {
        let names = self.names().unwrap_or_default();
        let remedy = match names.is_empty() {
            true => "none is saved yet".to_owned(),
            false => suggestion(name, "voices", names.iter().map(String::as_str)),
        };
        VoiceError::Unknown { name: name.to_owned(), remedy }
    }

    /// Takes the folder's lock, so that of two who save under one name one is told that it is taken.
    fn lock(&self) -> Result<File, IoError> {
        fs::create_dir_all(&self.folder).map_err(IoError::at("create", &self.folder))?;
        let path = self.folder.join(".lock");
        let open = || {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        open().map_err(IoError::at("lock", &path))
    }
}

/// The metadata of a pack, and whether its tensors lie where it says.
fn metadata(pack: &[u8]) -> Result<(HashMap<String, String>, SafeTensors<'_>), String> {
    if pack.len() > MAX_PACK_BYTES {
        return Err(format!("its file has more than {MAX_PACK_BYTES} bytes"));
    }
    let unreadable = |error| format!("its file is no safetensors file ({error})");
    let (_, header) = SafeTensors::read_metadata(pack).map_err(unreadable)?;
    let tensors = SafeTensors::deserialize(pack).map_err(unreadable)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    match metadata.get("format").map(String::as_str) {
        Some(FORMAT) => Ok((metadata, tensors)),
        Some(other) => Err(format!("its format is '{}', this program reads '{FORMAT}'", shown(other))),
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

/// The same tensors with the notes added to their metadata.
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

/// A value as people may see it: of a bounded length, without what moves a terminal's cursor.
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
    fn what_is_saved_is_listed_read_and_removed() {
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
        assert_eq!(gone, "no voice 'anna' is saved; none is saved yet");
    }

    #[test]
    fn near_names_are_told() {
        let (_folder, store) = store();
        store.save("anna", &pack(&WHOLE), &VoiceNotes::default(), false).unwrap();
        let error = store.read("ana").unwrap_err().to_string();
        assert_eq!(error, "no voice 'ana' is saved; did you mean anna?");
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
    fn a_file_that_is_no_pack_is_named_and_left_out() {
        let (_folder, store) = store();
        store.save("good", &pack(&WHOLE), &VoiceNotes::default(), false).unwrap();
        let mut other_format = WHOLE;
        other_format[0] = ("format", "izwi-voice-9");
        let large = vec![0; MAX_PACK_BYTES + 1];
        for (name, bytes, complaint) in [
            ("empty", Vec::new(), "no safetensors file"),
            ("text", b"hello".to_vec(), "no safetensors file"),
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
        assert!(store.read("folder").unwrap_err().to_string().contains("it is no file"));
        let names: Vec<String> = store.list().unwrap().into_iter().map(|voice| voice.name).collect();
        assert_eq!(names, ["good"]);
        store.remove("large").unwrap();
    }

    #[test]
    fn control_characters_of_a_foreign_file_reach_nobody() {
        let (_folder, store) = store();
        let mut metadata = WHOLE.to_vec();
        metadata.push(("text", "a\u{1b}[2Jb"));
        let saved = store.save("x", &pack(&metadata), &VoiceNotes::default(), false).unwrap();
        assert_eq!(saved.text.as_deref(), Some("a[2Jb"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(at in 0usize..400, value: u8, cut in 0usize..400) {
            let mut bytes = pack(&WHOLE);
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut % bytes.len());
            let _ = describe("x", &bytes);
            let _ = annotate("x", &bytes, &VoiceNotes::default());
        }
    }
}
