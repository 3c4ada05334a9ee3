//! A mock backend whose root depends on the codes of accounts. It holds each code as long as an
//! account has it, so the test-kit notices if a code does not come with a delta, a bulk load or the
//! rebuilt state of a check.

use crate::common::hashed::MockHash;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, keccak256};
use retrie_state::{
    Account, AnyBackend, AnyCache, ApplyContext, ApplyOutput, BackendDelta, BackendKey,
    BackendProfile, BlockRef, BulkSink, DeltaBuilder, KeyRange, NodeRead, NodeWrite, ProofError,
    RowTable, ScanDirection, StateError, StateKey, StateValue, compare_rows, flat,
};
use retrie_state_store::{
    KvStore, MemoryStore, StateCheck, StateCheckSink, StateId, StateStore, StoreOptions,
};
use retrie_state_testkit::{BackendWrapper, CodeStore, TestScale, WrappedBackend};
use std::{collections::BTreeMap, sync::Arc};

/// For each code the number of its accounts (8, BE), and the code.
const CODES: RowTable = RowTable::new(0x51, "MockCodes");

fn mock() -> Arc<dyn AnyBackend> {
    Arc::new(WrappedBackend(MockCodes))
}

retrie_state_testkit::backend_tests!(mock, TestScale::small());

struct MockCodes;

impl BackendWrapper for MockCodes {
    fn inner(&self) -> &dyn AnyBackend {
        &MockHash
    }

    fn profile(&self) -> BackendProfile {
        let inner = self.inner().profile();
        BackendProfile {
            tables: &[flat::TABLE, CODES],
            empty_root: root(inner.empty_root, digest(&BTreeMap::new())),
            ethereum_state_only: true,
            needs_codes: true,
            ..inner
        }
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &AnyCache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<AnyCache>, StateError> {
        let mut users: BTreeMap<B256, i64> = BTreeMap::new();
        for change in delta.changes() {
            let BackendKey::Account(_) = change.key else { continue };
            let [before, after] =
                [&change.previous, &change.next].map(|value| code_of(value.as_ref()));
            before.into_iter().for_each(|hash| *users.entry(hash).or_default() -= 1);
            after.into_iter().for_each(|hash| *users.entry(hash).or_default() += 1);
        }
        for (hash, change) in users.into_iter().filter(|(_, change)| *change != 0) {
            let (count, code) = match view.get(CODES, hash.as_slice())? {
                Some(row) => decode(&row),
                None => (0, checked(&hash, delta.code(&hash).cloned())?),
            };
            match count.checked_add_signed(change).expect("no code has fewer accounts than none") {
                0 => view.delete(CODES, hash.as_slice())?,
                count => view.put(CODES, hash.as_slice(), encode(count, &code))?,
            }
        }
        let output = self.inner().apply(context, view, cache, delta)?;
        Ok(ApplyOutput { root: root(output.root, digest_of(view.as_read())?), ..output })
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut users: BTreeMap<B256, u64> = BTreeMap::new();
        let mut counted = entries.inspect(|entry| {
            if let Ok((BackendKey::Account(_), value)) = entry {
                let hash = code_of(Some(value));
                hash.into_iter().for_each(|hash| *users.entry(hash).or_default() += 1);
            }
        });
        let inner = self.inner().bulk_load(number, &mut counted, sink)?;
        let mut rows = BTreeMap::new();
        for (hash, count) in users {
            let row = encode(count, &checked(&hash, sink.code(&hash)?)?);
            sink.put(CODES, hash.as_slice(), &row)?;
            rows.insert(Bytes::from(hash.0), row);
        }
        Ok(root(inner, digest(&rows)))
    }

    /// The inner root, the digest of the codes, and the inner proof.
    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        let proof = self.inner().prove(view, cache, keys)?;
        Ok([&keccak256(&proof)[..], &digest_of(view)?[..], &proof].concat().into())
    }

    fn verify(
        &self,
        expected: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        let (roots, proof) =
            proof.split_at_checked(64).ok_or(ProofError::Malformed { what: "the roots" })?;
        let inner = B256::from_slice(&roots[..32]);
        if root(inner, B256::from_slice(&roots[32..])) != expected {
            return Err(ProofError::RootMismatch);
        }
        self.inner().verify(inner, keys, proof)
    }

    fn check(
        &self,
        view: &dyn NodeRead,
        _: &AnyCache,
        _: B256,
        _: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        rebuilt.map_or(Ok(()), |rebuilt| compare_rows(CODES, view, rebuilt, report))
    }
}

/// The hash of the code of an account with this value.
fn code_of(value: Option<&StateValue>) -> Option<B256> {
    let hash = Account::decode(value?)?.code_hash;
    (hash != KECCAK256_EMPTY).then_some(hash)
}

fn checked(hash: &B256, code: Option<Bytes>) -> Result<Bytes, StateError> {
    let code = code.ok_or_else(|| StateError::corrupt("codes", format!("{hash} did not come")))?;
    assert_eq!(keccak256(&code), *hash, "a code comes under its hash");
    Ok(code)
}

fn encode(count: u64, code: &Bytes) -> Bytes {
    [&count.to_be_bytes(), &code[..]].concat().into()
}

fn decode(row: &Bytes) -> (u64, Bytes) {
    let (count, _) = row.split_first_chunk().expect("its count");
    (u64::from_be_bytes(*count), row.slice(8..))
}

fn digest(rows: &BTreeMap<Bytes, Bytes>) -> B256 {
    let row = |(hash, row): (&Bytes, &Bytes)| [&hash[..], keccak256(row).as_slice()].concat();
    keccak256(rows.iter().flat_map(row).collect::<Vec<_>>())
}

fn digest_of(view: &dyn NodeRead) -> Result<B256, StateError> {
    let rows = view.scan(CODES, KeyRange::ALL, ScanDirection::Forward)?;
    Ok(digest(&rows.collect::<Result<_, _>>()?))
}

fn root(inner: B256, codes: B256) -> B256 {
    keccak256([inner, codes].concat())
}

// -- where codes come from ------------------------------------------------------------------------

#[derive(Default)]
struct Faults(Vec<String>);

impl StateCheckSink for Faults {
    fn fault(&mut self, fault: StateError) {
        self.0.push(fault.to_string());
    }

    fn entry(&mut self, _: &BackendKey, _: &StateValue) {}

    fn progress(&mut self, _: u64, _: u64) {}
}

fn check(store: &StateStore) -> (StateCheck, Vec<String>) {
    let scratch: Arc<dyn KvStore> = Arc::new(MemoryStore::new());
    let mut faults = Faults::default();
    (store.check(&scratch, &mut faults).unwrap(), faults.0)
}

/// A delta brings codes itself, with whatever the database has. A bulk load and the rebuilt state
/// of a check have those of the database; without them they fail.
#[test]
fn a_load_and_a_check_have_the_codes_of_the_database() {
    let code = Bytes::from_static(b"a code");
    let (hash, key) = (keccak256(&code), StateKey::Account(Address::repeat_byte(1)));
    let account = Account { code_hash: hash, ..Account::default() }.encode();
    let codes: Arc<BTreeMap<_, _>> = Arc::new([(hash, code.clone())].into());
    let mut delta = DeltaBuilder::new();
    delta.change(key, None, Some(account.clone()));
    delta.add_code(hash, code);
    let delta = delta.build();

    for has_codes in [true, false] {
        let database = || -> Arc<dyn KvStore> {
            let kv: Arc<dyn KvStore> = Arc::new(MemoryStore::new());
            if has_codes { Arc::new(CodeStore::new(kv, codes.clone())) } else { kv }
        };
        let open = |kv: &Arc<dyn KvStore>| {
            StateStore::open(mock(), kv.clone(), StoreOptions::default()).unwrap()
        };
        let kv = database();
        let store = open(&kv);
        let proposal = store.begin(StateId::Tip).unwrap().finish(&delta).unwrap();
        store.seal(&proposal, B256::repeat_byte(1));
        crate::common::commit(&store, &*kv, &[proposal]).unwrap();
        let (done, faults) = check(&store);
        let failed = format!("{hash} did not come");
        assert_eq!(faults.is_empty(), has_codes, "{faults:?}");
        assert_eq!(done.roots, u64::from(has_codes));
        assert!(faults.iter().all(|fault| fault.contains(&failed)), "{faults:?}");

        let (kv, root) = (database(), store.root(StateId::Tip).unwrap());
        let store = open(&kv);
        let mut txn = kv.begin_write().unwrap();
        let mut entries = [Ok((key, account.clone()))].into_iter();
        let loaded = store.bulk_load(BlockRef::default(), &mut entries, &mut *txn);
        match loaded {
            Ok((loaded, _)) => assert!(has_codes && loaded == root),
            Err(error) => assert!(!has_codes && error.to_string().contains(&failed), "{error}"),
        }
    }
}
