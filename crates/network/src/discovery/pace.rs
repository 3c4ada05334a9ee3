//! How fast discovery goes, and when.

use std::time::Duration;
use tokio::sync::watch;

/// How fast discovery goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time for an answer.
    pub reply: Duration,
    /// Rest between lookups, and before boot nodes that do not answer are tried again.
    pub lookup: Duration,
    /// Between checks of nodes that have not answered yet.
    pub check_new: Duration,
    /// Between checks of nodes that have.
    pub check: Duration,
    /// Between lookups of the node itself.
    pub refresh: Duration,
    /// How long a node that was offered or refused is not looked at again.
    pub again: Duration,
    /// Between writes of the nodes' file.
    pub save: Duration,
    /// Between questions to name servers.
    pub dns: Duration,
    /// Time for an answer of a name server.
    pub dns_reply: Duration,
    /// How long the root of a list in DNS is good.
    pub dns_root: Duration,
}

impl Default for Pace {
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

impl Pace {
    /// For tests and for networks on one machine.
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

/// Waits until candidates are wanted. False if nobody is there any more who could want them.
pub(super) async fn wanted(want: &mut watch::Receiver<bool>) -> bool {
    want.wait_for(|want| *want).await.is_ok()
}
