//! Fork ids (EIP-2124, EIP-6122): which nodes are on the same chain.

use alloy_eip2124::{ForkFilter, ForkFilterKey, ForkId, Head, ValidationError};
use parking_lot::RwLock;
use retrie_chainspec::{ChainSpec, ForkCondition};
use tokio::sync::watch;

/// The fork id of the node's chain at its head. Discovery puts it into the node's record, and
/// sessions exchange it in status messages.
#[derive(Debug)]
pub struct ForkTracker {
    filter: RwLock<ForkFilter>,
    id: watch::Sender<ForkId>,
}

impl ForkTracker {
    /// For a chain whose head is block `number` at `timestamp` (seconds).
    pub fn new(spec: &ChainSpec, number: u64, timestamp: u64) -> Self {
        let filter = ForkFilter::new(
            head(number, timestamp),
            spec.genesis_hash(),
            spec.genesis_header().timestamp,
            boundaries(spec),
        );
        let (id, _) = watch::channel(filter.current());
        Self { filter: RwLock::new(filter), id }
    }

    /// Moves the head, forwards or backwards.
    pub fn set_head(&self, number: u64, timestamp: u64) {
        let mut filter = self.filter.write();
        filter.set_head(head(number, timestamp));
        let current = filter.current();
        self.id.send_if_modified(|id| std::mem::replace(id, current) != current);
    }

    /// The node's fork id.
    pub fn current(&self) -> ForkId {
        self.filter.read().current()
    }

    /// Watches the node's fork id.
    pub fn watch(&self) -> watch::Receiver<ForkId> {
        self.id.subscribe()
    }

    /// Checks whether a node with this fork id may be on this chain (EIP-2124).
    ///
    /// # Errors
    /// Says which of the two nodes must be updated.
    pub(crate) fn validate(&self, id: ForkId) -> Result<(), ValidationError> {
        self.filter.read().validate(id)
    }
}

/// The fork filter uses only number and time.
fn head(number: u64, timestamp: u64) -> Head {
    Head { number, timestamp, ..Default::default() }
}

/// All blocks and times at which rules change. Of the merge, fork ids know only the block that
/// splits the network, if there is one. Changes of blob parameters count (EIP-7892), and so does the
/// switch to the binary tree, as in geth, which counts every time of its chain config.
fn boundaries(spec: &ChainSpec) -> impl Iterator<Item = ForkFilterKey> + '_ {
    let forks = spec.forks().filter_map(|(_, condition)| match condition {
        ForkCondition::Block(number) => Some(ForkFilterKey::Block(number)),
        ForkCondition::TTD { fork_block, .. } => fork_block.map(ForkFilterKey::Block),
        ForkCondition::Timestamp(time) => Some(ForkFilterKey::Time(time)),
        ForkCondition::Never => None,
    });
    let blobs = spec.blob_schedule().scheduled.iter();
    let times = blobs.map(|(time, _)| *time).chain(spec.binary_tree_time());
    forks.chain(times.map(ForkFilterKey::Time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::vectors;
    use alloy_eip2124::ForkHash;
    use alloy_primitives::hex;
    use serde_json::Value;

    fn hash(value: &Value) -> ForkHash {
        ForkHash(hex::decode(value.as_str().unwrap()).unwrap().try_into().unwrap())
    }

    #[test]
    fn ids_are_those_of_the_networks_at_every_fork() {
        let Some(vectors) = vectors("forkid-create.json") else { return };
        let vectors = vectors.as_array().unwrap();
        assert!(vectors.len() > 30);
        for vector in vectors {
            let spec = retrie_chainspec::parse_chain(vector["network"].as_str().unwrap()).unwrap();
            let at = |name: &str| vector[name].as_u64().unwrap();
            let forks = ForkTracker::new(&spec, at("head"), at("time"));
            let id = forks.current();
            if at("next") == 0 {
                // Forks may have been scheduled since, before that time.
                let times = boundaries(&spec).filter_map(|key| match key {
                    ForkFilterKey::Time(time) => Some(time),
                    ForkFilterKey::Block(_) => None,
                });
                let hashes =
                    times.map(|time| ForkTracker::new(&spec, at("head"), time).current().hash);
                assert!(hashes.collect::<Vec<_>>().contains(&hash(&vector["hash"])), "{vector}");
            } else {
                assert_eq!((id.hash, id.next), (hash(&vector["hash"]), at("next")), "{vector}");
            }
            // The same when the head moves there from genesis, or back from far ahead.
            let moved = ForkTracker::new(&spec, 0, 0);
            moved.set_head(u64::MAX, u64::MAX);
            moved.set_head(at("head"), at("time"));
            assert_eq!((moved.current(), *moved.watch().borrow()), (id, id));
        }
    }

    #[test]
    fn switch_to_the_binary_tree_changes_the_id() {
        let plain = ChainSpec::dev();
        let spec = ChainSpec::clone(&plain).with_binary_tree_time(Some(1000));
        let ids = |spec: &ChainSpec, time| ForkTracker::new(spec, 1, time).current();
        let (before, after) = (ids(&spec, 999), ids(&spec, 1000));
        assert_eq!((before.hash, before.next), (ids(&plain, 999).hash, 1000));
        assert_eq!(after.next, 0);
        assert_ne!(after.hash, before.hash);
    }

    #[test]
    fn remote_ids_are_judged_as_the_eip_says() {
        let Some(vectors) = vectors("forkid-validate.json") else { return };
        let vectors = vectors.as_array().unwrap();
        assert!(vectors.len() >= 10);
        let spec = ChainSpec::mainnet();
        for vector in vectors {
            // A node that knows the forks up to Petersburg.
            let known = boundaries(&spec)
                .filter(|key| matches!(key, ForkFilterKey::Block(block) if *block <= 7_280_000));
            let head = head(vector["local_head"].as_u64().unwrap(), 0);
            let filter = ForkFilter::new(head, spec.genesis_hash(), 0, known);
            let (id, _) = watch::channel(filter.current());
            let forks = ForkTracker { filter: RwLock::new(filter), id };
            let next = vector["remote_next"].as_str().unwrap().parse().unwrap();
            let remote = ForkId { hash: hash(&vector["remote_hash"]), next };
            let verdict = match forks.validate(remote) {
                Ok(()) => "accept",
                Err(ValidationError::RemoteStale { .. }) => "remote_stale",
                Err(ValidationError::LocalIncompatibleOrStale { .. }) => {
                    "local_incompatible_or_stale"
                }
            };
            assert_eq!(verdict, vector["expect"].as_str().unwrap(), "{vector}");
        }
    }

    #[test]
    fn another_genesis_is_another_chain() {
        let ours = ForkTracker::new(&ChainSpec::mainnet(), 0, 0);
        let root = alloy_primitives::B256::repeat_byte(1);
        let other = ChainSpec::clone(&ChainSpec::mainnet()).with_genesis_state_root(root);
        let theirs = ForkTracker::new(&other, 0, 0);
        assert!(ours.validate(theirs.current()).is_err());
    }

    #[test]
    fn the_id_changes_at_forks_alone() {
        let forks = ForkTracker::new(&ChainSpec::mainnet(), 0, 0);
        let mut ids = forks.watch();
        forks.set_head(1_149_999, 1);
        assert!(!ids.has_changed().unwrap());
        forks.set_head(1_150_000, 2);
        assert!(ids.has_changed().unwrap());
        assert_eq!(*ids.borrow_and_update(), forks.current());
        // Back again, in a reorg.
        forks.set_head(1_149_999, 3);
        assert_eq!(forks.current(), ForkTracker::new(&ChainSpec::mainnet(), 0, 0).current());
    }
}
