//! What a node tells of itself, and how far it is behind.
//!
//! Behind is a node to whom somebody has named a head that it does not have: its consensus client, on
//! the Engine API, or the node that it follows. How high that head is, nobody has to say; it is told by
//! blocks that came and wait for their parents, and by headers that the follower has fetched.

use alloy_primitives::{B256, B512};
use parking_lot::Mutex;
use retrie_chainspec::primitives::RecoveredBlock;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
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
}

impl Targets {
    const fn is_behind(&self, current: u64) -> bool {
        self.wanted.is_some() || self.begins || self.followed > current.saturating_add(IN_STEP)
    }

    /// Takes note of where we are when we fall behind, and forgets it when we are no longer.
    const fn note(&mut self, current: u64) {
        match (self.is_behind(current), self.starting) {
            (true, None) => self.starting = Some(current),
            (false, Some(_)) => self.starting = None,
            _ => {}
        }
    }
}

impl SyncTargets {
    /// The head that the consensus client has named and nobody here knows.
    pub(crate) fn wanted(&self) -> Option<B256> {
        self.0.lock().wanted
    }

    /// The consensus client has named an unknown head; ours is `current`.
    pub(crate) fn want(&self, hash: B256, current: u64) {
        let mut targets = self.0.lock();
        targets.wanted = Some(hash);
        targets.note(current);
    }

    /// The consensus client has named a head that is known here; ours is `current`.
    pub(crate) fn reached(&self, current: u64) {
        let mut targets = self.0.lock();
        (targets.wanted, targets.heard) = (None, 0);
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
        let highest = heard.max(targets.followed).max(current);
        Some(SyncProgress { starting: starting.min(current), current, highest })
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
}
