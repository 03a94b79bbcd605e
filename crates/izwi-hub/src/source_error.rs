//! Why a source cannot give a model.

use std::path::PathBuf;

use crate::convert::ConversionError;
use crate::io_error::IoError;

/// Why a source cannot give a model.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The hub is disabled.
    #[error("HF_HUB_OFFLINE disables the hub: unset it")]
    Offline,
    /// The hub gave no answer to the first request.
    #[error("{endpoint} cannot be reached ({cause}): check the network, or set HF_ENDPOINT to a mirror")]
    Unreachable {
        /// Address of the hub.
        endpoint: String,
        /// The network error; part of the message.
        cause: Box<ureq::Error>,
    },
    /// The connection failed in each of several attempts.
    #[error("{url} could not be read: check the network, or set HF_ENDPOINT to a mirror")]
    Request {
        /// Address of the file.
        url: String,
        /// The network error.
        #[source]
        source: Box<ureq::Error>,
    },
    /// A redirect leads to an address without encryption.
    #[error(
        "the unencrypted address {target} is refused; set HF_ENDPOINT to a hub that redirects to https only"
    )]
    Unencrypted {
        /// The address, shortened.
        target: String,
    },
    /// The server answered with an error.
    #[error("{url} answered {status}: {remedy}")]
    Status {
        /// Address of the file.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What to do.
        remedy: &'static str,
    },
    /// A file has another length than the manifest or the hub states.
    #[error("{file} has {found} bytes where {expected} are stated: the publisher changed it")]
    Size {
        /// The file.
        file: String,
        /// Stated bytes.
        expected: u64,
        /// Bytes of the source's file; at least this many.
        found: u64,
    },
    /// A file has another hash than the manifest or the hub states. The download is removed.
    #[error("{file} has the hash {found} where {expected} is stated: it was removed; pull again")]
    Checksum {
        /// The file.
        file: String,
        /// Stated hash.
        expected: String,
        /// Hash of the download.
        found: String,
    },
    /// A file differs from the one that the first pull recorded.
    #[error(
        "{file} has sha256 {found} where an earlier pull recorded {expected}: the publisher changed it; pull \
         with --accept-changes to install the changed file"
    )]
    Changed {
        /// The file.
        file: String,
        /// Recorded hash.
        expected: String,
        /// Hash that the source states.
        found: String,
    },
    /// Neither the manifest nor the hub states a hash of the file.
    #[error("{file}: the hub states no hash, so it cannot be verified; set HF_ENDPOINT to a hub that does")]
    NoHash {
        /// The file.
        file: String,
    },
    /// An index of a model's files cannot be used.
    #[error("{file} {reason}")]
    Index {
        /// The index.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The disk has no room for the files.
    #[error(
        "{need} bytes of free space are needed, and the disk of {} has {free}: free some space or set IZWI_HOME to \
         another disk",
        folder.display()
    )]
    NoRoom {
        /// Where the files were to be written.
        folder: PathBuf,
        /// What they need, conversion and some spare included.
        need: u64,
        /// What the disk has.
        free: u64,
    },
    /// The package client is not on this machine.
    #[error("no package client found (tried {tried}): {remedy}")]
    NoClient {
        /// The commands.
        tried: String,
        /// What to install.
        remedy: &'static str,
    },
    /// The package client failed.
    #[error("`{command}` failed: {output}")]
    Client {
        /// The command.
        command: String,
        /// The end of its output.
        output: String,
    },
    /// An archive cannot be opened, lacks a file or has a file with an unsafe name.
    #[error("{archive}: {reason}")]
    Archive {
        /// The package.
        archive: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file cannot be converted.
    #[error("{file} could not be converted")]
    Convert {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: ConversionError,
    },
    /// A file operation failed; another source would not help.
    #[error(transparent)]
    Io(#[from] IoError),
}
