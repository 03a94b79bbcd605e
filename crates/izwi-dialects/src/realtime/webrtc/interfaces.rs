//! The addresses of this machine, each with a socket for one call.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// Addresses of a machine that are offered.
const MAX_ADDRESSES: usize = 8;
/// Datagrams that wait to be read; more are lost, as on any network.
const MAX_WAITING: usize = 256;
/// Longer than what networks carry.
const MAX_DATAGRAM_BYTES: usize = 2_048;

/// A datagram, with both ends of its way.
pub(super) struct Datagram {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

/// The sockets of a call.
pub(super) struct Sockets {
    sockets: Vec<(SocketAddr, Arc<UdpSocket>)>,
    datagrams: mpsc::Receiver<Datagram>,
    readers: tokio::task::JoinSet<()>,
}

impl Sockets {
    /// Opens a socket on each address: browsers on this machine take its own address rather than that of the loopback.
    ///
    /// # Errors
    /// No address has a free port.
    pub(super) async fn open() -> io::Result<Self> {
        let mut addresses: Vec<_> = if_addrs::get_if_addrs()?.iter().map(if_addrs::Interface::ip).collect();
        // Those that need a zone cannot be candidates.
        addresses.retain(|address| match address {
            std::net::IpAddr::V4(v4) => !v4.is_link_local(),
            std::net::IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        });
        addresses.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
        let (sender, datagrams) = mpsc::channel(MAX_WAITING);
        let (mut sockets, mut readers) = (Vec::new(), tokio::task::JoinSet::new());
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            let socket = match UdpSocket::bind((address, 0)).await {
                Ok(socket) => Arc::new(socket),
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let destination = socket.local_addr()?;
            sockets.push((destination, Arc::clone(&socket)));
            readers.spawn(read(socket, destination, sender.clone()));
        }
        if sockets.is_empty() { Err(failure) } else { Ok(Self { sockets, datagrams, readers }) }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().map(|(address, _)| *address)
    }

    /// The next datagram that came. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Datagram> {
        self.datagrams.recv().await
    }

    /// Sends a datagram from one of the addresses; what the network does not take is lost.
    pub(super) async fn send(&self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let Some((_, socket)) = self.sockets.iter().find(|(address, _)| *address == from) else { return };
        if let Err(error) = socket.send_to(bytes, to).await {
            tracing::debug!(%from, %to, %error, "a datagram was not sent");
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.readers.abort_all();
    }
}

async fn read(socket: Arc<UdpSocket>, destination: SocketAddr, sender: mpsc::Sender<Datagram>) {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        // An error tells of a datagram that was sent, whose receiver is gone.
        let Ok((length, source)) = socket.recv_from(&mut buffer).await else { continue };
        let datagram = Datagram { source, destination, bytes: buffer[..length].to_vec() };
        if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(datagram) {
            return;
        }
    }
}
