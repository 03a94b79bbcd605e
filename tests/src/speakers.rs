//! A server that tells who speaks while they speak.

use std::path::Path;

use anyhow::Result;
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_hub::SpeakerStore;
use izwi_server::Slot;

use crate::{Setup, TestServer, copy};

/// A server with a model for words, and the real one for speakers on a tiny checkpoint, whose speakers have no sense.
pub async fn live_speakers(
    name: &str,
    says: &'static [&'static str],
) -> Result<(TestServer, Engine, tempfile::TempDir)> {
    live_speakers_with(name, says, |_| {}, None).await
}

/// As [`live_speakers`], with other settings of the model for speakers, and saved speakers.
pub async fn live_speakers_with(
    name: &str,
    says: &'static [&'static str],
    change: impl FnOnce(&mut EngineCoreConfig),
    saved: Option<SpeakerStore>,
) -> Result<(TestServer, Engine, tempfile::TempDir)> {
    let home = tempfile::tempdir()?;
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/pyannote");
    copy(&files, &home.path().join("models/tiny-speakers"))?;
    std::fs::create_dir(home.path().join("manifests"))?;
    std::fs::write(home.path().join("manifests/tiny-speakers.toml"), MANIFEST)?;
    let mut config = EngineCoreConfig {
        model: "tiny-speakers".to_owned(),
        home: Some(home.path().to_path_buf()),
        models_dir: Some(home.path().join("models")),
        num_threads: 1,
        ..EngineCoreConfig::default()
    };
    change(&mut config);
    let engine = Engine::new(config)?;
    engine.ready().await?;
    let mut setup = Setup::listener_of(name, says);
    setup.server.speakers = saved;
    let server = setup.start().await?;
    server.registry.set("tiny-speakers", Slot::Ready(engine.clone()));
    Ok((server, engine, home))
}

const MANIFEST: &str = "name = \"tiny-speakers\"\nfamily = \"pyannote\"\ndescription = \"a test\"\ntask = [\"diarize\"]\n\
    licence = \"MIT\"\nlanguages = [\"mul\"]\n[[sources]]\nkind = \"hub\"\nrepo = \"a/b\"\nrevision = \"main\"\n\
    [[sources.files]]\npath = \"config.yaml\"\ntarget = \"config.yaml\"\n\
    sha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\nsize = 1\n";
