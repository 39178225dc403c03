//! The address clients are told to connect to.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// Where the advertised address comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advertised {
    /// `brokerIP1` or `--advertise`.
    Configured,
    /// The one address that is listened on.
    Bound,
    /// Chosen among the host's addresses, as Apache chooses `brokerIP1`.
    Picked,
}

/// Chooses an address of this host as Apache does: the first IPv4 address that is neither loopback
/// nor 192.168, of an interface that is up and no bridge or point-to-point link; else the last IPv4
/// address; else the first IPv6 address; else loopback.
pub fn pick_address() -> IpAddr {
    pick(host_addresses())
}

fn host_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    interfaces
        .filter(|interface| {
            let flags = interface.flags;
            flags.contains(InterfaceFlags::IFF_UP)
                && !flags.intersects(InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_POINTOPOINT)
                && !is_bridge(&interface.interface_name)
        })
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
        })
        .filter(|ip| !ip.is_loopback())
        .collect()
}

fn is_bridge(interface: &str) -> bool {
    Path::new("/sys/class/net")
        .join(interface)
        .join("bridge")
        .exists()
}

fn pick(addresses: Vec<IpAddr>) -> IpAddr {
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let ordinary = |ip: &&IpAddr| match ip {
        IpAddr::V4(ip) => !matches!(ip.octets(), [127, 0, ..] | [192, 168, ..] | [0, ..]),
        IpAddr::V6(_) => false,
    };
    v4.iter()
        .find(ordinary)
        .or(v4.last())
        .or(v6.first())
        .copied()
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Why clients on other hosts may not reach what is advertised; `None` when nothing speaks against
/// it.
pub fn advertised_reason(bind: IpAddr, advertised: IpAddr) -> Option<String> {
    if bind.is_loopback() && advertised.is_loopback() {
        return None;
    }
    if advertised.is_loopback() {
        return Some(format!(
            "clients on other hosts are sent to {advertised}, themselves; set brokerIP1 or \
             --advertise to an address of this host that they reach"
        ));
    }
    if !bind.is_unspecified() && bind != advertised {
        return Some(format!(
            "clients are sent to {advertised}, and only {bind} is listened on; that works only \
             where the one is forwarded to the other"
        ));
    }
    let in_container =
        Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists();
    let private = matches!(advertised, IpAddr::V4(ip) if ip.octets()[0] == 172 && ip.is_private());
    (in_container && private).then(|| {
        format!(
            "{advertised} is an address inside a container network; clients outside it need \
             brokerIP1 or --advertise set to the host's address"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts
            .iter()
            .map(|t| t.parse().expect("test address"))
            .collect()
    }

    #[test]
    fn the_address_is_chosen_as_apache_chooses_it() {
        let chosen = |texts: &[&str]| pick(ips(texts)).to_string();
        assert_eq!(chosen(&["192.168.1.5", "10.0.0.7", "10.0.0.8"]), "10.0.0.7");
        assert_eq!(chosen(&["192.168.1.5", "192.168.2.5"]), "192.168.2.5");
        assert_eq!(chosen(&["fd00::1", "192.168.2.5"]), "192.168.2.5");
        assert_eq!(chosen(&["fd00::1", "fd00::2"]), "fd00::1");
        assert_eq!(chosen(&[]), "127.0.0.1");
    }

    #[test]
    fn an_address_that_others_cannot_reach_is_warned_about() {
        let any: IpAddr = Ipv4Addr::UNSPECIFIED.into();
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert!(advertised_reason(any, loopback).is_some());
        assert!(advertised_reason(loopback, loopback).is_none());
        let other = ips(&["10.1.1.1", "10.1.1.2"]);
        assert!(advertised_reason(loopback, other[0]).is_some());
        assert!(advertised_reason(other[0], other[1]).is_some());
        assert!(advertised_reason(other[0], other[0]).is_none());
    }
}
