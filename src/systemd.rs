//! Tells systemd how the service is: ready, stopping, alive.
//!
//! The protocol is one datagram of text lines to the socket that `NOTIFY_SOCKET` names; no library
//! is needed for it. Without that variable nothing is sent.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The way to the service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The notifier of this process, if a service manager wants to be told.
    pub fn from_environment() -> Option<Self> {
        let name = env::var("NOTIFY_SOCKET").ok()?;
        let ours = |pid: String| pid.parse() == Ok(std::process::id());
        let watched = env::var("WATCHDOG_PID").map_or(true, ours);
        let watchdog = env::var("WATCHDOG_USEC").ok().filter(|_| watched);
        Self::new(&name, watchdog.and_then(|usec| usec.parse().ok()))
    }

    /// A notifier to the socket `name`; `@` in front stands for the abstract namespace.
    fn new(name: &str, watchdog_usec: Option<u64>) -> Option<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(name),
        };
        Some(Self {
            socket: UnixDatagram::unbound().ok()?,
            address: address.ok()?,
            watchdog: watchdog_usec
                .filter(|usec| *usec > 0)
                .map(Duration::from_micros),
        })
    }

    /// How often [`Notifier::alive`] is to be called: twice per watchdog period.
    pub fn alive_interval(&self) -> Option<Duration> {
        self.watchdog.map(|period| period / 2)
    }

    /// Requests are served from now on.
    pub fn ready(&self, status: &str) {
        let status: String = status.chars().filter(|c| !c.is_control()).collect();
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The stop has begun.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// The control thread runs.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, text: &str) {
        if let Err(error) = self.socket.send_to_addr(text.as_bytes(), &self.address) {
            tracing::debug!("systemd was not told {text:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("timeout");
        let mut buffer = [0; 256];
        let size = socket.recv(&mut buffer).expect("a datagram");
        String::from_utf8_lossy(&buffer[..size]).into_owned()
    }

    #[test]
    fn the_manager_hears_of_start_life_and_stop() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bind");
        let notifier =
            Notifier::new(path.to_str().expect("path"), Some(3_000_000)).expect("notifier");
        assert_eq!(notifier.alive_interval(), Some(Duration::from_millis(1500)));
        notifier.ready("serving\non 10911");
        assert_eq!(received(&manager), "READY=1\nSTATUS=servingon 10911");
        notifier.alive();
        assert_eq!(received(&manager), "WATCHDOG=1");
        notifier.stopping();
        assert_eq!(received(&manager), "STOPPING=1");
    }

    #[test]
    fn an_abstract_socket_is_reached() {
        let name = format!("saturnmq-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("address");
        let manager = UnixDatagram::bind_addr(&address).expect("bind");
        Notifier::new(&format!("@{name}"), None)
            .expect("notifier")
            .alive();
        assert_eq!(received(&manager), "WATCHDOG=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_no_error() {
        Notifier::new("/nonexistent/notify", None)
            .expect("notifier")
            .stopping();
    }
}
