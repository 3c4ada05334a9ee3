//! The limit of open files, and how the connections of peers and servers are fitted into it.

use super::{NodeCommand, args::NetworkArgs, servers::RpcArgs};
use std::io;

/// File descriptors for the store's files, logs, listening sockets and threads.
const RESERVE: usize = 256;
/// Inbound connections whose handshake is not finished, and nodes dialled at once.
const DIALLED_AT_ONCE: usize = 16;
/// Connections that each server takes at least, so that a consensus client can connect.
const MIN_CONNECTIONS: u32 = 8;

/// Raises the limit of open files to the most that the system allows this process, and returns it;
/// `None` if the system has no such limit.
///
/// # Errors
/// If the system refuses. The limit is then unchanged.
#[cfg(unix)]
pub fn raise_limit() -> io::Result<Option<usize>> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a complete `rlimit` that outlives the call, and nothing else is accessed.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let most = limit.rlim_max.min(MAX_DESCRIPTORS);
    if limit.rlim_cur < most {
        limit.rlim_cur = most;
        // SAFETY: as above.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(usize::try_from(limit.rlim_cur).ok())
}

/// Most descriptors to ask for. Some systems report a higher limit and then refuse it.
#[cfg(all(unix, not(target_os = "macos")))]
const MAX_DESCRIPTORS: libc::rlim_t = 1 << 20;
#[cfg(target_os = "macos")]
const MAX_DESCRIPTORS: libc::rlim_t = 10_240;

/// There is no limit.
///
/// # Errors
/// Never.
#[cfg(not(unix))]
pub fn raise_limit() -> io::Result<Option<usize>> {
    Ok(None)
}

/// Connections of the JSON-RPC servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerConnections {
    /// Number of sets of connections, one or two for each server.
    pub(crate) servers: usize,
    /// Most connections in each set.
    pub(crate) each: u32,
}

/// How many connections of each kind are allowed.
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

    /// Reduces the plan to `descriptors` less the reserve: peers get at most half, servers the
    /// rest.
    fn within(self, descriptors: usize) -> Self {
        let left = descriptors - RESERVE.min(descriptors / 2);
        if self.all() <= left {
            return self;
        }
        let for_peers = self.peers().min(left / 2);
        let share = |count: usize| (count * for_peers / self.peers().max(1)).max(1).min(count);
        let each = (left - for_peers) / self.rpc.servers.max(1);
        let each = u32::try_from(each).unwrap_or(u32::MAX).max(MIN_CONNECTIONS).min(self.rpc.each);
        Self {
            inbound: share(self.inbound),
            outbound: share(self.outbound),
            half_open: share(self.half_open),
            rpc: ServerConnections { each, ..self.rpc },
        }
    }
}

impl NodeCommand {
    /// Reduces the connections of peers and servers to what the open-file limit allows, with a
    /// reserve for the store: strangers must not be able to keep it from opening its files.
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
            "the limit of open files is too low for all connections, so fewer are allowed; raise the hard \
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

    /// Some systems allow 1,024 descriptors. Connections from strangers once took all of them.
    #[test]
    fn connections_leave_a_reserve_for_the_store_whatever_the_limit() {
        for descriptors in [256, 512, 1024, 2048, 4096] {
            let ConnectionPlan { rpc, .. } = DEFAULT.within(descriptors);
            let left = descriptors.saturating_sub(DEFAULT.within(descriptors).all());
            assert!(left >= RESERVE.min(descriptors / 2) - 16, "{descriptors}: {left}");
            assert!(rpc.each >= MIN_CONNECTIONS && rpc.each <= 500, "{descriptors}: {rpc:?}");
        }
        assert_eq!(DEFAULT.within(4096), DEFAULT, "there is room for all");
        let low = DEFAULT.within(1024);
        assert_eq!((low.inbound, low.outbound, low.half_open), (30, 100, 64), "peers stay");
        let lowest = DEFAULT.within(64);
        assert!(lowest.inbound >= 1 && lowest.outbound >= 1 && lowest.rpc.each >= 1);
        let none = ConnectionPlan { inbound: 0, outbound: 0, half_open: 0, ..DEFAULT };
        assert_eq!(none.within(64).inbound, 0, "what was not wanted is not given");
    }

    /// Once, the soft limit that shells and services set low was never raised.
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
        assert_eq!(raised as libc::rlim_t, before.rlim_max.min(MAX_DESCRIPTORS));
        assert_eq!(read().rlim_cur, raised as libc::rlim_t);
    }
}
