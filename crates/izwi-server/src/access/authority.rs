//! Strict reading of `Host` and of origins (<https://www.rfc-editor.org/rfc/rfc3986#section-3.2>). Knows no rule of access.

use std::net::{IpAddr, Ipv6Addr};

/// The host of an authority, in lower case, without port, brackets and the final dot. `None` for anything that is not
/// `host`, `host:port`, `[address]` or `[address]:port`: what a browser and this server may read differently.
pub(super) fn host_of(authority: &str) -> Option<String> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let is_port = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return address.parse::<Ipv6Addr>().ok().filter(|_| is_port).map(|address| address.to_string());
    }
    let name = match authority.split_once(':') {
        Some((name, port)) => is_port(port).then_some(name)?,
        None => authority,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_name_byte);
    name.split('.').all(is_label).then(|| name.to_ascii_lowercase())
}

/// The host of a configured name, which may be an address without brackets too.
pub(super) fn configured_host(name: &str) -> Option<String> {
    let name = name.trim();
    match name.parse::<IpAddr>() {
        Ok(address) => Some(address.to_string()),
        Err(_) => host_of(name),
    }
}

/// The parts of an origin as browsers send it: a scheme, and a host with its port. `None` for anything else.
pub(super) fn origin_parts(origin: &str) -> Option<(&str, String)> {
    let (scheme, authority) = origin.split_once("://")?;
    Some((scheme, host_of(authority)?))
}

/// Whether it is a port; it may be empty.
fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && (text.is_empty() || text.parse::<u16>().is_ok())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_a_host_and_a_port_and_nothing_else() {
        let cases = [
            ("localhost", Some("localhost")),
            ("LOCALHOST:8080", Some("localhost")),
            ("localhost.", Some("localhost")),
            ("localhost:", Some("localhost")),
            ("my_host-1.example.com:65535", Some("my_host-1.example.com")),
            ("127.0.0.1:1", Some("127.0.0.1")),
            ("[::1]", Some("::1")),
            ("[0:0:0:0:0:0:0:1]:8080", Some("::1")),
            ("[::ffff:127.0.0.1]:80", Some("::ffff:127.0.0.1")),
            ("[::1]evil.com", None),
            ("[::1]:80evil.com", None),
            ("[::1].evil.com", None),
            ("[::1]:80:80", None),
            ("[::1", None),
            ("[", None),
            ("[]", None),
            ("[::1%25eth0]", None),
            ("[127.0.0.1]", None),
            ("[localhost]", None),
            ("::1", None),
            ("", None),
            (":", None),
            (":80", None),
            (".", None),
            ("..", None),
            ("localhost..", None),
            (".localhost", None),
            ("a..localhost", None),
            ("localhost:80:80", None),
            ("localhost:65536", None),
            ("localhost:+80", None),
            ("localhost:80/evil", None),
            ("localhost/evil.com", None),
            ("localhost\\evil.com", None),
            ("localhost#evil.com", None),
            ("localhost?evil.com", None),
            ("user@localhost", None),
            ("localhost@evil.com", None),
            ("localhost,evil.com", None),
            ("localhost evil.com", None),
            (" localhost", None),
            ("localhost\t", None),
            ("local%68ost", None),
            ("locälhost", None),
            ("localhost\0", None),
        ];
        for (authority, expected) in cases {
            assert_eq!(host_of(authority).as_deref(), expected, "{authority:?}");
        }
    }

    #[test]
    fn configured_hosts_may_be_bare_addresses() {
        for (name, expected) in [
            ("::1", Some("::1")),
            ("[fd00::7]:8080", Some("fd00::7")),
            (" Speech.Example.com. ", Some("speech.example.com")),
            ("192.168.1.5", Some("192.168.1.5")),
            ("https://example.com", None),
        ] {
            assert_eq!(configured_host(name).as_deref(), expected, "{name:?}");
        }
    }
}
