//! Announcement of the Wyoming port by multicast DNS, so that Home Assistant finds it.
//!
//! Source: `zeroconf.py` of the package `wyoming` 1.10.2.

use std::net::SocketAddr;

use mdns_sd::{ServiceDaemon, ServiceInfo};

const SERVICE: &str = "_wyoming._tcp.local.";

/// An announcement, withdrawn when it is dropped.
pub(crate) struct Announcement {
    daemon: ServiceDaemon,
    name: String,
}

/// Announces the port of `address`. `None` if nobody else could reach it, or multicast does not work here: the service runs
/// without.
pub(crate) fn announce(address: SocketAddr) -> Option<Announcement> {
    if address.ip().is_loopback() {
        tracing::warn!(%address, "the wyoming port is not announced: other machines cannot reach a loopback address");
        return None;
    }
    let announced = || -> Result<Announcement, mdns_sd::Error> {
        let service = service(address)?;
        let (daemon, name) = (ServiceDaemon::new()?, service.get_fullname().to_owned());
        daemon.register(service)?;
        tracing::info!(%address, name, "wyoming port announced");
        Ok(Announcement { daemon, name })
    };
    announced().inspect_err(|error| tracing::error!(%error, "the wyoming port could not be announced")).ok()
}

/// The service: on every address of this machine if every address is bound.
fn service(address: SocketAddr) -> Result<ServiceInfo, mdns_sd::Error> {
    let host = sysinfo::System::host_name().unwrap_or_else(|_| "izwi".to_owned());
    // One label: dots and blanks would divide it.
    let host: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(50).collect();
    let (name, host_name) = (format!("izwi-{host}"), format!("{host}.local."));
    let properties: [(&str, &str); 0] = [];
    let ip = address.ip();
    if ip.is_unspecified() {
        let service = ServiceInfo::new(SERVICE, &name, &host_name, "", address.port(), &properties[..])?;
        return Ok(service.enable_addr_auto());
    }
    ServiceInfo::new(SERVICE, &name, &host_name, ip, address.port(), &properties[..])
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // The daemon works its commands off in order. One that has ended announces nothing.
        drop(self.daemon.unregister(&self.name));
        drop(self.daemon.shutdown());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_bound_address_or_all() {
        let service = |address: &str| service(address.parse().unwrap()).unwrap();
        let bound = service("192.0.2.7:10200");
        assert_eq!((bound.get_type(), bound.get_port()), (SERVICE, 10_200));
        assert_eq!(bound.get_addresses().len(), 1);
        assert!(bound.get_fullname().starts_with("izwi-"), "{}", bound.get_fullname());
        assert!(!bound.is_addr_auto() && service("0.0.0.0:1").is_addr_auto());
        assert!(announce("127.0.0.1:10200".parse().unwrap()).is_none());
    }
}
