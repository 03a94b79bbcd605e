//! The server's configuration and its defaults. The caller resolves flags, environment and file.

use std::path::PathBuf;
use std::time::Duration;

use izwi_hub::{LexiconStore, SpeakerStore, Store, VoiceStore};

use crate::traces::Traces;

/// Configuration of the server.
#[derive(Clone, PartialEq)]
pub struct ServerConfig {
    /// Key that `/v1/*` requires; `None` for no key.
    pub api_key: Option<String>,
    /// Host names accepted in `Host` besides loopback names and the bound address.
    pub allowed_hosts: Vec<String>,
    /// Origins accepted besides loopback ones, written as browsers send them: `https://app.example.com`.
    pub allowed_origins: Vec<String>,
    /// Saved voices; `None` saves none.
    pub voices: Option<VoiceStore>,
    /// Saved lexicons, those of the engines; `None` saves none.
    pub lexicons: Option<LexiconStore>,

    /// Saved speakers, by whose names transcripts with speakers tell them; `None` compares nobody with them.
    pub speakers: Option<SpeakerStore>,

    /// The model store, from which models are pulled while the server runs; `None` pulls none.
    pub store: Option<Store>,
    /// Whether clients may have models pulled.
    pub allow_pull: bool,

    /// Name of this server among the replicas behind a balancer, in answers and in sessions; `None` for a single server.
    pub instance: Option<String>,

    /// Whether each request and session writes a line to the log at its end.
    pub access_log: bool,
    /// Where traces are exported to; `None` exports none.
    pub traces: Option<Traces>,

    /// Folder of the jobs; `None` takes none.
    pub jobs: Option<PathBuf>,
    /// The most jobs, finished ones included; 0 takes none.
    pub max_jobs: usize,
    /// The most bytes of all jobs.
    pub max_jobs_bytes: u64,
    /// The most bytes of the file that comes with a job.
    pub max_job_bytes: u64,
    /// Days that finished jobs are kept; 0 keeps them until they are deleted.
    pub jobs_keep_days: u64,

    /// The weights of the voice activity detector; until the file exists, a detector without weights is used.
    pub vad_weights: Option<PathBuf>,

    /// The most characters of one request or utterance.
    pub max_input_chars: usize,
    /// The most bytes of a request body.
    pub max_body_bytes: usize,
    /// The most bytes of a recording.
    pub max_upload_bytes: usize,
    /// The most bytes of the head of a request.
    pub max_header_bytes: usize,
    /// The most connections, besides a few for probes. A new one takes the place of one that waits for a request.
    pub max_connections: usize,
    /// The most connections of one peer: an IPv4 address, or the first 64 bits of an IPv6 address. Loopback may have four
    /// times as many.
    pub max_connections_per_peer: usize,
    /// The most files and sockets that the process may open; `None` if unknown. It bounds the connections.
    pub max_open_files: Option<u64>,
    /// The most requests to `/v1/*` at once; more are refused as overload.
    pub max_requests: usize,
    /// The most WebSocket sessions at once; more are refused as overload.
    pub max_sessions: usize,
    /// The most bytes of one WebSocket message.
    pub max_frame_bytes: usize,
    /// The most characters of text over the whole of a WebSocket session.
    pub max_session_chars: usize,

    /// How long a request's head may take.
    pub header_timeout: Duration,
    /// How long a connection is kept for a next request.
    pub keep_alive_timeout: Duration,
    /// The fewest bytes per second of a request's body, besides pauses of a few seconds; 0 for no limit.
    pub min_body_rate: u64,
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
    /// The server ends once no connection has been open, no model was pulled and no job waited for this long; `None` for never.
    pub exit_when_idle: Option<Duration>,
}

/// Places for probes besides the ordinary ones.
pub(crate) const PROBE_PLACES: usize = 32;
/// Files that the process needs besides those of connections: weights, voices, the log, the runtime.
const OTHER_FILES: usize = 128;
/// The fewest connections that a server is useful with.
const MIN_CONNECTIONS: usize = 16;

/// The process may open too few files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the process may open {0} files and sockets; it needs at least {min}", min = OTHER_FILES + PROBE_PLACES + MIN_CONNECTIONS)]
pub struct FilesError(pub u64);

/// The most bytes of the name of a replica.
const MAX_INSTANCE_BYTES: usize = 128;

/// A name that no replica can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a name of a replica like izwi-0: at most {MAX_INSTANCE_BYTES} letters, digits, '.', '_' and '-'"
)]
pub struct InstanceError(String);

/// Checks the name of a replica; an empty one stands for none. It has no meaning to a URL, a header or a balancer.
///
/// # Errors
/// The name is too long or has other characters.
pub fn check_instance(name: &str) -> Result<(), InstanceError> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let is_valid = is_plain && name.len() <= MAX_INSTANCE_BYTES;
    if is_valid { Ok(()) } else { Err(InstanceError(izwi_types::excerpt(name))) }
}

impl ServerConfig {
    /// Files that the process should be allowed to open, for all connections of this configuration.
    pub fn wanted_files(&self) -> u64 {
        (self.max_connections + PROBE_PLACES + OTHER_FILES) as u64
    }

    /// The most ordinary connections: the configured number, or what the limit of open files allows.
    pub fn connection_limit(&self) -> usize {
        let files =
            self.max_open_files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        let possible = files.saturating_sub(OTHER_FILES + PROBE_PLACES);
        self.max_connections.min(possible.max(MIN_CONNECTIONS))
    }

    /// Refuses a limit of open files that leaves no room for connections.
    ///
    /// # Errors
    /// The limit is too low.
    pub fn check_files(&self) -> Result<(), FilesError> {
        match self.max_open_files {
            Some(files) if files < (OTHER_FILES + PROBE_PLACES + MIN_CONNECTIONS) as u64 => {
                Err(FilesError(files))
            }
            _ => Ok(()),
        }
    }

    /// The most bytes of the body of a request that carries a recording: its base64, and the other fields.
    pub fn max_request_bytes(&self) -> usize {
        (self.max_upload_bytes / 3 + 1).saturating_mul(4).saturating_add(self.max_body_bytes)
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            api_key: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            voices: None,
            lexicons: None,
            speakers: None,
            store: None,
            allow_pull: true,
            instance: None,
            access_log: true,
            traces: None,
            jobs: None,
            max_jobs: 100,
            max_jobs_bytes: 20 << 30,
            max_job_bytes: 2 << 30,
            jobs_keep_days: 7,
            vad_weights: None,
            max_input_chars: 4_096,
            max_body_bytes: 1 << 20,
            max_upload_bytes: 100 << 20,
            max_header_bytes: 32 << 10,
            max_connections: 1_024,
            max_connections_per_peer: 128,
            max_open_files: None,
            max_requests: 256,
            max_sessions: 256,
            max_frame_bytes: 256 << 10,
            max_session_chars: 100_000,
            header_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(60),
            min_body_rate: 4_096,
            body_timeout: Duration::from_secs(30),
            upload_timeout: Duration::from_secs(300),
            first_audio_timeout: Duration::from_secs(120),
            send_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            resume_window: Duration::from_secs(30),
            ping_interval: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(30),
            exit_when_idle: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_bounds_the_connections() {
        let with = |files| ServerConfig { max_open_files: files, ..Default::default() };
        for (files, connections, is_enough) in [
            (None, 1_024, true),
            (Some(1_048_576), 1_024, true),
            (Some(1_024), 864, true),
            (Some(256), 96, true),
            (Some(176), 16, true),
            (Some(175), 16, false),
            (Some(0), 16, false),
        ] {
            let config = with(files);
            assert_eq!(
                (config.connection_limit(), config.check_files().is_ok()),
                (connections, is_enough),
                "{files:?}"
            );
        }
        let wanted = with(None).wanted_files();
        assert_eq!(with(Some(wanted)).connection_limit(), 1_024);
        let few = ServerConfig { max_connections: 4, ..with(Some(256)) };
        assert_eq!(few.connection_limit(), 4);
    }

    #[test]
    fn a_replica_has_a_name_that_fits_a_url() {
        for name in ["", "izwi-0", "gpu_1.example", "A"] {
            assert_eq!(check_instance(name), Ok(()), "{name}");
        }
        for name in ["a b", "a&b", "ä", "a/b", "a\n", &"x".repeat(129)] {
            assert!(check_instance(name).is_err(), "{name:?}");
        }
    }
}
