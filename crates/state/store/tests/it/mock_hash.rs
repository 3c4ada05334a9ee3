//! The test-kit on the simplest backend, and on faulty backends, whose faults it must find.

use crate::common;

use alloy_primitives::{B256, keccak256};
use common::{
    decode_level, digest,
    hashed::{MockHash, whole},
};
use retrie_state::{
    AnyBackend, AnyCache, ApplyContext, ApplyOutput, BackendDelta, BackendKey, BackendProfile,
    BackendStats, BulkSink, NodeRead, NodeWrite, ProofError, RowTable, StateError, StateValue,
    flat,
};
use std::sync::Arc;

retrie_state_testkit::backend_tests!(|| Arc::new(MockHash) as Arc<dyn AnyBackend>);

#[test]
fn run_all_runs_every_check_too() {
    if std::env::var_os("RETRIE_TESTKIT_SCALE").is_some() {
        retrie_state_testkit::run_all(&|| Arc::new(MockHash));
    }
}

/// Faulty backends, which the test-kit must find.
mod faults {
    use super::*;
    use retrie_state_store::{MemoryStore, StoreOptions};
    use retrie_state_testkit::{
        self as testkit, BackendWrapper, TestKit, TestScale, WrappedBackend,
    };
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The fault of a backend.
    #[derive(Clone, Copy)]
    enum BackendFault {
        /// The root depends on the number of calls.
        Impure,
        /// Deletions are forgotten.
        KeepsDeleted,
        /// The verifier looks at nothing but the values.
        Credulous,
        /// The verifier ignores bytes that follow.
        IgnoresTail,
        /// A bulk load forgets an entry.
        LosesFirst,
        /// The count is off.
        Miscounts,
        /// Two tables share an id.
        Clash,
    }

    struct FaultyBackend(BackendFault, std::sync::atomic::AtomicU64);

    impl BackendWrapper for FaultyBackend {
        fn inner(&self) -> &dyn AnyBackend {
            &MockHash
        }

        fn profile(&self) -> BackendProfile {
            const CLASH: &[RowTable] = &[RowTable::new(1, "One"), RowTable::new(1, "Other")];
            let profile = self.inner().profile();
            match self.0 {
                BackendFault::Clash => BackendProfile { tables: CLASH, ..profile },
                _ => profile,
            }
        }

        fn apply(
            &self,
            context: &ApplyContext<'_>,
            view: &mut dyn NodeWrite,
            cache: &AnyCache,
            delta: &BackendDelta,
        ) -> Result<ApplyOutput<AnyCache>, StateError> {
            if let BackendFault::KeepsDeleted = self.0 {
                for change in delta.changes() {
                    if let Some(next) = &change.next {
                        view.put(flat::TABLE, &change.key.encode(), next.clone())?;
                    }
                }
                let root = digest(&whole(view.as_read())?);
                return Ok(ApplyOutput { root, cache: AnyCache::new(()) });
            }
            let mut applied = self.inner().apply(context, view, cache, delta)?;
            if let BackendFault::Impure = self.0 {
                let calls = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                applied.root = keccak256([applied.root.as_slice(), &calls.to_be_bytes()].concat());
            }
            Ok(applied)
        }

        fn bulk_load(
            &self,
            number: u64,
            entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
            sink: &mut dyn BulkSink,
        ) -> Result<B256, StateError> {
            if let BackendFault::LosesFirst = self.0 {
                entries.next().transpose()?;
            }
            self.inner().bulk_load(number, entries, sink)
        }

        fn verify(
            &self,
            root: B256,
            keys: &[BackendKey],
            proof: &[u8],
        ) -> Result<Vec<Option<StateValue>>, ProofError> {
            let mut rest = proof;
            match self.0 {
                BackendFault::Credulous => {
                    let level = decode_level(&mut rest)
                        .ok_or(ProofError::Malformed { what: "the entries" })?;
                    Ok(keys.iter().map(|key| level.get(key).cloned().flatten()).collect())
                }
                BackendFault::IgnoresTail => {
                    decode_level(&mut rest);
                    self.inner().verify(root, keys, &proof[..proof.len() - rest.len()])
                }
                _ => self.inner().verify(root, keys, proof),
            }
        }

        fn stats(&self, view: &dyn NodeRead, cache: &AnyCache) -> Result<BackendStats, StateError> {
            let mut stats = self.inner().stats(view, cache)?;
            stats.live_keys += u64::from(matches!(self.0, BackendFault::Miscounts));
            Ok(stats)
        }
    }

    fn is_caught(cheat: BackendFault, check: fn(&TestKit<'_>)) -> bool {
        let make = move || {
            Arc::new(WrappedBackend(FaultyBackend(cheat, Default::default())))
                as Arc<dyn AnyBackend>
        };
        let scale = TestScale { blocks: 12, ..TestScale::default() };
        catch_unwind(AssertUnwindSafe(|| check(&TestKit::new(&make, scale)))).is_err()
    }

    #[test]
    fn the_kit_finds_them() {
        assert!(is_caught(BackendFault::Impure, testkit::roots_do_not_depend_on_the_way_there));
        assert!(is_caught(BackendFault::Impure, testkit::siblings_do_not_see_each_other));
        assert!(is_caught(
            BackendFault::KeepsDeleted,
            testkit::values_listings_and_counts_match_a_model
        ));
        assert!(is_caught(BackendFault::Credulous, testkit::mutated_proofs_are_refused));
        assert!(is_caught(BackendFault::IgnoresTail, testkit::mutated_proofs_are_refused));
        assert!(is_caught(BackendFault::LosesFirst, testkit::a_bulk_load_equals_the_first_block));
        assert!(is_caught(
            BackendFault::Miscounts,
            testkit::values_listings_and_counts_match_a_model
        ));
    }

    #[test]
    fn two_tables_with_one_id_are_refused() {
        let (kv, clash) = (
            MemoryStore::new(),
            Arc::new(WrappedBackend(FaultyBackend(BackendFault::Clash, Default::default()))),
        );
        let error = common::open(clash, &kv, None, StoreOptions::default()).unwrap_err();
        assert!(error.to_string().contains("One and Other"), "{error}");
    }
}
