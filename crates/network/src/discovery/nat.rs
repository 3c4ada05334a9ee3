//! Which address others see this node under.

use super::net::{Subnet, is_address, is_local};
use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    str::FromStr,
    time::{Duration, Instant},
};

/// How a node learns its address (`--nat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nat {
    /// From the nodes that answer it: each says where a packet has come from.
    #[default]
    Any,
    /// Not at all: what it listens on is its address.
    None,
    /// By being told.
    ExtIp(IpAddr),
}

/// Why a text is no value of `--nat`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatError {
    /// A way that geth or reth have and this node has not.
    #[error(
        "`{0}` is not supported: no router is asked. Use `any` (the address that peers report), \
         `extip:IP` or `none`, and forward the port yourself"
    )]
    Unsupported(String),
    /// After `extip:`.
    #[error("`{0}` is no IP address that others can reach; `extip:203.0.113.7` is one")]
    Address(String),
    /// Anything else.
    #[error("`{0}` is none of `any`, `none` and `extip:IP`")]
    Unknown(String),
}

impl FromStr for Nat {
    type Err = NatError;

    fn from_str(text: &str) -> Result<Self, NatError> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("any", "") => Ok(Self::Any),
            ("none", "") => Ok(Self::None),
            ("extip", ip) => {
                let address = ip.parse().ok().filter(|ip| is_address(*ip));
                address.map(Self::ExtIp).ok_or_else(|| NatError::Address(ip.into()))
            }
            ("upnp" | "pmp" | "natpmp" | "publicip" | "stun" | "extaddr" | "netif", _) => {
                Err(NatError::Unsupported(text.into()))
            }
            _ => Err(NatError::Unknown(text.into())),
        }
    }
}

impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::None => f.write_str("none"),
            Self::ExtIp(ip) => write!(f, "extip:{ip}"),
        }
    }
}

/// Networks that have to agree at least. Whoever has nodes in that many can make a node tell a wrong
/// address; it is then not found by others, and finds them as before.
const MIN_VOTES: usize = 5;
/// How long a vote counts.
const VOTE_LIFE: Duration = Duration::from_secs(600);
/// Networks whose votes are kept.
const MAX_VOTERS: usize = 512;

/// What nodes say our address is: a vote for each network they are in.
#[derive(Debug, Default)]
pub(super) struct Votes(HashMap<Voter, (IpAddr, Instant)>);

#[derive(Debug, PartialEq, Eq, Hash)]
enum Voter {
    Subnet(Subnet),
    /// Within a local network every machine counts.
    Local(IpAddr),
}

impl Votes {
    /// Counts what a node at `voter` says. The address that most say, if that are enough and more than
    /// half of all.
    pub(super) fn add(&mut self, voter: IpAddr, says: IpAddr, now: Instant) -> Option<IpAddr> {
        // A neighbour in our own network sees another address than the world does.
        if !is_address(says) || (is_local(says) && !is_local(voter)) {
            return None;
        }
        let voter =
            if is_local(voter) { Voter::Local(voter) } else { Voter::Subnet(Subnet::of(voter)) };
        self.0.retain(|_, (_, at)| now.saturating_duration_since(*at) < VOTE_LIFE);
        if self.0.len() >= MAX_VOTERS && !self.0.contains_key(&voter) {
            return None;
        }
        self.0.insert(voter, (says.to_canonical(), now));
        let count = self.0.values().filter(|(ip, _)| *ip == says.to_canonical()).count();
        (count >= MIN_VOTES && count * 2 > self.0.len()).then(|| says.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_flag_are_read_and_others_are_explained() {
        for text in ["any", "none", "extip:203.0.113.7", "extip:2001:db8::1"] {
            assert_eq!(text.parse::<Nat>().unwrap().to_string(), text);
        }
        assert!(matches!("upnp".parse::<Nat>(), Err(NatError::Unsupported(_))));
        assert!(matches!("stun:1.2.3.4:5".parse::<Nat>(), Err(NatError::Unsupported(_))));
        assert!(matches!("extip:0.0.0.0".parse::<Nat>(), Err(NatError::Address(_))));
        assert!(matches!("extip:".parse::<Nat>(), Err(NatError::Address(_))));
        assert!(matches!("yes".parse::<Nat>(), Err(NatError::Unknown(_))));
    }

    #[test]
    fn one_network_has_one_vote_and_old_votes_do_not_count() {
        let (now, ours, wrong) =
            (Instant::now(), [203, 0, 113, 7].into(), [198, 51, 100, 1].into());
        let mut votes = Votes::default();
        for host in 0..200 {
            assert_eq!(votes.add([9, 9, 9, host].into(), wrong, now), None);
        }
        for net in 0..4 {
            assert_eq!(votes.add([8, 8, net, 1].into(), ours, now), None);
        }
        assert_eq!(votes.add([8, 8, 4, 1].into(), ours, now), Some(ours));
        // A minority stays one, and all are forgotten in the end.
        assert_eq!(votes.add([8, 8, 5, 1].into(), wrong, now), None);
        let later = now + VOTE_LIFE;
        assert_eq!(votes.add([8, 8, 6, 1].into(), ours, later), None);
        assert_eq!(votes.0.len(), 1);
        // Local addresses are told by local nodes alone.
        assert_eq!(votes.add([8, 8, 7, 1].into(), [10, 0, 0, 1].into(), later), None);
        assert_eq!(votes.0.len(), 1);
    }
}
