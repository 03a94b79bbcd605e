//! Python wheels, through pip.

use super::archive::Format;
use super::client::Client;

/// `-m pip`, which ends with the process that holds the other end of its input.
const PIP_THAT_ENDS: &str = "import os, runpy, sys, threading; \
     threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start(); \
     sys.argv[0] = 'pip'; \
     runpy.run_module('pip', run_name='__main__', alter_sys=True)";

pub(super) const PIP: Client = Client {
    name: "pip",
    version_separator: "==",
    has_scopes: false,
    format: Format::Zip,
    programs: |access| &access.python,
    command: &["-I", "-m", "pip", "download"],
    // `-I`: neither the working folder nor PYTHON* variables add modules.
    arguments: &["-I", "-c", PIP_THAT_ENDS, "download"],
    options: &[
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--dest",
    ],
    platform: Some("--platform"),
    missing: Some("No module named pip"),
    remedy: "install Python with pip (e.g. the package python3-pip)",
};
