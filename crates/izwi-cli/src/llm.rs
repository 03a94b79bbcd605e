//! A language model that the command line names.

use anyhow::Result;
use izwi_remote::{LOCAL_LLMS, PipelineConfig, Secret, listed_models};

use crate::failure;
use crate::settings::{Origin, PipelineModel};

/// Stands for a server on this machine.
const AUTO: &str = "auto";
/// Its name in errors.
const NAME: &str = "llm";

/// The flags that name it.
#[derive(Debug, clap::Args)]
pub(crate) struct LlmFlags {
    /// A language model: the address of its server with the path before /chat/completions, such as
    /// http://127.0.0.1:11434/v1, or `auto` for Ollama or LM Studio on this machine
    #[arg(long, value_name = "URL")]
    llm: Option<String>,
    /// Name of the language model at its server [default: the first that it lists]
    #[arg(long, value_name = "NAME", requires = "llm")]
    llm_model: Option<String>,
    /// Variable of the environment that has the API key of its server
    #[arg(long, value_name = "VARIABLE", requires = "llm")]
    llm_key_env: Option<String>,
}

impl LlmFlags {
    /// Whether a language model is named.
    pub(crate) fn are_given(&self) -> bool {
        self.llm.is_some()
    }

    /// A pipeline with the language model; `None` where none is named.
    ///
    /// # Errors
    /// The key is not set, or no server lists the model.
    pub(crate) async fn find(&self) -> Result<Option<PipelineModel>> {
        let Some(url) = &self.llm else { return Ok(None) };
        let key = self.llm_key_env.as_deref().map(key_of).transpose()?;
        let (url, model) = found(url, self.llm_model.as_deref(), key.as_ref()).await?;
        let config = PipelineConfig::new(NAME, vec![url], model);
        Ok(Some(PipelineModel::new(config, Origin::Flag("llm".to_owned())).keyed(key)))
    }
}

/// The key in a variable of the environment.
fn key_of(variable: &str) -> Result<Secret> {
    std::env::var(variable).map(|key| Secret::new(key.trim())).map_err(|_| {
        let message = format!("--llm-key-env: the variable {variable} is not set");
        failure::with_help(message, "set it to the key of the server")
    })
}

/// The server and the model that are meant.
async fn found(url: &str, model: Option<&str>, key: Option<&Secret>) -> Result<(String, String)> {
    let urls: Vec<&str> = if url == AUTO { LOCAL_LLMS.to_vec() } else { vec![url] };
    for url in &urls {
        let listed = listed_models(url, key).await.unwrap_or_default();
        let first = listed.first().map(String::as_str);
        match model {
            // A server may list none.
            Some(model) if !listed.is_empty() || urls.len() == 1 => {
                return Ok(((*url).to_owned(), model.to_owned()));
            }
            None if first.is_some() => return Ok(((*url).to_owned(), first.unwrap_or_default().to_owned())),
            _ => {}
        }
    }
    let remedy = match url {
        AUTO => "start Ollama or LM Studio, or give the address of another server to --llm".to_owned(),
        _ => "check the address and the key of --llm-key-env, or name the model with --llm-model".to_owned(),
    };
    Err(failure::with_help(format!("no language model is listed at {}", urls.join(" or ")), remedy))
}
