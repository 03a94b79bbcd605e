//! The server's configuration and its defaults. The caller resolves flags, environment and file.

use std::time::Duration;

use izwi_hub::VoiceStore;

/// Configuration of the server.
#[derive(Clone, PartialEq)]
pub struct ServerConfig {
    /// Key that `/v1/*` requires; `None` for no key.
    pub api_key: Option<String>,
    /// Host names accepted in `Host` beside loopback names and the bound address.
    pub allowed_hosts: Vec<String>,
    /// Origins accepted beside loopback ones, written as browsers send them: `https://app.example.com`.
    pub allowed_origins: Vec<String>,
    /// Saved voices; `None` saves none.
    pub voices: Option<VoiceStore>,

    /// The most characters of one request or utterance.
    pub max_input_chars: usize,
    /// The most bytes of a request body.
    pub max_body_bytes: usize,
    /// The most bytes of a recording.
    pub max_upload_bytes: usize,
    /// The most bytes of the head of a request.
    pub max_header_bytes: usize,
    /// The most connections; more wait in the listener's backlog.
    pub max_connections: usize,
    /// The most requests to `/v1/*` at once; more are refused as overload.
    pub max_requests: usize,
    /// The most WebSocket sessions at once; more are refused as overload.
    pub max_sessions: usize,
    /// The most bytes of one WebSocket message.
    pub max_frame_bytes: usize,
    /// The most characters of text over the whole of a WebSocket session.
    pub max_session_chars: usize,

    /// How long a request's head may take, and how long an idle connection is kept.
    pub header_timeout: Duration,
    /// How long a request's body may take.
    pub body_timeout: Duration,
    /// How long the body of a request with a recording may take.
    pub upload_timeout: Duration,
    /// How long a request may wait for its first audio.
    pub first_audio_timeout: Duration,
    /// How long a peer may leave sent data unread before its connection is dropped.
    pub send_timeout: Duration,
    /// How long a WebSocket session may be idle: no message from the client and no generation.
    pub idle_timeout: Duration,
    /// How long a WebSocket session whose connection was lost waits for its client, how much sent audio is kept for it,
    /// and how much is produced meanwhile. Zero ends such sessions at once.
    pub resume_window: Duration,
    /// Interval of pings in a WebSocket session.
    pub ping_interval: Duration,
    /// How long requests and sessions may continue after a shutdown was requested.
    pub drain_timeout: Duration,
}

/// How many requests of the largest size fit into the upload memory.
const LARGEST_UPLOADS: usize = 4;

impl ServerConfig {
    /// The most bytes of the body of a request that carries a recording: its base64, and the other fields.
    pub(crate) fn max_request_bytes(&self) -> usize {
        (self.max_upload_bytes / 3 + 1).saturating_mul(4).saturating_add(self.max_body_bytes)
    }

    /// KiB of recordings that all requests may hold together.
    pub(crate) fn upload_memory_kib(&self) -> usize {
        (self.max_request_bytes() / 1024 + 1)
            .saturating_mul(LARGEST_UPLOADS)
            .min(tokio::sync::Semaphore::MAX_PERMITS)
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            api_key: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            voices: None,
            max_input_chars: 4_096,
            max_body_bytes: 1 << 20,
            max_upload_bytes: 100 << 20,
            max_header_bytes: 32 << 10,
            max_connections: 1_024,
            max_requests: 256,
            max_sessions: 256,
            max_frame_bytes: 256 << 10,
            max_session_chars: 100_000,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            upload_timeout: Duration::from_secs(300),
            first_audio_timeout: Duration::from_secs(120),
            send_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            resume_window: Duration::from_secs(30),
            ping_interval: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl std::fmt::Debug for ServerConfig {
    /// Everything but the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerConfig")
            .field("has_api_key", &self.api_key.is_some())
            .field("allowed_hosts", &self.allowed_hosts)
            .field("allowed_origins", &self.allowed_origins)
            .field("max_requests", &self.max_requests)
            .field("max_sessions", &self.max_sessions)
            .finish_non_exhaustive()
    }
}
