//! A language model that answers one text with another. Knows no turn and no speech.

use std::sync::Arc;

use izwi_core::engine::RemoteError;
use izwi_types::ModelInfo;
use serde_json::{Map, Value, json};

use super::PipelineConfig;
use super::completion::{self, Event};
use crate::config::ConfigError;
use crate::shared::Shared;

/// The language model of a pipeline.
#[derive(Debug)]
pub struct LanguageModel {
    llm: Arc<Shared>,
    parameters: Map<String, Value>,
}

impl LanguageModel {
    /// That of `config`, whose other models and prompt have no effect. It is not asked.
    ///
    /// # Errors
    /// A value of the configuration cannot be used.
    pub fn new(config: PipelineConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let PipelineConfig { llm, parameters, .. } = config;
        Ok(Self { llm: Arc::new(Shared::new(llm, ModelInfo::listening(0, 0))?), parameters })
    }

    /// The answer to `text`, without reasoning.
    ///
    /// # Errors
    /// No server answers, or the answer is cut: by a server, or by a limit of time or length.
    pub async fn answer(&self, system: &str, text: &str) -> Result<String, RemoteError> {
        let mut body = self.parameters.clone();
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": text}]);
        body.insert("model".to_owned(), self.llm.config.model.clone().into());
        body.insert("messages".to_owned(), messages);
        body.insert("stream".to_owned(), true.into());
        let body = Arc::new(body);
        let begin = |url| {
            let (llm, body) = (Arc::clone(&self.llm), Arc::clone(&body));
            async move { completion::begin(llm, &url, &body).await }
        };
        let (completion, attempt) = self.llm.tried(begin).await?;
        let mut completion = completion.of(attempt);
        let mut answer = String::new();
        while let Some(event) = completion.next().await {
            match event? {
                Event::Text(text) => answer.push_str(&text),
                Event::End(end) if end.is_cut => {
                    let message = format!("model '{}' was cut at its limit of tokens", self.llm.config.name);
                    return Err(RemoteError::Failed(message));
                }
                Event::End(_) => {}
            }
        }
        Ok(answer)
    }
}
