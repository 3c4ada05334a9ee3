//! The codes of the model's accounts, and [`CodeStore`], a key-value store that has them.
//!
//! There are few codes, so accounts often share one, and a code often loses its last account and
//! gets another one later. They are bytes of awkward lengths and content: around multiples of 31
//! bytes (a chunk of EIP-8297), full of push instructions, zeros, and delegation indicators
//! (EIP-7702).

use super::model::StateEntries;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{
    Account, DeltaBuilder, KeyRange, RowTable, ScanDirection, StateKey, StateValue, StoreError,
    TableRow,
};
use retrie_state_store::{KvRead, KvSnapshot, KvStore, KvTxn, KvWrite};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock},
};

/// Codes that most accounts with code have.
const SHARED: usize = 6;
/// The last codes are long, so few accounts have them.
const LONG: usize = 4;

/// Length and content of each code.
const KINDS: [(usize, CodeContent); 36] = {
    use CodeContent::{Delegation, Pushes, Random, Zeros};
    [
        // Shared by many.
        (1, Zeros),
        (23, Delegation),
        (31, Random),
        (100, Pushes),
        (32, Random),
        (62, Zeros),
        // Short ones.
        (1, Random),
        (2, Pushes),
        (22, Random),
        (23, Random),
        (23, Zeros),
        (24, Delegation),
        (30, Pushes),
        (30, Random),
        (31, Zeros),
        (31, Pushes),
        (32, Pushes),
        (33, Pushes),
        (61, Random),
        (62, Random),
        (63, Pushes),
        (93, Pushes),
        (94, Zeros),
        (124, Random),
        (300, Pushes),
        (310, Random),
        (311, Pushes),
        (400, Zeros),
        (23, Delegation),
        (23, Delegation),
        // Around 128 chunks, of which the first node of an account has room.
        (31 * 128 - 1, Random),
        (31 * 128, Pushes),
        // Long ones.
        (31 * 128 + 1, Random),
        (31 * 384, Pushes),
        (31 * 384 + 1, Random),
        (24_576, Pushes),
    ]
};

/// What a code consists of.
#[derive(Clone, Copy, Debug)]
enum CodeContent {
    Random,
    /// Instructions that push many bytes, and jump destinations.
    Pushes,
    Zeros,
    /// `ef0100` and an address, if the code has 23 bytes; otherwise a code that looks like that.
    Delegation,
}

static CODES: LazyLock<Vec<(B256, Bytes)>> = LazyLock::new(|| {
    let code = |(index, (len, content)): (usize, &(usize, CodeContent))| {
        let code = code(index as u64, *len, *content);
        (keccak256(&code), code)
    };
    KINDS.iter().enumerate().map(code).collect()
});

static BY_HASH: LazyLock<Arc<BTreeMap<B256, Bytes>>> =
    LazyLock::new(|| Arc::new(CODES.iter().cloned().collect()));

fn code(index: u64, len: usize, content: CodeContent) -> Bytes {
    let digests = (0u64..).flat_map(|n| keccak256([index.to_be_bytes(), n.to_be_bytes()].concat()));
    let random = digests.take(len);
    match content {
        CodeContent::Random => random.collect(),
        CodeContent::Pushes => random
            .map(|byte| match byte % 8 {
                0 => 0x5b,
                1 => 0x60,
                2 => 0x61,
                3..5 => 0x7f,
                5 => 0x7e,
                _ => byte,
            })
            .collect(),
        CodeContent::Zeros => vec![0; len].into(),
        CodeContent::Delegation => [0xef, 0x01, 0x00].into_iter().chain(random.skip(3)).collect(),
    }
}

/// All codes of the model by their keccak-256.
pub fn codes() -> &'static Arc<BTreeMap<B256, Bytes>> {
    &BY_HASH
}

/// The hash of a random code of the model.
pub(super) fn any_hash(rng: &mut StdRng) -> B256 {
    let last = CODES.len() - LONG;
    let index = match rng.random_range(0..40) {
        0..22 => rng.random_range(0..SHARED),
        22..39 => rng.random_range(SHARED..last),
        _ => rng.random_range(last..CODES.len()),
    };
    CODES[index].0
}

/// The hash of the code of an account's value, if the model has this code.
fn hash_of(value: &StateValue) -> Option<B256> {
    let hash = Account::decode(value)?.code_hash;
    (hash != KECCAK256_EMPTY && BY_HASH.contains_key(&hash)).then_some(hash)
}

/// The codes that the accounts of a state have.
pub(super) fn hashes_in(entries: &StateEntries) -> BTreeSet<B256> {
    accounts(entries).map(|(_, hash)| hash).collect()
}

/// The accounts with code.
fn accounts(entries: &StateEntries) -> impl Iterator<Item = (&StateKey, B256)> {
    entries.iter().filter_map(|(key, value)| match key {
        StateKey::Account(_) => Some((key, hash_of(value)?)),
        StateKey::Slot(..) => None,
    })
}

/// Adds to the delta from the state `before` to the state `after` its codes: to one of two deltas
/// those that no account had before, to the others all that an account has got.
pub(super) fn add_codes(builder: &mut DeltaBuilder, before: &StateEntries, after: &StateEntries) {
    let known = if builder.len() % 2 == 0 { hashes_in(before) } else { BTreeSet::new() };
    for (account, hash) in accounts(after) {
        let is_new = before.get(account).and_then(hash_of) != Some(hash);
        if is_new && !known.contains(&hash) {
            builder.add_code(hash, BY_HASH[&hash].clone());
        }
    }
}

/// A [`KvStore`] in whose database the client keeps codes: it answers [`KvRead::code`], and forwards
/// all other calls.
#[derive(Clone)]
pub struct CodeStore<T> {
    inner: T,
    codes: Arc<BTreeMap<B256, Bytes>>,
}

impl<T> std::fmt::Debug for CodeStore<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CodeStore").field("codes", &self.codes.len()).finish_non_exhaustive()
    }
}

impl<T> CodeStore<T> {
    /// `inner` with these codes, by their keccak-256.
    pub const fn new(inner: T, codes: Arc<BTreeMap<B256, Bytes>>) -> Self {
        Self { inner, codes }
    }

    fn with<U>(&self, inner: U) -> CodeStore<U> {
        CodeStore { inner, codes: self.codes.clone() }
    }
}

impl KvStore for CodeStore<Arc<dyn KvStore>> {
    fn snapshot(&self) -> Result<KvSnapshot, StoreError> {
        Ok(Arc::new(self.with(self.inner.snapshot()?)))
    }

    fn begin_write(&self) -> Result<Box<dyn KvTxn + '_>, StoreError> {
        Ok(Box::new(self.with(self.inner.begin_write()?)))
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.inner.disk_bytes()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.inner.sync()
    }
}

impl<T: Deref<Target: KvRead>> KvRead for CodeStore<T> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.inner.get(table, key)
    }

    fn seek(
        &self,
        table: RowTable,
        key: Option<&[u8]>,
        direction: ScanDirection,
    ) -> Result<Option<TableRow>, StoreError> {
        self.inner.seek(table, key, direction)
    }

    fn scan(
        &self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<TableRow>, StoreError> {
        self.inner.scan(table, range, direction, limit)
    }

    fn count(&self, table: RowTable) -> Result<u64, StoreError> {
        self.inner.count(table)
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StoreError> {
        Ok(self.codes.get(hash).cloned())
    }

    fn expect_readers(&self, threads: usize) {
        self.inner.expect_readers(threads);
    }
}

impl<T: DerefMut<Target: KvWrite>> KvWrite for CodeStore<T> {
    fn put(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.inner.put(table, key, value)
    }

    fn append(&mut self, table: RowTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.inner.append(table, key, value)
    }

    fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<bool, StoreError> {
        self.inner.delete(table, key)
    }

    fn clear(&mut self, table: RowTable) -> Result<(), StoreError> {
        self.inner.clear(table)
    }
}

impl KvTxn for CodeStore<Box<dyn KvTxn + '_>> {
    fn is_awaited(&self) -> bool {
        self.inner.is_awaited()
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.inner.commit()
    }
}
