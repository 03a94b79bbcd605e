//! The models that exist: the manifests built into the program and those that the user added. Knows no installation.

use std::fs;
use std::path::Path;

use izwi_types::suggest;

use crate::error::HubError;
use crate::io_error::IoError;
use crate::manifest::Manifest;

/// Every manifest of the repository: (file name, contents).
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));

const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// All manifests, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Catalogue(Vec<Manifest>);

impl Catalogue {
    /// The embedded manifests and those in `folder`, which need not exist.
    pub(crate) fn load(folder: &Path) -> Result<Self, HubError> {
        let mut texts: Vec<(String, String)> =
            EMBEDDED.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        texts.extend(user_manifests(folder)?);
        Self::of(&texts)
    }

    /// Checks that no two manifests share a name or are the default for one task, and that they use components.
    fn of(texts: &[(String, String)]) -> Result<Self, HubError> {
        let mut manifests: Vec<Manifest> = Vec::new();
        for (file, text) in texts {
            let manifest = Manifest::parse(file, text)?;
            for other in &manifests {
                let reason = if other.name == manifest.name {
                    format!("a model named '{}' exists already: rename this one", other.name)
                } else if let Some(task) =
                    manifest.default_for.iter().find(|task| other.default_for.contains(task))
                {
                    format!("'{}' is already the default for {}: take it out here", other.name, task.name())
                } else {
                    continue;
                };
                return Err(HubError::Manifest { file: file.clone(), reason });
            }
            manifests.push(manifest);
        }
        for ((file, _), manifest) in texts.iter().zip(&manifests) {
            let is_component = |name: &String| manifests.iter().any(|m| m.component && m.name == *name);
            if let Some(name) = manifest.uses.iter().find(|name| !is_component(name)) {
                let reason = format!("uses names '{name}', which is no component");
                return Err(HubError::Manifest { file: file.clone(), reason });
            }
        }
        manifests.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self(manifests))
    }

    pub(crate) fn all(&self) -> &[Manifest] {
        &self.0
    }

    pub(crate) fn find(&self, name: &str) -> Result<&Manifest, HubError> {
        self.0.iter().find(|manifest| manifest.name == name).ok_or_else(|| {
            let names = self.0.iter().map(|manifest| manifest.name.as_str());
            HubError::Unknown { name: name.to_owned(), remedy: suggest(name, "models", names) }
        })
    }
}

fn user_manifests(folder: &Path) -> Result<Vec<(String, String)>, HubError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(IoError::at("list", folder)(error).into()),
    };
    let mut texts = Vec::new();
    for entry in entries {
        let path = entry.map_err(IoError::at("list", folder))?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let file = path.display().to_string();
        let size = fs::metadata(&path).map_err(IoError::at("read", &path))?.len();
        if size > MAX_MANIFEST_BYTES {
            let reason = format!("it has {size} bytes, at most {MAX_MANIFEST_BYTES} are read");
            return Err(HubError::Manifest { file, reason });
        }
        texts.push((file, fs::read_to_string(&path).map_err(IoError::at("read", &path))?));
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Source;

    fn text(name: &str, default: &str) -> (String, String) {
        let hash = "0".repeat(64);
        let text = format!(
            "name = \"{name}\"\nfamily = \"f\"\ndescription = \"d\"\ntask = [\"tts\"]\nlicence = \"MIT\"\n\
             languages = [\"en\"]\ndefault = [{default}]\n[[sources]]\nkind = \"hub\"\nrepo = \"a/b\"\n\
             revision = \"main\"\n[[sources.files]]\npath = \"a\"\nsha256 = \"{hash}\"\nsize = 1\ntarget = \"a\"\n"
        );
        (format!("{name}.toml"), text)
    }

    #[test]
    fn every_embedded_manifest_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::load(folder.path()).unwrap();
        assert_eq!(catalogue.all().len(), EMBEDDED.len());
        assert!(!EMBEDDED.is_empty());
    }

    #[test]
    fn the_publishers_hub_comes_first() {
        let catalogue = Catalogue::load(tempfile::tempdir().unwrap().path()).unwrap();
        let is_hub = |source: &Source| source.id().starts_with("hub ");
        let packages = catalogue.all().iter().filter(|manifest| !is_hub(&manifest.sources[0]));
        let models: Vec<_> = packages.filter(|manifest| !manifest.component).collect();
        // The publishers of the only component and of one model distribute packages. Of two others the hub has pickled weights alone.
        assert!(models.iter().all(|manifest| !manifest.sources.iter().any(is_hub)), "the hub comes first");
        assert_eq!(models.len(), 3);
    }

    #[test]
    fn no_model_trusts_a_moving_branch() {
        let catalogue = Catalogue::load(tempfile::tempdir().unwrap().path()).unwrap();
        for source in catalogue.all().iter().flat_map(|manifest| &manifest.sources) {
            let is_commit = |revision: &str| {
                revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            let id = source.id();
            let is_fixed = id.rsplit_once('@').is_some_and(|(_, revision)| is_commit(revision));
            let is_pinned = source.files().iter().all(|file| file.trust.is_none());
            assert!(is_fixed || is_pinned, "{id}");
        }
    }

    #[test]
    fn default_models_have_a_mirror() {
        let catalogue = Catalogue::load(tempfile::tempdir().unwrap().path()).unwrap();
        for manifest in catalogue.all().iter().filter(|manifest| !manifest.default_for.is_empty()) {
            let mirrored = manifest.sources.iter().any(|source| !source.id().starts_with("hub "));
            assert!(mirrored, "{}", manifest.name);
        }
    }

    #[test]
    fn mirrors_tell_the_sizes_of_their_archives() {
        let catalogue = Catalogue::load(tempfile::tempdir().unwrap().path()).unwrap();
        for source in catalogue.all().iter().flat_map(|manifest| &manifest.sources) {
            let files: u64 = source.files().iter().map(|file| file.size).sum();
            let bytes = source.bytes().unwrap_or(files);
            assert!(source.is_hub() || bytes != files, "{}: give each package its size", source.id());
        }
    }

    #[test]
    fn descriptions_tell_which_models_clone_voices() {
        let catalogue = Catalogue::load(tempfile::tempdir().unwrap().path()).unwrap();
        for manifest in catalogue.all() {
            assert_eq!(
                manifest.clones_voices,
                manifest.description.contains("voices add"),
                "{}",
                manifest.name
            );
        }
    }

    #[test]
    fn users_add_manifests() {
        let folder = tempfile::tempdir().unwrap();
        let (file, text) = text("my-lark", "");
        fs::write(folder.path().join(file), text).unwrap();
        fs::write(folder.path().join("notes.txt"), "not a manifest").unwrap();
        let catalogue = Catalogue::load(folder.path()).unwrap();
        assert_eq!(catalogue.find("my-lark").unwrap().family, "f");
    }

    #[test]
    fn duplicate_names_and_defaults_are_refused() {
        let twice = Catalogue::of(&[text("lark", ""), text("lark", "")]).unwrap_err();
        assert!(twice.to_string().contains("a model named 'lark' exists already"), "{twice}");
        let defaults = Catalogue::of(&[text("lark", "\"tts\""), text("wren", "\"tts\"")]).unwrap_err();
        assert!(defaults.to_string().contains("'lark' is already the default for tts"), "{defaults}");
    }

    #[test]
    fn unknown_names_get_suggestions() {
        let catalogue = Catalogue::of(&[text("lark", ""), text("lark-large", ""), text("wren", "")]).unwrap();
        let error = |name: &str| catalogue.find(name).unwrap_err().to_string();
        assert_eq!(error("lrak"), "unknown model 'lrak': did you mean 'lark'?");
        assert_eq!(error("Lark"), "unknown model 'Lark': did you mean 'lark'?");
        assert_eq!(error("lark-l"), "unknown model 'lark-l': did you mean 'lark', 'lark-large'?");
        assert_eq!(error("penguin"), "unknown model 'penguin': the models are 'lark', 'lark-large', 'wren'");
    }
}
