//! Models that another server runs: the seam to its client, and the loop that serves their requests.
//!
//! A [`RemoteModel`] is the twin of a [`ModelExecutor`](super::ModelExecutor) for work that is computed elsewhere. It has no
//! steps: an answer arrives when the other server sends it. So [`RemoteCore`] takes the place of the step loop behind the
//! same [`Engine`](super::Engine) handle and the same sessions: chunks, playback clock, statistics and delivery are those of
//! models in this process. Must not know HTTP or wire formats.

mod core;

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use izwi_types::{
    Input, InputError, PartTimes, Precision, Prepared, StepOutput, TextProgress, VoiceRecording, Work,
};

pub(super) use self::core::RemoteCore;
use super::error::RemoteError;
use super::executor::{ExecutorProfile, RequestPreparer};

/// State of one of the servers that run a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamStatus {
    /// Where it is, without credentials.
    pub url: String,
    /// Whether it is asked: `closed` (yes), `open` (not after its failures), `half_open` (one request tries it).
    pub circuit: &'static str,
    /// Requests open there.
    pub outstanding: usize,
    /// Failures since its last answer.
    pub failures: u32,
}

/// The answer to one input as it arrives. Dropping it ends the request at the other server.
pub type RemoteOutput = BoxStream<'static, Result<StepOutput, RemoteError>>;

/// A client of the servers that run one model.
pub trait RemoteModel: Send + Sync {
    /// Static facts, as configured.
    fn profile(&self) -> Arc<ExecutorProfile>;

    /// Checks that the protocol can carry an input.
    ///
    /// # Errors
    /// It cannot; the error names the field, the value and the remedy.
    fn check(&self, input: &Input) -> Result<(), InputError>;

    /// Asks for an answer, and is done when its first part has arrived. Until then a failure may be retried. Dropping the
    /// future ends the request.
    fn start(&self, input: Arc<Input>) -> BoxFuture<'static, Result<RemoteOutput, RemoteError>>;

    /// The servers and their state.
    fn upstreams(&self) -> Vec<UpstreamStatus>;
}

/// The profile of a remote model: it has no weights here. `info` says what the configuration knows.
pub fn profile(model: &str, info: izwi_types::ModelInfo) -> ExecutorProfile {
    ExecutorProfile {
        model: model.to_owned(),
        device: "remote".to_owned(),
        languages: info.languages.clone(),
        info,
        precision: Precision::Auto,
        kv_block_bytes: 0,
        kv_blocks: 0,
        memory_bytes: 0,
        step_bytes: 0,
        part_times: PartTimes::default(),
        speaks_parts: false,
    }
}

/// Prepares nothing but the input itself: the other server does.
pub(super) struct RemotePreparer(pub(super) Arc<dyn RemoteModel>);

impl RemotePreparer {
    fn no_voices(&self, param: &'static str) -> InputError {
        let model = &self.0.profile().model;
        let message =
            format!("model '{model}' is remote and does not support voice cloning; leave {param} out");
        InputError { param, message }
    }
}

impl RequestPreparer for RemotePreparer {
    fn prepare(&self, input: &Input) -> Result<Prepared, InputError> {
        self.0.check(input)?;
        // One unit: no scheduler looks at it.
        Ok(Prepared::new(Work::Units([1].into()), Arc::new(input.clone())))
    }

    fn append_text(&self, _: &Prepared, _: &str, _: bool) -> Result<TextProgress, InputError> {
        let model = &self.0.profile().model;
        let message = format!("model '{model}' is remote and takes a text as a whole; send it at once");
        Err(InputError { param: "input", message })
    }

    fn make_voice(&self, _: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        Err(self.no_voices("ref_audio"))
    }

    fn check_voice(&self, _: &[u8]) -> Result<(), InputError> {
        Err(self.no_voices("voice"))
    }
}
