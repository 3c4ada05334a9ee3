//! A state as plain maps, the leaves that follow from it, and the backend beside it.

use crate::format::CodeMap;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use retrie_state::{
    Account, ApplyContext, Backend, BackendKey, BulkSink, BulkSorter, DeltaBuilder, JobRunner,
    KeyForm, RowTable, StateDelta, StateError, StateKey, StateValue, encode_slot,
};
use retrie_state_store::RecordSorter;
use retrie_state_testkit::MemoryView;
use retrie_storage_pbt::{
    Pbt, PbtState,
    hash::TreeHash,
    migration::{MigrationContext, MigrationError, StateExport},
};
use std::collections::{BTreeMap, BTreeSet};

/// Hash function of all cases.
pub(super) const HASH: TreeHash = TreeHash::Blake3;

/// Gives `work` what the migration needs.
pub(super) fn with_context<T>(work: impl FnOnce(&mut MigrationContext<'_>) -> T) -> T {
    let sorters = || -> Box<dyn BulkSorter> { Box::new(RecordSorter::new(None)) };
    let mut watch = |_| true;
    work(&mut MigrationContext { hash: HASH, sorters: &sorters, watch: &mut watch })
}

/// An account and its slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelAccount {
    pub(super) account: Account,
    pub(super) slots: BTreeMap<B256, U256>,
}

/// The values of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelState(pub(super) BTreeMap<Address, ModelAccount>);

/// What a block changes.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelBlock {
    /// Accounts whose slots go first.
    pub(super) wiped: BTreeSet<Address>,
    /// New accounts; `None` deletes one, with its slots.
    pub(super) accounts: BTreeMap<Address, Option<Account>>,
    /// New values of slots; zero deletes one.
    pub(super) slots: BTreeMap<Address, BTreeMap<B256, U256>>,
}

impl ModelState {
    /// Applies a block, and returns its delta, with the codes that no account had before.
    pub(super) fn apply(
        &mut self,
        block: &ModelBlock,
        codes: &CodeMap,
    ) -> Result<StateDelta, String> {
        let had: BTreeSet<B256> = self.0.values().map(|one| one.account.code_hash).collect();
        let mut delta = DeltaBuilder::new();
        let gone = block.accounts.iter().filter(|(_, account)| account.is_none());
        for address in block.wiped.iter().chain(gone.map(|(address, _)| address)) {
            let Some(account) = self.0.get_mut(address) else { continue };
            delta.wipe(*address);
            for (slot, value) in std::mem::take(&mut account.slots) {
                delta.change(StateKey::Slot(*address, slot), encode_slot(value), None);
            }
        }
        for (address, next) in &block.accounts {
            let before = self.0.get(address).map(|one| one.account.encode());
            let after = next.map(|next| next.encode());
            delta.change(StateKey::Account(*address), before, after);
            match next {
                None => {
                    self.0.remove(address);
                }
                Some(next) => self.0.entry(*address).or_default().account = *next,
            }
            if let Some(Account { code_hash, .. }) = next
                && *code_hash != KECCAK256_EMPTY
                && !had.contains(code_hash)
            {
                let code = codes.get(code_hash);
                let code = code.ok_or_else(|| format!("code {code_hash} is not given"))?;
                delta.add_code(*code_hash, code.clone());
            }
        }
        for (address, slots) in &block.slots {
            let Some(account) = self.0.get_mut(address) else {
                return Err(format!("{address} gets slots, and there is no such account"));
            };
            for (slot, value) in slots {
                let before = match value.is_zero() {
                    true => account.slots.remove(slot),
                    false => account.slots.insert(*slot, *value),
                };
                let before = before.and_then(encode_slot);
                delta.change(StateKey::Slot(*address, *slot), before, encode_slot(*value));
            }
        }
        Ok(delta.build())
    }

    /// All entries in the order of their keys.
    pub(super) fn entries(&self) -> impl Iterator<Item = (BackendKey, StateValue)> {
        let accounts = self.0.iter();
        let accounts = accounts
            .map(|(address, one)| (StateKey::Account(*address).into(), one.account.encode()));
        let slots = self.0.iter().flat_map(|(address, one)| {
            let slots = one.slots.iter();
            slots.filter_map(|(slot, value)| {
                Some((StateKey::Slot(*address, *slot).into(), encode_slot(*value)?))
            })
        });
        accounts.chain(slots)
    }

    /// Its leaves and preimages.
    pub(super) fn export(&self, codes: &CodeMap) -> Result<StateExport, MigrationError> {
        let mut entries = self.entries().map(Ok);
        let mut lookup = |hash: &B256| Ok(codes.get(hash).cloned());
        with_context(|context| StateExport::new(context, &mut entries, &mut lookup))
    }

    /// Counts the leaves, and computes the root of the whole tree in one sweep.
    pub(super) fn totals(&self, codes: &CodeMap) -> Result<(u64, B256), String> {
        let totals = self.export(codes).map_err(|error| error.to_string())?.leaves.totals;
        Ok((totals.leaves, totals.root))
    }

    /// Loads it at once; returns the root and the rows.
    pub(super) fn load(&self, codes: &CodeMap) -> Result<(B256, MemoryView), String> {
        let mut sink = CodedSink { view: MemoryView::default(), codes };
        let root = Pbt::new(HASH).bulk_load(0, &mut self.entries().map(Ok), &mut sink);
        Ok((root.map_err(|error| format!("the load failed: {error}"))?, sink.view))
    }
}

/// Rows in memory, loaded with codes at hand.
struct CodedSink<'a> {
    view: MemoryView,
    codes: &'a CodeMap,
}

impl BulkSink for CodedSink<'_> {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        BulkSink::put(&mut self.view, table, key, value)
    }

    fn put_unordered(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), StateError> {
        self.view.put_unordered(table, key, value)
    }

    fn sorter(&self) -> Box<dyn BulkSorter> {
        Box::new(RecordSorter::new(None))
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.codes.get(hash).cloned())
    }
}

/// The backend on rows in memory.
pub(super) struct TestTree {
    backend: Pbt,
    view: MemoryView,
    state: PbtState,
    pub(super) root: B256,
    number: u64,
    jobs: JobRunner,
}

impl TestTree {
    pub(super) fn new() -> Result<Self, String> {
        let backend = Pbt::new(HASH);
        let view = MemoryView::default();
        let state = backend.open(&view, None).map_err(|error| error.to_string())?;
        let jobs = JobRunner::without_threads(None);
        Ok(Self { backend, view, state, root: B256::ZERO, number: 0, jobs })
    }

    /// Applies the delta of the next block.
    pub(super) fn apply(&mut self, delta: &StateDelta) -> Result<(), String> {
        let (number, jobs) = (self.number, &self.jobs);
        let context = ApplyContext { number, parent_root: self.root, jobs };
        let delta = KeyForm::Plain.delta(delta);
        let done = self.backend.apply(&context, &mut self.view, &self.state, &delta);
        let done = done.map_err(|error| format!("block {number}: {error}"))?;
        (self.root, self.state, self.number) = (done.root, done.cache, number + 1);
        Ok(())
    }

    /// Checks that `loaded` has the same rows, and that they open to the same state.
    pub(super) fn expect_rows(&self, loaded: &MemoryView) -> Result<(), String> {
        let (one, other) = (self.view.filled(), loaded.filled());
        if one == other {
            return Ok(());
        }
        for table in one.keys().chain(other.keys()) {
            let empty = BTreeMap::new();
            let (one, other) =
                (one.get(table).unwrap_or(&empty), other.get(table).unwrap_or(&empty));
            let differs = |(key, row): &(&Vec<u8>, &Bytes)| other.get(*key) != Some(row);
            let more = || other.iter().find(|(key, _)| !one.contains_key(*key));
            if let Some((key, _)) = one.iter().find(differs).or_else(more) {
                let key = alloy_primitives::hex::encode_prefixed(key);
                let rows = (one.len(), other.len());
                return Err(format!(
                    "blocks and a load leave other rows: {} row {key} ({} and {} rows)",
                    table.name, rows.0, rows.1
                ));
            }
        }
        Ok(())
    }
}

/// The hash of a code.
pub(super) fn code_hash(code: &[u8]) -> B256 {
    if code.is_empty() { KECCAK256_EMPTY } else { keccak256(code) }
}
