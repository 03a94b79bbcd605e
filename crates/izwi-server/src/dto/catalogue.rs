//! Models that can be installed, and pulls of them.

use serde::Serialize;
use utoipa::ToSchema;

use super::schemas;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CatalogueList {
    #[schema(schema_with = schemas::list_object)]
    pub(crate) object: &'static str,
    pub(crate) data: Vec<CatalogueObject>,
}

/// A model that this server can install.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CatalogueObject {
    pub(crate) id: String,
    #[schema(schema_with = schemas::catalogue_object)]
    pub(crate) object: &'static str,
    pub(crate) description: String,
    #[schema(schema_with = schemas::tasks)]
    pub(crate) tasks: Vec<&'static str>,
    /// BCP 47 tags.
    pub(crate) languages: Vec<String>,
    /// SPDX expression of the weights' licence.
    pub(crate) licence: String,
    /// Whether it clones the voice of a recording.
    pub(crate) clones_voices: bool,
    /// Bytes of a pull; `None` where only the hub knows.
    pub(crate) download_bytes: Option<u64>,
    pub(crate) installed: bool,
    /// Bytes of the installed files; 0 if it is not installed.
    pub(crate) bytes: u64,
    /// The pull that runs, or the last one if it failed.
    pub(crate) pull: Option<PullObject>,
}

/// A pull that runs or has failed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PullObject {
    #[schema(schema_with = schemas::pull_state)]
    pub(crate) state: &'static str,
    /// The file that is downloaded.
    pub(crate) file: Option<String>,
    /// Bytes of `file` that are on disk.
    pub(crate) done_bytes: u64,
    /// Bytes of `file`; 0 if unknown.
    pub(crate) total_bytes: u64,
    /// What continues alongside a download, or why the pull failed.
    pub(crate) message: Option<String>,
}
