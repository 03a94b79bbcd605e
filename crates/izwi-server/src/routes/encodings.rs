//! `POST /v1/audio/encodings`: a recording in, the same audio in another format out. No model is used.
//!
//! A disconnect drops the handler, which ends the work at its next block.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use izwi_audio::decode::{DecodeError, DecodeLimits};
use izwi_audio::encode::{EncoderConfig, Format};
use izwi_core::engine::RequestId;

use crate::dto::encoding::EncodingRequest;
use crate::encoding;
use crate::error::ApiError;
use crate::extract::non_blank;
use crate::openapi::{EncodedAudio, EncodingBody, EncodingForm, EncodingRefusals};
use crate::state::AppState;
use crate::upload::{Recording, Upload, UploadMemory};

/// Rate of the samples without a wish, in Hz: that of the speech of most models.
const RATE_HZ: u32 = 24_000;
/// The longest recording.
const LONGEST: Duration = Duration::from_secs(3_600);
/// Samples that are encoded at a time.
const BLOCK_SAMPLES: usize = 1 << 14;

/// A recording in another format
///
/// Mono, in the formats and rates of speech: audio that was generated once can be had in each of them.
#[utoipa::path(
    post,
    path = "/v1/audio/encodings",
    tag = "speech",
    request_body(content(
        (EncodingBody = "application/json"),
        (EncodingForm = "multipart/form-data"),
    )),
    responses(EncodedAudio, EncodingRefusals),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<EncodingRequest>,
) -> Result<Response, ApiError> {
    let Upload { fields, recording, ignored, memory } = upload;
    let (format, media_type) = encoding::for_http(non_blank(fields.response_format).as_deref())?;
    let config = EncoderConfig {
        output_rate_hz: fields.sample_rate,
        bit_rate: fields.bit_rate,
        ..EncoderConfig::whole(RATE_HZ, 0)
    };
    let sample_rate = format.check(&config).map_err(encoding::refused)?;
    // The recording is resampled once.
    let config = EncoderConfig { sample_rate_hz: fields.sample_rate.unwrap_or(RATE_HZ), ..config };
    let job = Job { recording, format, config, max_bytes: state.config().max_upload_bytes };
    let decoded = UploadMemory::new(&state, 0);
    let client = Arc::new(());
    let here = Arc::downgrade(&client);
    let work = tokio::task::spawn_blocking(move || {
        let _memory = memory;
        job.run(decoded, &here)
    });
    let bytes = work.await.unwrap_or_else(|error| Err(ApiError::internal(&error.to_string(), &id)))?;
    drop(client);
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert("x-sample-rate", HeaderValue::from(sample_rate));
    headers.extend(ignored.headers());
    Ok(response)
}

/// A recording and what becomes of it.
struct Job {
    recording: Recording,
    format: &'static Format,
    config: EncoderConfig,
    max_bytes: usize,
}

impl Job {
    /// The encoded bytes, as long as the client is `here`. The decoded samples count in `memory`. Blocks.
    fn run(self, mut memory: UploadMemory, here: &Weak<()>) -> Result<Bytes, ApiError> {
        let param = self.recording.param;
        let audio = |error| ApiError::Audio { param, error };
        let limits = DecodeLimits { max_bytes: self.max_bytes, max_duration: LONGEST };
        let mut refusal = None;
        let mut watch = |samples: usize| {
            let taken = memory.take(samples * size_of::<f32>());
            refusal = taken.err();
            if refusal.is_some() || here.strong_count() == 0 {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let decoded = self.recording.audio.decode(self.config.sample_rate_hz, &limits, &mut watch);
        let samples = refusal.map_or(decoded.map_err(audio), Err)?;
        let config = EncoderConfig { total_samples: Some(samples.len() as u64), ..self.config };
        let mut encoder = self.format.encoder(&config).map_err(encoding::refused)?;
        let mut bytes = Vec::new();
        for block in samples.chunks(BLOCK_SAMPLES) {
            if here.strong_count() == 0 {
                return Err(audio(DecodeError::Stopped));
            }
            bytes.extend(encoder.push(block).map_err(encoding::refused)?);
        }
        bytes.extend(encoder.finish().map_err(encoding::refused)?);
        Ok(bytes.into())
    }
}
