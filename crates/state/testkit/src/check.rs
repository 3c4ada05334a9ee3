//! The check of a whole state reports no fault in a correct state, and finds a damaged one.

use super::{
    TestKit,
    model::{BlockSize, ValueFlavour},
    node::{KnownRoots, TestNode, options},
};
use retrie_state::flat;
use retrie_state::{BackendKey, ScanDirection, StateError, StateValue};
use retrie_state_store::{FlatHistory, KvStore, MemoryStore, StateCheckSink, StoreOptions};
use std::sync::Arc;

#[derive(Default)]
struct CheckReport {
    faults: Vec<StateError>,
    entries: u64,
}

impl StateCheckSink for CheckReport {
    fn fault(&mut self, fault: StateError) {
        self.faults.push(fault);
    }

    fn entry(&mut self, _: &BackendKey, _: &StateValue) {
        self.entries += 1;
    }

    fn progress(&mut self, _: u64, _: u64) {}
}

/// Checks a chain with reverts, folded and not. Then a row of the flat state is deleted behind the
/// framework's back: the check must notice it if the backend's root depends on the values alone and
/// its values are in the flat state.
///
/// # Panics
/// If a correct state has faults, or the damage goes unnoticed.
pub fn a_whole_state_is_checked(kit: &TestKit<'_>) {
    kit.each_seed(|seed| {
        for fold_often in [false, true] {
            let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
            let roots = Arc::new(KnownRoots::default());
            let settings =
                StoreOptions { flat_history: FlatHistory::All, ..options(6, fold_often) };
            let node = TestNode::new(kit, &roots, settings);
            let chain = miner.chain(None, kit.scale.blocks.max(8), BlockSize::Any);
            node.extend_each(&chain);
            let below = chain[chain.len() - 3].number;
            node.revert(below);
            let side =
                miner.chain(chain.iter().find(|block| block.number == below), 2, BlockSize::Any);
            node.extend_each(&side);

            let check = |node: &TestNode<'_>| {
                let mut seen = CheckReport::default();
                let scratch: Arc<dyn KvStore> = Arc::new(MemoryStore::new());
                let done = node.store().check(&scratch, &mut seen).expect("the check goes on");
                (seen, done)
            };
            let (seen, done) = check(&node);
            assert!(seen.faults.is_empty(), "{:?}", seen.faults);
            assert_eq!(seen.entries, done.entries);
            let changed = chain[1..].iter().filter(|block| block.number <= below).chain(&side);
            assert_eq!(done.changes, changed.map(|block| block.delta.len() as u64).sum::<u64>());
            assert!(done.blocks >= 3, "{done:?}");
            let capabilities = kit.backend().profile();
            let rebuilt = capabilities.state_determined_root && capabilities.proofs;
            assert_eq!(done.roots, if rebuilt { done.blocks } else { 0 });
            if !rebuilt || !kit.backend().profile().tables.contains(&flat::TABLE) {
                continue;
            }
            node.store().flush().expect("nothing hinders the fold");
            let mut txn = node.kv.begin_write().expect("a store");
            let last = txn.seek(flat::TABLE, None, ScanDirection::Backward).expect("a store");
            let Some((key, _)) = last else { continue };
            txn.delete(flat::TABLE, &key).expect("a store");
            txn.commit().expect("a store");
            let (seen, _) = check(&node);
            assert!(!seen.faults.is_empty(), "a lost value goes unnoticed");
        }
    });
}
