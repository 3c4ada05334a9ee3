//! What a node tells of itself, and how far it is behind.
//!
//! Behind is a node to whom somebody has named a head that it does not have: its consensus client, on
//! the Engine API, or the node that it follows. How high that head is, nobody has to say; it is told by
//! blocks that came and wait for their parents, and by headers that the follower has fetched. What it waits
//! for, and since when, is told too: a node that stands still without a word looks like one that works.

use crate::DeepBranch;
use alloy_primitives::{B256, B512};
use parking_lot::Mutex;
use retrie_chainspec::primitives::RecoveredBlock;
use std::{
    fmt,
    mem::discriminant,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

/// Blocks that a follower may be behind and count as in sync: it asks for the head now and then, and
/// each new one takes it a moment.
const IN_STEP: u64 = 1;

/// How far a node that is behind has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    /// Block at which the synchronisation began.
    pub starting: u64,
    /// Highest block that is here.
    pub current: u64,
    /// Highest block that is known of; the current one if nothing is known of a higher one but its
    /// hash.
    pub highest: u64,
}

/// What a node that is behind waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncWait {
    /// The head that its consensus client has named and that is not here, if there is one.
    pub head: Option<B256>,
    /// What for.
    pub reason: WaitReason,
    /// Since when.
    pub since: SystemTime,
}

/// Why a node that is behind is not at the head yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// Blocks come only from the consensus client: the node has no peers and follows no other one.
    #[default]
    NoSource,
    /// It would fetch blocks from peers, and is connected with none that has them.
    NoPeers,
    /// Blocks are fetched from this source.
    Blocks(String),
    /// Fetching them fails for this reason, and is tried again.
    Failing(String),
    /// The head of this number lies on a branch that cannot be executed.
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

/// What a node waits for, as it tells its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWait {
    /// What for.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// What ends it.
    pub remedy: String,
}

/// A node's place among others: what is told of it and of its peers, and how these are changed.
pub trait NodeNetwork: Send + Sync {
    /// How it is found.
    fn address(&self) -> NodeAddress;

    /// The newest version of `eth` that it speaks.
    fn protocol_version(&self) -> u64;

    /// Number of connected peers.
    fn peer_count(&self) -> usize;

    /// Connected peers, in no order.
    fn peers(&self) -> Vec<PeerStatus>;

    /// Dials the node of this URL until it is there. If `trusted`, limits of peers do not hold for it.
    ///
    /// # Errors
    /// What is wrong with the URL.
    fn add(&self, url: &str, trusted: bool) -> Result<(), String>;

    /// Dials the node of this URL no longer and disconnects it, or only no longer trusts it.
    ///
    /// # Errors
    /// What is wrong with the URL.
    fn remove(&self, url: &str, only_trust: bool) -> Result<(), String>;
}

/// How a node is found by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Its public key.
    pub id: B512,
    /// Its URL.
    pub enode: String,
    /// Its record (EIP-778) as a text, if it takes part in discovery.
    pub enr: Option<String>,
    /// Where others find it, as far as is known.
    pub ip: IpAddr,
    /// Where it takes connections, if it does.
    pub listens: Option<SocketAddr>,
    /// Its port of discovery, or 0.
    pub discovery_port: u16,
}

/// A connected peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its public key.
    pub id: B512,
    /// What it calls itself.
    pub name: String,
    /// What it says it speaks, such as `eth/69`.
    pub capabilities: Vec<String>,
    /// Its end of the connection.
    pub remote: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
    /// Whether it has dialled us.
    pub inbound: bool,
    /// Whether limits do not hold for it.
    pub trusted: bool,
    /// Whether it is dialled again and again.
    pub is_static: bool,
    /// The version of `eth` that is spoken with it.
    pub version: u64,
    /// Lowest and highest block that it serves.
    pub blocks: [u64; 2],
    /// Hash of the highest.
    pub head: B256,
}

/// What a node can tell beyond its chain. The defaults are those of a node that is in sync, works, and
/// has no peers.
pub trait NodeStatus: Send + Sync {
    /// How far it has come, if it is behind.
    fn syncing(&self) -> Option<SyncProgress> {
        None
    }

    /// What it waits for, if it is behind.
    fn waiting(&self) -> Option<NodeWait> {
        None
    }

    /// The parts of it that do not work, by name.
    fn failing(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Its place among other nodes, if it has one.
    fn network(&self) -> Option<&dyn NodeNetwork> {
        None
    }

    /// The datadir.
    fn datadir(&self) -> Option<PathBuf> {
        None
    }

    /// Blocks that were refused lately because they break a rule, for `debug_getBadBlocks`.
    fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
        Vec::new()
    }

    /// What the allocator says of the heap, for `debug_memStats`; `None` if nobody counts.
    fn heap(&self) -> Option<HeapStats> {
        None
    }
}

/// The heap of the process, in bytes where nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// In use by the program.
    pub allocated: u64,
    /// In pages of which some part is in use.
    pub active: u64,
    /// In pages that the allocator holds.
    pub mapped: u64,
    /// In addresses that the allocator keeps, and whose pages it has given back.
    pub retained: u64,
    /// What the allocator needs for itself.
    pub metadata: u64,
    /// All that was ever allocated, freed or not.
    pub total: u64,
    /// How often something was allocated.
    pub allocations: u64,
    /// How often something was freed.
    pub deallocations: u64,
    /// The same by size, of what is small.
    pub classes: Vec<SizeClass>,
}

/// Small allocations of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of each.
    pub size: u64,
    /// How many were made.
    pub allocations: u64,
    /// How many were freed.
    pub deallocations: u64,
}

/// The heads that others have named and that are not here yet. Cheap to clone; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncTargets(Arc<Mutex<Targets>>);

#[derive(Debug, Default)]
struct Targets {
    /// The head that the consensus client has named and nobody here knows.
    wanted: Option<B256>,
    /// The highest block that waits for its parents, since the consensus client's head was last known
    /// here.
    heard: u64,
    /// Number of the head that the follower is after: that of the other node, or the one that the
    /// consensus client wants.
    followed: u64,
    /// The follower has just begun: how far the other node is, it has not learned yet.
    begins: bool,
    /// Our head when we fell behind.
    starting: Option<u64>,
    /// The consensus client's head, if it cannot be executed here.
    deep: Option<(B256, u64, DeepBranch)>,
    /// How it stands with the source of blocks.
    source: WaitReason,
    /// When the consensus client last called.
    client: Option<Instant>,
    /// What was waited for when that was last asked, and since when.
    wait: Option<(WaitReason, SystemTime)>,
}

impl Targets {
    const fn is_behind(&self, current: u64) -> bool {
        self.wanted.is_some()
            || self.deep.is_some()
            || self.begins
            || self.followed > current.saturating_add(IN_STEP)
    }

    /// Takes note of where we are when we fall behind, and of what we wait for then; forgets both when we
    /// are behind no longer.
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

impl SyncTargets {
    /// The head that the consensus client has named and nobody here knows.
    pub(crate) fn wanted(&self) -> Option<B256> {
        self.0.lock().wanted
    }

    /// The consensus client has called.
    pub(crate) fn hear_client(&self) {
        self.0.lock().client = Some(Instant::now());
    }

    /// How long the consensus client has not called; `None` if it never has.
    pub(crate) fn client_silence(&self) -> Option<Duration> {
        self.0.lock().client.map(|heard| heard.elapsed())
    }

    /// The consensus client has named an unknown head; ours is `current`.
    pub(crate) fn want(&self, hash: B256, current: u64) {
        let mut targets = self.0.lock();
        (targets.wanted, targets.deep) = (Some(hash), None);
        targets.note(current);
    }

    /// The consensus client has named head `number`, which cannot be executed here; ours is `current`.
    pub(crate) fn too_deep(&self, hash: B256, number: u64, branch: DeepBranch, current: u64) {
        let mut targets = self.0.lock();
        (targets.wanted, targets.deep) = (None, Some((hash, number, branch)));
        targets.note(current);
    }

    /// Whether the consensus client wants this head, and it cannot be executed here.
    pub(crate) fn is_deep(&self, head: &B256) -> bool {
        self.0.lock().deep.is_some_and(|(hash, ..)| hash == *head)
    }

    /// How it stands with the source of blocks; our head is `current`.
    pub(crate) fn fetches(&self, source: WaitReason, current: u64) {
        let mut targets = self.0.lock();
        targets.source = source;
        targets.note(current);
    }

    /// The consensus client has named a head that is known here; ours is `current`.
    pub(crate) fn reached(&self, current: u64) {
        let mut targets = self.0.lock();
        (targets.wanted, targets.deep, targets.heard) = (None, None, 0);
        targets.note(current);
    }

    /// A block of this number waits for its parents.
    pub(crate) fn heard_of(&self, number: u64) {
        let mut targets = self.0.lock();
        targets.heard = targets.heard.max(number);
    }

    /// A follower of another node begins; our head is `current`. Until it has caught up once, nobody
    /// shall take this node for one in sync: it may have been away for long.
    pub(crate) fn begin_following(&self, current: u64) {
        let mut targets = self.0.lock();
        targets.begins = true;
        targets.note(current);
    }

    /// The follower has come to the other node's head; ours is `current`.
    pub(crate) fn has_followed(&self, current: u64) {
        let mut targets = self.0.lock();
        targets.begins = false;
        targets.note(current);
    }

    /// The follower is after a head of this number; ours is `current`.
    pub(crate) fn follow(&self, number: u64, current: u64) {
        let mut targets = self.0.lock();
        targets.followed = number;
        targets.note(current);
    }

    /// How far a node whose head is `current` has come, if it is behind.
    pub(crate) fn progress(&self, current: u64) -> Option<SyncProgress> {
        let mut targets = self.0.lock();
        targets.note(current);
        let starting = targets.starting?;
        let heard = if targets.wanted.is_some() { targets.heard } else { 0 };
        let deep = targets.deep.map_or(0, |(_, number, _)| number);
        let highest = heard.max(deep).max(targets.followed).max(current);
        Some(SyncProgress { starting: starting.min(current), current, highest })
    }

    /// What a node whose head is `current` waits for, if it is behind.
    pub(crate) fn wait(&self, current: u64) -> Option<SyncWait> {
        let mut targets = self.0.lock();
        targets.note(current);
        let head = targets.wanted.or_else(|| targets.deep.map(|(hash, ..)| hash));
        let (reason, since) = targets.wait.clone()?;
        Some(SyncWait { head, reason, since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(targets: &SyncTargets, current: u64) -> Option<[u64; 3]> {
        let progress = targets.progress(current);
        progress.map(|progress| [progress.starting, progress.current, progress.highest])
    }

    #[test]
    fn a_follower_is_behind_until_it_has_the_head_of_the_other_node() {
        let targets = SyncTargets::default();
        assert_eq!(told(&targets, 5), None);
        targets.follow(6, 5);
        assert_eq!(told(&targets, 5), None, "in step");
        targets.follow(90, 5);
        assert_eq!(told(&targets, 5), Some([5, 5, 90]));
        assert_eq!(told(&targets, 60), Some([5, 60, 90]));
        assert_eq!(told(&targets, 90), None);
        targets.follow(200, 90);
        assert_eq!(told(&targets, 100), Some([90, 100, 200]), "it has fallen behind again");
        // The other node has gone back.
        targets.follow(80, 100);
        assert_eq!(told(&targets, 100), None);
    }

    #[test]
    fn a_follower_that_begins_is_behind_until_it_has_caught_up_once() {
        let targets = SyncTargets::default();
        targets.begin_following(5);
        assert_eq!(told(&targets, 5), Some([5, 5, 5]), "nothing is known of the other node");
        targets.follow(6, 5);
        assert_eq!(told(&targets, 5), Some([5, 5, 6]), "a single block is one too many then");
        targets.has_followed(6);
        assert_eq!(told(&targets, 6), None);
        targets.follow(7, 6);
        assert_eq!(told(&targets, 6), None, "in step");
    }

    #[test]
    fn behind_a_consensus_client_the_highest_block_is_the_highest_heard_of() {
        let targets = SyncTargets::default();
        // A block that waits for its parents is no head.
        targets.heard_of(500);
        assert_eq!(told(&targets, 7), None);
        targets.want(B256::repeat_byte(1), 7);
        assert_eq!(told(&targets, 7), Some([7, 7, 500]));
        targets.heard_of(400);
        targets.want(B256::repeat_byte(2), 9);
        assert_eq!(told(&targets, 9), Some([7, 9, 500]));
        targets.reached(500);
        assert_eq!(told(&targets, 500), None);
        // Nothing but a hash is known of the next one.
        targets.want(B256::repeat_byte(3), 500);
        assert_eq!(told(&targets, 500), Some([500, 500, 500]));
    }

    #[test]
    fn what_is_waited_for_is_told_with_its_beginning() {
        let targets = SyncTargets::default();
        let reason = |targets: &SyncTargets| targets.wait(7).map(|wait| wait.reason);
        assert_eq!(targets.wait(7), None);
        let wanted = B256::repeat_byte(1);
        targets.want(wanted, 7);
        let first = targets.wait(7).unwrap();
        assert_eq!((first.head, &first.reason), (Some(wanted), &WaitReason::NoSource));
        // Another head, and the same want of a source.
        targets.want(B256::repeat_byte(2), 7);
        assert_eq!(targets.wait(7).unwrap().since, first.since);
        targets.fetches(WaitReason::Failing("a".into()), 7);
        let failing = targets.wait(7).unwrap();
        assert!(failing.since >= first.since);
        targets.fetches(WaitReason::Failing("b".into()), 7);
        let still = targets.wait(7).unwrap();
        assert_eq!((still.since, still.reason), (failing.since, WaitReason::Failing("b".into())));

        let branch = DeepBranch { fork: 3, first_retained: 5, retention: 2 };
        targets.too_deep(wanted, 9, branch, 7);
        assert_eq!(reason(&targets), Some(WaitReason::TooDeepReorg(9, branch)));
        assert_eq!(told(&targets, 7), Some([7, 7, 9]));
        targets.reached(7);
        assert_eq!((reason(&targets), told(&targets, 7)), (None, None));
    }
}
