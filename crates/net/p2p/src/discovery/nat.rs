//! The external address of this node, as other nodes see it.

use super::net::{Subnet, is_address, is_local};
use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    str::FromStr,
    time::{Duration, Instant},
};

/// How the node learns its external address (`--nat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatMode {
    /// From the nodes that answer it: each says from where a packet came.
    #[default]
    Any,
    /// Not at all: the address it listens on is the external one.
    None,
    /// From the operator.
    ExtIp(IpAddr),
}

/// Why a text is no value of `--nat`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatError {
    /// A method of geth or reth that this node does not have.
    #[error(
        "`{0}` is not supported: no router is asked. Use `any` (the address that peers report), \
         `extip:IP` or `none`, and forward the port yourself"
    )]
    Unsupported(String),
    /// The address after `extip:` is invalid.
    #[error("`{0}` is no IP address that others can reach; `extip:203.0.113.7` is one")]
    Address(String),
    /// Anything else.
    #[error("`{0}` is none of `any`, `none` and `extip:IP`")]
    Unknown(String),
}

impl FromStr for NatMode {
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

impl fmt::Display for NatMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::None => f.write_str("none"),
            Self::ExtIp(ip) => write!(f, "extip:{ip}"),
        }
    }
}

/// Minimum number of networks that agree. An attacker with nodes in that many can make this node
/// announce a wrong address; then others do not find it, but it still finds them.
const MIN_VOTES: usize = 5;
/// How long a vote counts.
const VOTE_LIFE: Duration = Duration::from_secs(600);
/// Maximum number of networks whose votes are kept.
const MAX_VOTERS: usize = 512;

/// The addresses that other nodes see for this node: one vote for each network.
#[derive(Debug, Default)]
pub(super) struct AddressVotes(HashMap<VotingNetwork, (IpAddr, Instant)>);

#[derive(Debug, PartialEq, Eq, Hash)]
enum VotingNetwork {
    Subnet(Subnet),
    /// In a local network each machine has a vote.
    Local(IpAddr),
}

impl AddressVotes {
    /// Counts the vote of a node at `voter`. Returns the winning address, if it has enough votes
    /// and more than half of all.
    pub(super) fn add(&mut self, voter: IpAddr, says: IpAddr, now: Instant) -> Option<IpAddr> {
        // A node in the local network sees another address than the internet does.
        if !is_address(says) || (is_local(says) && !is_local(voter)) {
            return None;
        }
        let voter = if is_local(voter) {
            VotingNetwork::Local(voter)
        } else {
            VotingNetwork::Subnet(Subnet::of(voter))
        };
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
            assert_eq!(text.parse::<NatMode>().unwrap().to_string(), text);
        }
        assert!(matches!("upnp".parse::<NatMode>(), Err(NatError::Unsupported(_))));
        assert!(matches!("stun:1.2.3.4:5".parse::<NatMode>(), Err(NatError::Unsupported(_))));
        assert!(matches!("extip:0.0.0.0".parse::<NatMode>(), Err(NatError::Address(_))));
        assert!(matches!("extip:".parse::<NatMode>(), Err(NatError::Address(_))));
        assert!(matches!("yes".parse::<NatMode>(), Err(NatError::Unknown(_))));
    }

    #[test]
    fn one_network_has_one_vote_and_old_votes_do_not_count() {
        let (now, ours, wrong) =
            (Instant::now(), [203, 0, 113, 7].into(), [198, 51, 100, 1].into());
        let mut votes = AddressVotes::default();
        for host in 0..200 {
            assert_eq!(votes.add([9, 9, 9, host].into(), wrong, now), None);
        }
        for net in 0..4 {
            assert_eq!(votes.add([8, 8, net, 1].into(), ours, now), None);
        }
        assert_eq!(votes.add([8, 8, 4, 1].into(), ours, now), Some(ours));
        // A minority does not win, and old votes expire.
        assert_eq!(votes.add([8, 8, 5, 1].into(), wrong, now), None);
        let later = now + VOTE_LIFE;
        assert_eq!(votes.add([8, 8, 6, 1].into(), ours, later), None);
        assert_eq!(votes.0.len(), 1);
        // A local address counts only from local nodes.
        assert_eq!(votes.add([8, 8, 7, 1].into(), [10, 0, 0, 1].into(), later), None);
        assert_eq!(votes.0.len(), 1);
    }
}
