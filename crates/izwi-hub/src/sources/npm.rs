//! Node tarballs, through npm.

use super::archive::Format;
use super::client::Client;

pub(super) const NPM: Client = Client {
    name: "npm",
    version_separator: "@",
    has_scopes: true,
    format: Format::TarGz,
    programs: |access| &access.npm,
    command: &["pack"],
    arguments: &["pack"],
    // `--prefix`: no folder above the working folder is taken for a project with settings.
    options: &["--silent", "--ignore-scripts", "--workspaces=false", "--prefix=.", "--pack-destination"],
    platform: None,
    missing: None,
    remedy: "install Node.js, which brings npm",
};
