//! Files of a small state, and everything that may be wrong with them.

mod faults;
mod files;
mod states;

use super::*;
use crate::key::account_path;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use retrie_state::{Account, BackendKey, BulkSink, StateError, StateKey, StateValue, encode_slot};
use retrie_state_testkit::MemoryView;
use std::collections::BTreeMap;

pub(super) fn sorter() -> Box<dyn BulkSorter> {
    MemoryView::default().sorter()
}

pub(super) fn with_context<T>(work: impl FnOnce(&mut MigrationContext<'_>) -> T) -> T {
    let mut watch = |_| true;
    let hash = TreeHash::Blake3;
    work(&mut MigrationContext { hash, sorters: &sorter, watch: &mut watch })
}

/// A state, and its codes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StateFixture {
    pub(super) entries: BTreeMap<BackendKey, StateValue>,
    pub(super) codes: BTreeMap<B256, Bytes>,
}

pub(super) fn address(n: u8) -> Address {
    Address::repeat_byte(n)
}

impl StateFixture {
    pub(super) fn account(&mut self, n: u8, nonce: u64, balance: u128, code: &[u8]) -> &mut Self {
        let code_hash = keccak256(code);
        if !code.is_empty() {
            self.codes.insert(code_hash, code.to_vec().into());
        }
        let account = Account { nonce, balance: U256::from(balance), code_hash };
        self.entries.insert(StateKey::Account(address(n)).into(), account.encode());
        self
    }

    pub(super) fn slot(&mut self, n: u8, slot: U256, value: u64) -> &mut Self {
        let key = StateKey::Slot(address(n), slot.into());
        self.entries.insert(key.into(), encode_slot(U256::from(value)).unwrap());
        self
    }

    pub(super) fn export(&self) -> Result<StateExport, MigrationError> {
        let mut entries = self.entries.iter().map(|(key, value)| Ok((*key, value.clone())));
        with_context(|context| {
            StateExport::new(context, &mut entries, &mut |code| Ok(self.codes.get(code).cloned()))
        })
    }

    pub(super) fn state_root(&self) -> B256 {
        let mut state = mpt::HashedState::new(sorter());
        for (key, value) in &self.entries {
            let address = key.account().address().unwrap();
            match key {
                BackendKey::Account(_) => {
                    state.put_account(&address, &Account::decode(value).unwrap()).unwrap();
                }
                BackendKey::Slot(_, slot) => {
                    let value = B256::left_padding_from(value);
                    state.put_slot(&keccak256(address), slot, &value).unwrap();
                }
            }
        }
        with_context(|context| state.root(context)).unwrap()
    }

    /// The leaves of its tree.
    pub(super) fn leaves(&self) -> BTreeMap<TreeKey, B256> {
        let mut export = self.export().unwrap();
        let leaves = export.leaves.iter().unwrap().map(|leaf| leaf.unwrap());
        leaves.map(|leaf| (leaf.key, leaf.value)).collect()
    }

    /// Its preimage file, and its snapshot.
    pub(super) fn files(&self, layout: SnapshotLayout) -> MadeFilePair {
        let mut export = self.export().unwrap();
        with_context(|context| MadeFilePair {
            preimages: export.write_preimages(context, Vec::new()).unwrap().1,
            snapshot: export.leaves.write(context, layout, Vec::new()).unwrap().1,
            layout,
        })
    }
}

/// Both files.
#[derive(Clone, Debug)]
pub(super) struct MadeFilePair {
    pub(super) preimages: Vec<u8>,
    pub(super) snapshot: Vec<u8>,
    pub(super) layout: SnapshotLayout,
}

impl MadeFilePair {
    pub(super) fn check(&self, state_root: B256) -> Result<CheckedState, MigrationError> {
        let mut watch = |_| true;
        let context =
            MigrationContext { hash: TreeHash::Blake3, sorters: &sorter, watch: &mut watch };
        DualCheck { context, state_root }.run(
            SnapshotReader::new(self.layout, &self.snapshot[..]),
            PreimageReader::new(&self.preimages[..]),
        )
    }
}

/// The name of the variant of an error.
pub(super) fn fault<T: fmt::Debug>(result: Result<T, MigrationError>) -> String {
    let text = format!("{:?}", result.unwrap_err());
    text.split([' ', '(', '{']).next().unwrap().to_owned()
}

/// A code with a chunk of zeros, with push data over the borders of chunks, and with more than 256
/// chunks if `long`.
pub(super) fn code(seed: u8, long: bool) -> Vec<u8> {
    let mut code = vec![0x5b; 30];
    code.push(0x7f);
    code.extend([seed; 32]);
    code.resize(31 * 4, 0);
    code.extend([0x61, seed]);
    if long {
        code.resize(31 * 257 + 5, 0x5b);
    }
    code
}

/// All kinds of accounts.
pub(super) fn small_state() -> StateFixture {
    let mut state = StateFixture::default();
    let delegation = [&[0xef, 0x01, 0x00][..], &address(1)[..]].concat();
    state.account(1, 3, 1_000_000_007, &[]).account(2, 1, 0, &code(7, false));
    state.account(3, 1, 5, &code(7, false)).account(4, 1, 0, &code(8, false));
    state.account(5, 9, u128::MAX, &delegation).account(6, 0, 1, &[]);
    state.slot(2, U256::ZERO, 1).slot(2, U256::from(63), 0xffff).slot(2, U256::from(64), 3);
    state.slot(2, U256::from(300), 4).slot(2, U256::from(301), 5).slot(2, U256::MAX, 6);
    state.slot(3, U256::from(1) << 200, 7).slot(5, U256::from(2), 8);
    state
}
