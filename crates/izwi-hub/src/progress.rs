//! Progress of a pull. Knows neither terminal nor log.

/// Receives the progress of a pull, on the pulling thread.
pub trait ProgressSink {
    /// A file of `total` bytes begins, or begins again from zero.
    fn start(&mut self, file: &str, total: u64);
    /// `bytes` more of the current file are on disk.
    fn advance(&mut self, bytes: u64);
    /// The current file ended, complete or not.
    fn finish(&mut self);
    /// A phase without a byte count, or a failed source.
    fn note(&mut self, message: &str);
}

/// Reports nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl ProgressSink for Silent {
    fn start(&mut self, _file: &str, _total: u64) {}
    fn advance(&mut self, _bytes: u64) {}
    fn finish(&mut self) {}
    fn note(&mut self, _message: &str) {}
}
