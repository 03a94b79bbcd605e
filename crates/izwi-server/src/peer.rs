//! Who is at the other end of a connection, as far as limits count it.

use std::net::{IpAddr, Ipv6Addr};

/// A peer: an IPv4 address, the first 64 bits of an IPv6 address (one host has them all), or this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            loopback if loopback.is_loopback() => loopback,
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        })
    }

    /// Whether it is this machine.
    pub(crate) fn is_loopback(self) -> bool {
        self.0.is_loopback()
    }

    /// Where its address belongs to: `loopback`, `private` or `public`.
    pub(crate) fn class(self) -> &'static str {
        let is_private = match self.0 {
            IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
        };
        match (self.is_loopback(), is_private) {
            (true, _) => "loopback",
            (false, true) => "private",
            (false, false) => "public",
        }
    }
}

/// The connection that a request came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) peer: Peer,
    /// Whether its connection has a place that is kept for probes.
    pub(crate) only_probes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_one_peer() {
        let peer = |address: &str| Peer::of(address.parse().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
        assert!(peer("::1").is_loopback() && peer("127.0.0.9").is_loopback());
        assert!(!peer("::2").is_loopback());
    }

    #[test]
    fn addresses_have_a_class() {
        for (address, class) in [
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("10.1.2.3", "private"),
            ("192.168.0.7", "private"),
            ("169.254.1.1", "private"),
            ("fd00::1", "private"),
            ("fe80::1", "private"),
            ("192.0.2.1", "public"),
            ("2001:db8::1", "public"),
        ] {
            assert_eq!(Peer::of(address.parse().unwrap()).class(), class, "{address}");
        }
    }
}
