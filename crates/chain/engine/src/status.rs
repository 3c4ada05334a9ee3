//! Status of a node for RPC and logs: whether it is behind, what it waits for, peers, heap.
//!
//! A node is behind if its consensus client (Engine API) or the node that it follows has named a
//! head that it does not have. The number of that head may be unknown at first; orphan blocks and
//! headers from the follower give it. The reason and the begin of a wait are reported too, so that
//! a node that stands still does not look like one that works.

use crate::DeepBranch;
use alloy_primitives::{B256, B512};
use parking_lot::Mutex;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_telemetry::state_sync::StateSyncFigures;
use std::{
    fmt,
    mem::discriminant,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::broadcast;

/// Blocks that a follower may be behind and still count as in sync, since it polls for the head and
/// needs some time for each new block.
const MAX_LAG_IN_SYNC: u64 = 1;

/// Progress of block sync, for a node that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    /// Block at which block sync began.
    pub starting: u64,
    /// Number of the head.
    pub current: u64,
    /// Highest known block number; the current one if only the hash of a higher block is known.
    pub highest: u64,
}

/// What a node that is behind waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSyncWait {
    /// The missing head that the consensus client has named, if there is one.
    pub head: Option<B256>,
    /// What the node waits for.
    pub reason: WaitReason,
    /// When the wait for this reason began.
    pub since: SystemTime,
}

/// What keeps a node that is behind from the head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// Blocks come only from the consensus client: the node has no peers and follows no other node.
    #[default]
    NoSource,
    /// No connected peer has the blocks.
    NoPeers,
    /// Blocks are fetched from this source.
    Blocks(String),
    /// Fetching blocks fails for this reason; the node tries again.
    Failing(String),
    /// The head of this number lies on a deep branch, which cannot be executed.
    TooDeepReorg(u64, DeepBranch),
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSource => f.write_str("blocks, which nothing here fetches"),
            Self::NoPeers => f.write_str("peers to fetch blocks from"),
            Self::Blocks(source) => write!(f, "blocks from {source}"),
            Self::Failing(reason) => write!(f, "blocks, and fetching them fails: {reason}"),
            Self::TooDeepReorg(number, DeepBranch { fork, first_retained, retention }) => write!(
                f,
                "a reorganisation to block {number}, whose branch leaves the chain above block {fork}: \
                 states are kept from block {first_retained} on, {retention} blocks deep"
            ),
        }
    }
}

/// What a node waits for, in words for its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWait {
    /// What the node waits for.
    pub reason: String,
    /// When the wait began.
    pub since: SystemTime,
    /// What the operator can do.
    pub remedy: String,
}

/// The node in its peer-to-peer network: its address, its peers, and changes of the peer list.
pub trait NodeNetwork: Send + Sync {
    /// The node's address.
    fn address(&self) -> NodeAddress;

    /// The newest version of `eth` that the node supports.
    fn protocol_version(&self) -> u64;

    /// Number of connected peers.
    fn peer_count(&self) -> usize;

    /// Connected peers, in no particular order.
    fn peers(&self) -> Vec<PeerStatus>;

    /// Peers that connect and disconnect from now on. A receiver that reads too slowly misses the
    /// oldest changes, and is told so.
    fn changes(&self) -> broadcast::Receiver<Arc<PeerChange>>;

    /// Adds a static peer by URL, which is dialled until it is connected. With `trusted`, peer
    /// limits do not apply to it.
    ///
    /// # Errors
    /// What is wrong with the URL.
    fn add(&self, url: &str, trusted: bool) -> Result<(), String>;

    /// Removes a static peer by URL and disconnects it; with `only_trust` it only loses its trust.
    ///
    /// # Errors
    /// What is wrong with the URL.
    fn remove(&self, url: &str, only_trust: bool) -> Result<(), String>;
}

/// The address of a node, for other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Public key.
    pub id: B512,
    /// Enode URL.
    pub enode: String,
    /// Node record (EIP-778) as text, if the node takes part in discovery.
    pub enr: Option<String>,
    /// External IP address, as far as known.
    pub ip: IpAddr,
    /// Listening address, if the node accepts connections.
    pub listens: Option<SocketAddr>,
    /// Discovery port, or 0.
    pub discovery_port: u16,
}

/// A connected peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Public key.
    pub id: B512,
    /// Client name.
    pub name: String,
    /// Protocols of its hello message, such as `eth/69`.
    pub capabilities: Vec<String>,
    /// Remote address of the connection.
    pub remote: SocketAddr,
    /// Local address of the connection.
    pub local: SocketAddr,
    /// Whether the peer dialled this node.
    pub inbound: bool,
    /// Whether it is trusted: peer limits do not apply to it.
    pub trusted: bool,
    /// Whether it is a static peer, which is dialled again after a disconnect.
    pub is_static: bool,
    /// Negotiated version of `eth`.
    pub version: u64,
    /// Negotiated version of `snap`, if it is spoken.
    pub snap: Option<u64>,
    /// Lowest and highest block that it serves.
    pub blocks: [u64; 2],
    /// Hash of the highest block.
    pub head: B256,
}

/// A change of the connected peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// Public key of the peer.
    pub id: B512,
    /// Remote address of the connection.
    pub remote: SocketAddr,
    /// Local address of the connection.
    pub local: SocketAddr,
    /// Why the connection ended, in words; `None` if it began.
    pub dropped: Option<String>,
}

/// Status of a node beyond its chain. The defaults are for a node that is in sync, works, and has
/// no peers.
pub trait NodeStatus: Send + Sync {
    /// Progress of block sync, if the node is behind.
    fn syncing(&self) -> Option<SyncProgress> {
        None
    }

    /// How far the state sync is, while the node fetches the state that it begins with.
    fn state_sync(&self) -> Option<StateSyncFigures> {
        None
    }

    /// What the node waits for, if it is behind.
    fn waiting(&self) -> Option<NodeWait> {
        None
    }

    /// Names of the parts that do not work.
    fn failing(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The peer-to-peer network, if the node takes part in it.
    fn network(&self) -> Option<&dyn NodeNetwork> {
        None
    }

    /// The datadir.
    fn datadir(&self) -> Option<PathBuf> {
        None
    }

    /// The latest invalid blocks, for `debug_getBadBlocks`.
    fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
        Vec::new()
    }

    /// Figures of the allocator, for `debug_memStats`; `None` if there are none.
    fn heap(&self) -> Option<HeapStats> {
        None
    }
}

/// The heap of the process, in bytes unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes in use by the program.
    pub allocated: u64,
    /// Bytes of pages that are at least partly in use.
    pub active: u64,
    /// Bytes of pages that the allocator holds.
    pub mapped: u64,
    /// Bytes of address space that the allocator keeps after returning the pages.
    pub retained: u64,
    /// Bytes of the allocator's own data.
    pub metadata: u64,
    /// All bytes that were ever allocated, freed or not.
    pub total: u64,
    /// Number of allocations.
    pub allocations: u64,
    /// Number of deallocations.
    pub deallocations: u64,
    /// Small allocations by size.
    pub classes: Vec<SizeClass>,
}

/// Small allocations of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of each.
    pub size: u64,
    /// Number of allocations of this size.
    pub allocations: u64,
    /// Number of deallocations of this size.
    pub deallocations: u64,
}

/// Heads that the consensus client or the follower want and that are missing here. Cheap to clone;
/// clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadTargets(Arc<Mutex<HeadTargetState>>);

#[derive(Debug, Default)]
struct HeadTargetState {
    /// The unknown head that the consensus client has named.
    wanted: Option<B256>,
    /// Highest number of an orphan block since the consensus client's head was last known here.
    heard: u64,
    /// Number of the follower's target: the other node's head, or the head that the consensus
    /// client wants.
    followed: u64,
    /// The follower has just begun and does not know the other node's head yet.
    begins: bool,
    /// Number of the head when the node fell behind.
    starting: Option<u64>,
    /// The consensus client's head, if it lies on a deep branch.
    deep: Option<(B256, u64, DeepBranch)>,
    /// State of the source of blocks.
    source: WaitReason,
    /// Time of the consensus client's last call.
    client: Option<Instant>,
    /// Reason and begin of the current wait.
    wait: Option<(WaitReason, SystemTime)>,
}

impl HeadTargetState {
    const fn is_behind(&self, current: u64) -> bool {
        self.wanted.is_some()
            || self.deep.is_some()
            || self.begins
            || self.followed > current.saturating_add(MAX_LAG_IN_SYNC)
    }

    /// Updates the begin and the reason of a wait: sets both when the node falls behind, and clears
    /// them when it has caught up.
    fn note(&mut self, current: u64) {
        if !self.is_behind(current) {
            (self.starting, self.wait) = (None, None);
            return;
        }
        self.starting.get_or_insert(current);
        let reason = match self.deep {
            Some((_, number, branch)) => WaitReason::TooDeepReorg(number, branch),
            None => self.source.clone(),
        };
        let known = self.wait.take();
        let since = known.filter(|(known, _)| discriminant(known) == discriminant(&reason));
        let since = since.map_or_else(SystemTime::now, |(_, since)| since);
        self.wait = Some((reason, since));
    }
}

impl HeadTargets {
    /// The unknown head that the consensus client has named.
    pub(crate) fn wanted(&self) -> Option<B256> {
        self.0.lock().wanted
    }

    /// Records a call of the consensus client.
    pub(crate) fn note_client_call(&self) {
        self.0.lock().client = Some(Instant::now());
    }

    /// Time since the consensus client's last call; `None` if there was none.
    pub(crate) fn time_since_client_call(&self) -> Option<Duration> {
        self.0.lock().client.map(|heard| heard.elapsed())
    }

    /// Records that the consensus client named an unknown head; the node's head is `current`.
    pub(crate) fn set_wanted(&self, hash: B256, current: u64) {
        let mut targets = self.0.lock();
        (targets.wanted, targets.deep) = (Some(hash), None);
        targets.note(current);
    }

    /// Records that the consensus client named head `number` on a deep branch; the node's head is
    /// `current`.
    pub(crate) fn set_deep(&self, hash: B256, number: u64, branch: DeepBranch, current: u64) {
        let mut targets = self.0.lock();
        (targets.wanted, targets.deep) = (None, Some((hash, number, branch)));
        targets.note(current);
    }

    /// Whether the consensus client wants this head and it lies on a deep branch.
    pub(crate) fn is_deep(&self, head: &B256) -> bool {
        self.0.lock().deep.is_some_and(|(hash, ..)| hash == *head)
    }

    /// Records the state of the source of blocks; the node's head is `current`.
    pub(crate) fn set_source(&self, source: WaitReason, current: u64) {
        let mut targets = self.0.lock();
        targets.source = source;
        targets.note(current);
    }

    /// Records that the consensus client named a known head; the node's head is `current`.
    pub(crate) fn reached(&self, current: u64) {
        let mut targets = self.0.lock();
        (targets.wanted, targets.deep, targets.heard) = (None, None, 0);
        targets.note(current);
    }

    /// Records an orphan block of this number.
    pub(crate) fn note_orphan(&self, number: u64) {
        let mut targets = self.0.lock();
        targets.heard = targets.heard.max(number);
    }

    /// Records that a follower begins; the node's head is `current`. Until the follower has caught
    /// up once, the node counts as behind, since it may have been stopped for a long time.
    pub(crate) fn begin_following(&self, current: u64) {
        let mut targets = self.0.lock();
        targets.begins = true;
        targets.note(current);
    }

    /// Records that the follower has caught up; the node's head is `current`.
    pub(crate) fn follower_caught_up(&self, current: u64) {
        let mut targets = self.0.lock();
        targets.begins = false;
        targets.note(current);
    }

    /// Records the number of the follower's target; the node's head is `current`.
    pub(crate) fn set_target(&self, number: u64, current: u64) {
        let mut targets = self.0.lock();
        targets.followed = number;
        targets.note(current);
    }

    /// Progress of a node whose head is `current`, if it is behind.
    pub(crate) fn progress(&self, current: u64) -> Option<SyncProgress> {
        let mut targets = self.0.lock();
        targets.note(current);
        let starting = targets.starting?;
        let heard = if targets.wanted.is_some() { targets.heard } else { 0 };
        let deep = targets.deep.map_or(0, |(_, number, _)| number);
        let highest = heard.max(deep).max(targets.followed).max(current);
        Some(SyncProgress { starting: starting.min(current), current, highest })
    }

    /// The wait of a node whose head is `current`, if it is behind.
    pub(crate) fn wait(&self, current: u64) -> Option<BlockSyncWait> {
        let mut targets = self.0.lock();
        targets.note(current);
        let head = targets.wanted.or_else(|| targets.deep.map(|(hash, ..)| hash));
        let (reason, since) = targets.wait.clone()?;
        Some(BlockSyncWait { head, reason, since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress_of(targets: &HeadTargets, current: u64) -> Option<[u64; 3]> {
        let progress = targets.progress(current);
        progress.map(|progress| [progress.starting, progress.current, progress.highest])
    }

    #[test]
    fn a_follower_is_behind_until_it_has_the_head_of_the_other_node() {
        let targets = HeadTargets::default();
        assert_eq!(progress_of(&targets, 5), None);
        targets.set_target(6, 5);
        assert_eq!(progress_of(&targets, 5), None, "in step");
        targets.set_target(90, 5);
        assert_eq!(progress_of(&targets, 5), Some([5, 5, 90]));
        assert_eq!(progress_of(&targets, 60), Some([5, 60, 90]));
        assert_eq!(progress_of(&targets, 90), None);
        targets.set_target(200, 90);
        assert_eq!(progress_of(&targets, 100), Some([90, 100, 200]), "it has fallen behind again");
        // The other node has gone back.
        targets.set_target(80, 100);
        assert_eq!(progress_of(&targets, 100), None);
    }

    #[test]
    fn a_follower_that_begins_is_behind_until_it_has_caught_up_once() {
        let targets = HeadTargets::default();
        targets.begin_following(5);
        assert_eq!(progress_of(&targets, 5), Some([5, 5, 5]), "nothing is known of the other node");
        targets.set_target(6, 5);
        assert_eq!(
            progress_of(&targets, 5),
            Some([5, 5, 6]),
            "a single block is one too many then"
        );
        targets.follower_caught_up(6);
        assert_eq!(progress_of(&targets, 6), None);
        targets.set_target(7, 6);
        assert_eq!(progress_of(&targets, 6), None, "in step");
    }

    #[test]
    fn behind_a_consensus_client_the_highest_block_is_the_highest_heard_of() {
        let targets = HeadTargets::default();
        // An orphan block is no head.
        targets.note_orphan(500);
        assert_eq!(progress_of(&targets, 7), None);
        targets.set_wanted(B256::repeat_byte(1), 7);
        assert_eq!(progress_of(&targets, 7), Some([7, 7, 500]));
        targets.note_orphan(400);
        targets.set_wanted(B256::repeat_byte(2), 9);
        assert_eq!(progress_of(&targets, 9), Some([7, 9, 500]));
        targets.reached(500);
        assert_eq!(progress_of(&targets, 500), None);
        // Only the hash of the next head is known.
        targets.set_wanted(B256::repeat_byte(3), 500);
        assert_eq!(progress_of(&targets, 500), Some([500, 500, 500]));
    }

    #[test]
    fn what_is_waited_for_is_told_with_its_beginning() {
        let targets = HeadTargets::default();
        let reason = |targets: &HeadTargets| targets.wait(7).map(|wait| wait.reason);
        assert_eq!(targets.wait(7), None);
        let wanted = B256::repeat_byte(1);
        targets.set_wanted(wanted, 7);
        let first = targets.wait(7).unwrap();
        assert_eq!((first.head, &first.reason), (Some(wanted), &WaitReason::NoSource));
        // Another head, with the same reason.
        targets.set_wanted(B256::repeat_byte(2), 7);
        assert_eq!(targets.wait(7).unwrap().since, first.since);
        targets.set_source(WaitReason::Failing("a".into()), 7);
        let failing = targets.wait(7).unwrap();
        assert!(failing.since >= first.since);
        targets.set_source(WaitReason::Failing("b".into()), 7);
        let still = targets.wait(7).unwrap();
        assert_eq!((still.since, still.reason), (failing.since, WaitReason::Failing("b".into())));

        let branch = DeepBranch { fork: 3, first_retained: 5, retention: 2 };
        targets.set_deep(wanted, 9, branch, 7);
        assert_eq!(reason(&targets), Some(WaitReason::TooDeepReorg(9, branch)));
        assert_eq!(progress_of(&targets, 7), Some([7, 7, 9]));
        targets.reached(7);
        assert_eq!((reason(&targets), progress_of(&targets, 7)), (None, None));
    }
}
