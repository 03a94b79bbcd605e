//! Keys of tables that name servers: what remote models and the language models of pipelines have in common.
//!
//! Knows no disk and no environment.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use izwi_remote::{RemoteConfig, Secret};

use super::field::Kind;
use super::key_source::KeySource;
use super::keys::{Key, key};
use super::ranges::{ANY_COUNT, SECONDS};

/// What a table says about servers.
pub(super) trait Servers {
    /// Their settings.
    fn config(&mut self) -> &mut RemoteConfig;

    /// Sets where their key comes from.
    fn set_key(&mut self, key: KeySource);
}

/// The keys of a table that says `M`.
pub(super) struct ServerKeys<M>(PhantomData<M>);

impl<M: Servers> ServerKeys<M> {
    pub(super) const MODEL: Key<M> =
        key!("model", Kind::Text, "required", "Its name at the servers", |model, value| {
            model.config().model = value.text()?.to_owned();
        });
    pub(super) const API_KEY: Key<M> =
        key!("api_key", Kind::Secret, "none", "Key that the servers require", |model, value| {
            model.set_key(KeySource::Text(Secret::new(value.text()?)));
        });
    pub(super) const API_KEY_ENV: Key<M> = key!(
        "api_key_env",
        Kind::Text,
        "none",
        "Variable of the environment that holds the key",
        |model, value| model.set_key(KeySource::Variable(value.text()?.to_owned()))
    );
    pub(super) const API_KEY_FILE: Key<M> =
        key!("api_key_file", Kind::Text, "none", "File that holds the key", |model, value| {
            model.set_key(KeySource::File(PathBuf::from(value.text()?)));
        });
    pub(super) const MAX_CONCURRENT: Key<M> = key!(
        "max_concurrent",
        ANY_COUNT,
        "32",
        "Maximum number of open requests; more are refused with Retry-After",
        |model, value| model.config().max_concurrent = value.whole()?
    );
    pub(super) const RETRIES: Key<M> = key!(
        "retries",
        Kind::Whole { min: 0, max: 10 },
        "2",
        "How often a request is sent again before the first byte, to another server first",
        |model, value| model.config().retries = value.whole()?
    );
    pub(super) const CONNECT_TIMEOUT: Key<M> =
        key!("connect_timeout_s", SECONDS, "5", "Time that a connection may take", |model, value| {
            model.config().connect_timeout = Duration::from_secs(value.whole()?);
        });
    pub(super) const IDLE_TIMEOUT: Key<M> =
        key!("idle_timeout_s", SECONDS, "30", "Time that an answer may pause", |model, value| {
            model.config().idle_timeout = Duration::from_secs(value.whole()?);
        });
}
