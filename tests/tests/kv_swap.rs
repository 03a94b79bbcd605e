//! Blocks of the KV cache that come back from files: what the model says is the same to the bit, and is not computed again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::{
    Conversation, Engine, EngineCoreConfig, EngineCoreRequest, EngineOutput, GenerationParams, Message,
    Precision,
};
use izwi_tests::guarded;
use tempfile::TempDir;

const MODEL: &str = "lfm2-audio-1.5b";
const BLOCK: usize = 16;

/// A home folder with a tiny checkpoint of random weights.
struct Home {
    root: TempDir,
    path: PathBuf,
}

impl Home {
    fn new() -> Result<Self> {
        let root = tempfile::tempdir()?;
        let path = root.path().join("first");
        let set = std::env::var_os("IZWI_GOLDEN_LFM2_AUDIO").map(PathBuf::from);
        let golden = set.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/lfm2_audio"));
        izwi_tests::copy(&golden, &path.join("models").join(MODEL))?;
        Ok(Self { root, path })
    }

    /// Moves it to where this process has read nothing, as if it had started again.
    fn move_to(&mut self, name: &str) -> Result<()> {
        let path = self.root.path().join(name);
        std::fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }

    async fn engine(&self, kv_swap_mib: usize, kv_swap_private: bool) -> Result<Engine> {
        let config = EngineCoreConfig {
            home: Some(self.path.clone()),
            models_dir: Some(self.path.join("models")),
            dtype: Precision::F32,
            max_blocks: 512,
            block_size: BLOCK,
            num_threads: 2,
            admission: false,
            kv_swap_mib,
            kv_swap_private,
            ..EngineCoreConfig::for_lfm2()
        };
        let engine = Engine::new(config)?;
        engine.ready().await?;
        Ok(engine)
    }

    /// The files of blocks.
    fn files(&self) -> Vec<PathBuf> {
        let (mut files, mut folders) = (Vec::new(), vec![self.path.join("kv-cache")]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else if entry.file_name().len() == 32 {
                    files.push(entry.path());
                }
            }
        }
        files.sort();
        files
    }

    /// Waits for as many files of blocks.
    async fn saved(&self, blocks: usize) -> Result<()> {
        while self.files().len() < blocks {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        ensure!(self.files().len() == blocks, "{} files, not {blocks}", self.files().len());
        Ok(())
    }
}

async fn answer(engine: &Engine, conversation: &mut Conversation, text: &str) -> Result<EngineOutput> {
    conversation.ask(vec![Message::Text(text.to_owned())]);
    let params = GenerationParams { seed: Some(3), max_tokens: 40, ..Default::default() };
    let request = EngineCoreRequest::converse(conversation.clone()).with_params(params);
    let output = engine.generate(request).await?;
    conversation.answer(output.emissions.clone(), output.stats.prompt_tokens);
    Ok(output)
}

/// The next turn of a conversation, and how many of its blocks were found.
async fn next(engine: &Engine, conversation: &Conversation) -> Result<(EngineOutput, usize)> {
    let before = engine.status().kv.prefix_hits;
    let output = answer(engine, &mut conversation.clone(), "And what happened then?").await?;
    Ok((output, (engine.status().kv.prefix_hits - before) as usize))
}

fn is_same(one: &EngineOutput, other: &EngineOutput) -> bool {
    one.audio == other.audio && one.text == other.text && one.emissions == other.emissions
}

#[tokio::test]
async fn a_conversation_goes_on_after_a_restart_without_its_prompt_being_computed_again() -> Result<()> {
    guarded(async {
        let mut home = Home::new()?;
        let mut conversation = Conversation::new();
        let engine = home.engine(64, false).await?;
        let first = answer(&engine, &mut conversation, "Tell me the story of the lighthouse keeper.").await?;
        // The last generated position was never computed.
        let blocks = (first.stats.prompt_tokens + first.emissions.len() - 1) / BLOCK;
        ensure!(blocks >= 3, "{blocks} blocks are too few to tell anything");
        home.saved(blocks).await?;
        let (expected, hits) = next(&engine, &conversation).await?;
        ensure!(hits == blocks, "{hits} of {blocks} blocks in the pool");
        drop(engine);
        home.saved(home.files().len()).await?;

        let plain = home.engine(0, false).await?;
        let (computed, hits) = next(&plain, &conversation).await?;
        ensure!(hits == 0 && is_same(&computed, &expected), "{hits} without files");

        home.move_to("second")?;
        let restarted = home.engine(64, false).await?;
        let (restored, hits) = next(&restarted, &conversation).await?;
        ensure!(hits == blocks && is_same(&restored, &expected), "{hits} of {blocks} blocks after a restart");
        ensure!(restarted.check_invariants().await? == Ok(()), "block accounting");
        drop(restarted);

        home.move_to("third")?;
        for file in home.files().iter().step_by(2) {
            let mut bytes = std::fs::read(file)?;
            *bytes.last_mut().context("an empty file")? ^= 1;
            std::fs::write(file, bytes)?;
        }
        let engine = home.engine(64, false).await?;
        let (computed, hits) = next(&engine, &conversation).await?;
        ensure!(hits < blocks && is_same(&computed, &expected), "{hits} of {blocks} blocks that are damaged");
        Ok(())
    })
    .await?
}

#[tokio::test]
async fn private_blocks_outlive_the_unloading_of_their_model() -> Result<()> {
    guarded(async {
        let home = Home::new()?;
        let mut conversation = Conversation::new();
        let engine = home.engine(64, true).await?;
        let first = answer(&engine, &mut conversation, "Tell me the story of the lighthouse keeper.").await?;
        let blocks = (first.stats.prompt_tokens + first.emissions.len() - 1) / BLOCK;
        home.saved(blocks).await?;
        drop(engine);
        let again = home.engine(64, true).await?;
        let (_, hits) = next(&again, &conversation).await?;
        ensure!(hits == blocks, "{hits} of {blocks} blocks after loading again");
        Ok(())
    })
    .await?
}
