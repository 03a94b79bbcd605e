//! What the requests of one remote model share: its configuration, its servers and their connections.

use std::sync::Arc;

use izwi_core::engine::executor::ExecutorProfile;
use reqwest::{Client, RequestBuilder, Url};

use crate::config::RemoteConfig;
use crate::upstreams::Upstreams;

/// Rate of the recordings that are sent, in Hz: what ASR models work with.
pub(crate) const INPUT_RATE_HZ: u32 = 16_000;

/// What the requests of one model share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RemoteConfig,
    pub(crate) profile: Arc<ExecutorProfile>,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) http: Client,
}

impl Shared {
    /// A POST with the key.
    pub(crate) fn post(&self, base: &Url, path: &str) -> RequestBuilder {
        self.keyed(self.http.post(join(base, path)))
    }

    pub(crate) fn keyed(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.config.api_key {
            Some(key) => request.bearer_auth(key.reveal()),
            None => request,
        }
    }
}

/// The URL of a path below a base URL.
pub(crate) fn join(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path.split('/'));
    }
    url
}
