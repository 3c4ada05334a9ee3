//! Timeouts and intervals of discovery.

use std::time::Duration;
use tokio::sync::watch;

/// Timeouts and intervals of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryTiming {
    /// Timeout of a request.
    pub reply: Duration,
    /// Pause between lookups, and before silent boot nodes are tried again.
    pub lookup: Duration,
    /// Interval of checks of nodes that have not answered yet.
    pub check_new: Duration,
    /// Interval of checks of nodes that have answered.
    pub check: Duration,
    /// Interval of lookups of this node itself.
    pub refresh: Duration,
    /// How long a node that was offered or refused is not considered again.
    pub again: Duration,
    /// Interval of writes of the node file.
    pub save: Duration,
    /// Interval of DNS queries.
    pub dns: Duration,
    /// Timeout of a DNS query.
    pub dns_reply: Duration,
    /// How long the root of a DNS list is valid.
    pub dns_root: Duration,
}

impl Default for DiscoveryTiming {
    fn default() -> Self {
        Self {
            reply: Duration::from_millis(500),
            lookup: Duration::from_secs(2),
            check_new: Duration::from_secs(3),
            check: Duration::from_secs(10),
            refresh: Duration::from_secs(30 * 60),
            again: Duration::from_secs(60),
            save: Duration::from_secs(5 * 60),
            dns: Duration::from_millis(333),
            dns_reply: Duration::from_secs(5),
            dns_root: Duration::from_secs(30 * 60),
        }
    }
}

impl DiscoveryTiming {
    /// Short times, for tests and for networks on one machine.
    pub fn fast() -> Self {
        Self {
            reply: Duration::from_millis(200),
            lookup: Duration::from_millis(100),
            check_new: Duration::from_millis(100),
            check: Duration::from_millis(500),
            refresh: Duration::from_secs(2),
            again: Duration::from_millis(500),
            save: Duration::from_secs(1),
            dns: Duration::from_millis(10),
            dns_reply: Duration::from_secs(1),
            dns_root: Duration::from_secs(1),
        }
    }
}

/// Waits until candidates are wanted. False if the sender is dropped.
pub(super) async fn wanted(want: &mut watch::Receiver<bool>) -> bool {
    want.wait_for(|want| *want).await.is_ok()
}
