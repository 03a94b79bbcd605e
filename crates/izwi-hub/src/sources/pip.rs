//! Python wheels, through pip.

use super::archive::Format;
use super::client::Client;

pub(super) const PIP: Client = Client {
    name: "pip",
    version_separator: "==",
    has_scopes: false,
    format: Format::Zip,
    programs: |access| &access.python,
    // `-I`: neither the working folder nor PYTHON* variables add modules.
    command: &["-I", "-m", "pip", "download"],
    options: &[
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--dest",
    ],
    missing: Some("No module named pip"),
    remedy: "install Python with pip (e.g. the package python3-pip)",
};
