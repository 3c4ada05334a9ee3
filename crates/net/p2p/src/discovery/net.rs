//! Addresses: which are local, which are in one network, and which may be passed on.

use std::net::IpAddr;

/// Whether an address is of this machine or of a local network. Subnet limits do not hold for
/// these, since all nodes of such a network are in one subnet.
pub(super) fn is_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Whether a node can have this address: it is not unspecified, multicast or broadcast.
pub(super) fn is_address(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

/// Whether a node at `teller` can know the address `told`: local addresses are known only in the
/// same network, loopback addresses only on the same machine. This keeps remote nodes from making
/// this node send packets into its own network.
pub(super) fn can_know(teller: IpAddr, told: IpAddr) -> bool {
    let (teller, told) = (teller.to_canonical(), told.to_canonical());
    is_address(told)
        && (!told.is_loopback() || teller.is_loopback())
        && (!is_local(told) || is_local(teller))
}

/// A network for limits: /24 of IPv4, /32 (what a provider gets) of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Subnet(bool, [u8; 4]);

impl Subnet {
    pub(super) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                Self(false, [a, b, c, 0])
            }
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.octets();
                Self(true, [a, b, c, d])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_outside_can_tell_of_addresses_inside() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (teller, told, may) in [
            ("8.8.8.8", "9.9.9.9", true),
            ("8.8.8.8", "10.0.0.1", false),
            ("8.8.8.8", "::ffff:10.0.0.1", false),
            ("8.8.8.8", "169.254.1.1", false),
            ("8.8.8.8", "127.0.0.1", false),
            ("8.8.8.8", "0.0.0.0", false),
            ("8.8.8.8", "224.0.0.1", false),
            ("8.8.8.8", "255.255.255.255", false),
            ("8.8.8.8", "fd00::1", false),
            ("10.0.0.2", "10.0.0.1", true),
            ("10.0.0.2", "127.0.0.1", false),
            ("10.0.0.2", "9.9.9.9", true),
            ("127.0.0.1", "127.0.0.2", true),
            ("127.0.0.1", "192.168.1.1", true),
            ("2001:db8::1", "fe80::1", false),
        ] {
            assert_eq!(can_know(ip(teller), ip(told)), may, "{teller} tells of {told}");
        }
        assert_eq!(Subnet::of(ip("1.2.3.4")), Subnet::of(ip("::ffff:1.2.3.99")));
        assert_ne!(Subnet::of(ip("1.2.3.4")), Subnet::of(ip("1.2.4.4")));
        assert_ne!(Subnet::of(ip("1.2.3.0")), Subnet::of(ip("102:300::")));
        assert_eq!(Subnet::of(ip("2001:db8:1::1")), Subnet::of(ip("2001:db8:2::1")));
    }
}
