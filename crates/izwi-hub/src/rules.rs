//! Rules that names, paths and hashes from files must keep. Knows no manifest and no folder.

const MAX_NAME_BYTES: usize = 64;
const MAX_PATH_BYTES: usize = 512;
const SHA256_DIGITS: usize = 64;

/// What [`is_plain_name`] accepts, for messages.
pub(crate) const PLAIN_NAME: &str = "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit";
/// What [`is_safe_path`] accepts, for messages.
pub(crate) const SAFE_PATH: &str = "a relative path of plain names, none beginning with '.'";
/// What [`is_sha256`] accepts, for messages.
pub(crate) const SHA256: &str = "must be 64 lower-case hex digits";

/// Whether `name` can name a model or a voice. Such a name has no meaning to a shell, a path or a URL.
pub(crate) fn is_plain_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
        })
}

/// Whether `text` has letters, digits, `.`, `_`, `-` and `more` only and begins with a letter or digit.
pub(crate) fn is_identifier(text: &str, more: &str) -> bool {
    text.len() <= MAX_PATH_BYTES
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c) || more.contains(c))
}

/// Whether `path` stays inside the folder it is joined to, on every system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES
        && path.split('/').all(|name| !name.is_empty() && !name.starts_with('.') && !name.ends_with('.'))
        && !path.contains(|c: char| c.is_control() || "\\:*?\"<>|".contains(c))
}

/// Whether `text` is a SHA-256 in lower-case hex.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == SHA256_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The message of a rule that does not hold.
pub(crate) fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_paths_stay_in_the_folder() {
        for path in
            ["/etc/passwd", "../a", "a/../b", "a//b", "", ".", "C:/a", "a\\b", ".izwi.json", "a/.b", "a\0b"]
        {
            assert!(!is_safe_path(path), "{path:?}");
        }
        for path in ["a", "a/b.json", "LICENSE", "x-1.0.dist-info/licenses/LICENSE", "a b"] {
            assert!(is_safe_path(path), "{path:?}");
        }
    }
}
