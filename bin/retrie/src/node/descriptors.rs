//! How many files and connections the process may have open, and who gets how many of them.

use super::{Command, args::NetworkArgs, servers::RpcArgs};
use std::io;

/// What files of the store, log, listening sockets and threads take.
const RESERVE: usize = 256;
/// ConnectionPlan that come and are no peers yet, and nodes that are dialled at once, which become peers.
const DIALLED_AT_ONCE: usize = 16;
/// ConnectionPlan that every server takes, whatever there is: a consensus client must come in.
const LEAST: u32 = 8;

/// Raises the number of descriptors that this process may have to the most that the system allows it,
/// and gives that number; `None` if the system does not say.
///
/// # Errors
/// If the system refuses, after which the number is what it was.
#[cfg(unix)]
pub(crate) fn raise_limit() -> io::Result<Option<usize>> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a whole `rlimit` that lives over the call, and nothing else is read or written.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let most = limit.rlim_max.min(MOST);
    if limit.rlim_cur < most {
        limit.rlim_cur = most;
        // SAFETY: as above.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(usize::try_from(limit.rlim_cur).ok())
}

/// As many as a system has: some allow any number by name and no such number in fact.
#[cfg(all(unix, not(target_os = "macos")))]
const MOST: libc::rlim_t = 1 << 20;
#[cfg(target_os = "macos")]
const MOST: libc::rlim_t = 10_240;

#[cfg(not(unix))]
pub(crate) fn raise_limit() -> io::Result<Option<usize>> {
    Ok(None)
}

/// ConnectionPlan of the JSON-RPC servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerConnections {
    /// Sets of connections, one or two a server.
    pub(crate) servers: usize,
    /// ConnectionPlan of each set, at most.
    pub(crate) each: u32,
}

/// ConnectionPlan that there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConnectionPlan {
    inbound: usize,
    outbound: usize,
    half_open: usize,
    rpc: ServerConnections,
}

impl ConnectionPlan {
    const fn peers(&self) -> usize {
        self.inbound + self.outbound + self.half_open + DIALLED_AT_ONCE
    }

    const fn all(&self) -> usize {
        self.peers() + self.rpc.servers * self.rpc.each as usize
    }

    /// As many of them as fit into a number of descriptors beside the reserve: of peers no more than half
    /// of what there is, of servers what is left.
    fn within(self, descriptors: usize) -> Self {
        let left = descriptors - RESERVE.min(descriptors / 2);
        if self.all() <= left {
            return self;
        }
        let for_peers = self.peers().min(left / 2);
        let share = |count: usize| (count * for_peers / self.peers().max(1)).max(1).min(count);
        let each = (left - for_peers) / self.rpc.servers.max(1);
        let each = u32::try_from(each).unwrap_or(u32::MAX).max(LEAST).min(self.rpc.each);
        Self {
            inbound: share(self.inbound),
            outbound: share(self.outbound),
            half_open: share(self.half_open),
            rpc: ServerConnections { each, ..self.rpc },
        }
    }
}

impl Command {
    /// Has peers and servers take no more connections than the descriptors that there are allow, with a
    /// reserve for the store: strangers must not keep it from opening its files.
    pub(super) fn fit_into_descriptors(&mut self) {
        let descriptors = match raise_limit() {
            Ok(Some(descriptors)) => descriptors,
            Ok(None) => return,
            Err(error) => {
                return tracing::warn!(%error, "the limit of open files could not be raised");
            }
        };
        let has_engine = !self.auth.disable;
        let Self { network, rpc, .. } = self;
        let wanted = wanted(network, rpc, has_engine);
        let fitting = wanted.within(descriptors);
        if fitting == wanted {
            return;
        }
        tracing::warn!(
            descriptors,
            needed = wanted.all() + RESERVE,
            inbound_peers = fitting.inbound,
            outbound_peers = fitting.outbound,
            connections_a_server = fitting.rpc.each,
            "fewer files may be open than all connections would need, so fewer are taken; raise the hard \
             limit (`ulimit -Hn`, LimitNOFILE of systemd, --ulimit nofile of docker), or lower \
             --rpc.max-connections, --max-inbound-peers and --max-outbound-peers"
        );
        network.max_inbound = fitting.inbound;
        network.max_outbound = fitting.outbound;
        network.half_open = fitting.half_open;
        rpc.set_connections(fitting.rpc.each);
    }
}

fn wanted(network: &NetworkArgs, rpc: &RpcArgs, has_engine: bool) -> ConnectionPlan {
    ConnectionPlan {
        inbound: network.max_inbound,
        outbound: network.max_outbound,
        half_open: network.half_open,
        rpc: rpc.connections(has_engine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: ConnectionPlan = ConnectionPlan {
        inbound: 30,
        outbound: 100,
        half_open: 64,
        rpc: ServerConnections { servers: 6, each: 500 },
    };

    /// With 1,024 descriptors, as many systems give, connections of strangers once took all of them.
    #[test]
    fn connections_leave_a_reserve_for_the_store_whatever_the_limit() {
        for descriptors in [256, 512, 1024, 2048, 4096] {
            let ConnectionPlan { rpc, .. } = DEFAULT.within(descriptors);
            let left = descriptors.saturating_sub(DEFAULT.within(descriptors).all());
            assert!(left >= RESERVE.min(descriptors / 2) - 16, "{descriptors}: {left}");
            assert!(rpc.each >= LEAST && rpc.each <= 500, "{descriptors}: {rpc:?}");
        }
        assert_eq!(DEFAULT.within(4096), DEFAULT, "there is room for all");
        let low = DEFAULT.within(1024);
        assert_eq!((low.inbound, low.outbound, low.half_open), (30, 100, 64), "peers stay");
        let lowest = DEFAULT.within(64);
        assert!(lowest.inbound >= 1 && lowest.outbound >= 1 && lowest.rpc.each >= 1);
        let none = ConnectionPlan { inbound: 0, outbound: 0, half_open: 0, ..DEFAULT };
        assert_eq!(none.within(64).inbound, 0, "what was not wanted is not given");
    }

    /// Nothing once raised the limit, which shells and services set low.
    #[test]
    #[cfg(unix)]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let read = || {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: as in `raise_limit`.
            assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
            limit
        };
        let before = read();
        let lower = libc::rlimit { rlim_cur: before.rlim_cur.min(200), ..before };
        // SAFETY: as in `raise_limit`. Other tests of this process have far fewer files open.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const lower) }, 0);
        let raised = raise_limit().unwrap().unwrap();
        assert_eq!(raised as libc::rlim_t, before.rlim_max.min(MOST));
        assert_eq!(read().rlim_cur, raised as libc::rlim_t);
    }
}
