//! Ranges of the numbers in the table of settings.

use izwi_core::engine::request::MAX_TEXT_CHARS;

use super::field::Kind;

pub(super) const ANY_NUMBER: Kind = Kind::Whole { min: 0, max: u64::MAX };
pub(super) const ANY_COUNT: Kind = Kind::Whole { min: 1, max: u64::MAX };
/// Each chunk in the buffer takes memory.
pub(super) const CHUNKS: Kind = Kind::Whole { min: 1, max: 65_536 };
pub(super) const BATCH: Kind = Kind::Whole { min: 1, max: 1_024 };
pub(super) const THREADS: Kind = Kind::Whole { min: 1, max: 1_024 };
pub(super) const PORT: Kind = Kind::Whole { min: 0, max: 65_535 };
/// The limit of the engine for one request.
pub(super) const TEXT: Kind = Kind::Whole { min: 1, max: MAX_TEXT_CHARS as u64 };
/// The limit of a semaphore on every platform.
pub(super) const PERMITS: Kind = Kind::Whole { min: 1, max: 1 << 20 };
pub(super) const BYTES: Kind = Kind::Whole { min: 1_024, max: 1 << 30 };
/// The limit of memory on 32-bit platforms.
pub(super) const UPLOAD: Kind = Kind::Whole { min: 1_024, max: 1 << 30 };
/// Bytes per second.
pub(super) const RATE: Kind = Kind::Whole { min: 0, max: 1 << 30 };
/// At most a month.
pub(super) const TTL: Kind = Kind::Whole { min: 0, max: 2_592_000 };
/// At most an hour of audio for each session.
pub(super) const WINDOW: Kind = Kind::Whole { min: 0, max: 3_600 };
/// At most an hour: clients do not wait longer.
pub(super) const LOADING: Kind = Kind::Whole { min: 1, max: 3_600 };
/// At most a petabyte, which fits in bytes.
pub(super) const MEBIBYTES: Kind = Kind::Whole { min: 0, max: 1 << 30 };
pub(super) const STATE_MEBIBYTES: Kind = Kind::Whole { min: 1, max: 1 << 30 };
/// hyper refuses smaller buffers.
pub(super) const HEAD_BYTES: Kind = Kind::Whole { min: 8_192, max: 1 << 20 };
/// At most a day.
pub(super) const SECONDS: Kind = Kind::Whole { min: 1, max: 86_400 };
