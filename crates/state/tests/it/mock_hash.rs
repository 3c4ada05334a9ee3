//! The test-kit on the plainest backend, and on backends that cheat: the kit must find them.

use crate::common;

use alloy_primitives::{B256, Bytes, keccak256};
use common::{
    decode_level, digest,
    hashed::{Hashed, IDENTITY, whole},
};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Capabilities, Identity, NodeRead,
    NodeWrite, ProofError, StateDelta, StateError, StateKey, Table, Value, flat,
};
use std::{path::Path, sync::Arc};

retrie_state::backend_tests!(|| Arc::new(Hashed) as Arc<dyn retrie_state::AnyBackend>);

#[test]
fn run_all_runs_every_check_too() {
    if std::env::var_os("RETRIE_TESTKIT_SCALE").is_some() {
        retrie_state::testkit::run_all(&|| Arc::new(Hashed));
    }
}

/// A backend that cheats: what the kit is there to find.
mod cheats {
    use super::*;
    use retrie_state::{
        MemoryStore, StoreOptions,
        testkit::{self, Kit, Scale},
    };
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// How it cheats.
    #[derive(Clone, Copy)]
    enum Cheat {
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

    struct Cheater(Cheat, std::sync::atomic::AtomicU64);

    impl Backend for Cheater {
        type Cache = ();

        fn identity(&self) -> &Identity {
            &IDENTITY
        }
        fn capabilities(&self) -> Capabilities {
            Hashed.capabilities()
        }
        fn tables(&self) -> Vec<Table> {
            match self.0 {
                Cheat::Clash => vec![Table::new(1, "One"), Table::new(1, "Other")],
                _ => Hashed.tables(),
            }
        }
        fn empty_root(&self) -> B256 {
            Hashed.empty_root()
        }
        fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<(), StateError> {
            Hashed.open(view, dir)
        }
        fn apply(
            &self,
            context: &ApplyContext<'_>,
            view: &mut dyn NodeWrite,
            cache: &(),
            delta: &StateDelta,
        ) -> Result<Applied<Self::Cache>, StateError> {
            if let Cheat::KeepsDeleted = self.0 {
                for change in delta.changes() {
                    if let Some(next) = &change.next {
                        view.put(flat::TABLE, &change.key.encode(), next.clone())?;
                    }
                }
                return Ok(Applied { root: digest(&whole(view.as_read())?), cache: () });
            }
            let mut applied = Hashed.apply(context, view, cache, delta)?;
            if let Cheat::Impure = self.0 {
                let calls = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                applied.root = keccak256([applied.root.as_slice(), &calls.to_be_bytes()].concat());
            }
            Ok(applied)
        }
        fn bulk_load(
            &self,
            number: u64,
            entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
            sink: &mut dyn BulkSink,
        ) -> Result<B256, StateError> {
            if let Cheat::LosesFirst = self.0 {
                entries.next().transpose()?;
            }
            Hashed.bulk_load(number, entries, sink)
        }
        fn prove(
            &self,
            view: &dyn NodeRead,
            cache: &(),
            keys: &[StateKey],
        ) -> Result<Bytes, StateError> {
            Hashed.prove(view, cache, keys)
        }
        fn verify(
            &self,
            root: B256,
            keys: &[StateKey],
            proof: &[u8],
        ) -> Result<Vec<Option<Value>>, ProofError> {
            let mut rest = proof;
            match self.0 {
                Cheat::Credulous => {
                    let level = decode_level(&mut rest)
                        .ok_or(ProofError::Malformed { what: "the entries" })?;
                    Ok(keys.iter().map(|key| level.get(key).cloned().flatten()).collect())
                }
                Cheat::IgnoresTail => {
                    decode_level(&mut rest);
                    Hashed.verify(root, keys, &proof[..proof.len() - rest.len()])
                }
                _ => Hashed.verify(root, keys, proof),
            }
        }
        fn stats(&self, view: &dyn NodeRead, cache: &()) -> Result<BackendStats, StateError> {
            let mut stats = Hashed.stats(view, cache)?;
            stats.live_keys += u64::from(matches!(self.0, Cheat::Miscounts));
            Ok(stats)
        }
    }

    fn is_caught(cheat: Cheat, check: fn(&Kit<'_>)) -> bool {
        let make = move || {
            Arc::new(Cheater(cheat, Default::default())) as Arc<dyn retrie_state::AnyBackend>
        };
        let scale = Scale { blocks: 12, ..Scale::default() };
        catch_unwind(AssertUnwindSafe(|| check(&Kit::new(&make, scale)))).is_err()
    }

    #[test]
    fn the_kit_finds_them() {
        assert!(is_caught(Cheat::Impure, testkit::roots_do_not_depend_on_the_way_there));
        assert!(is_caught(Cheat::Impure, testkit::siblings_do_not_see_each_other));
        assert!(is_caught(Cheat::KeepsDeleted, testkit::values_listings_and_counts_match_a_model));
        assert!(is_caught(Cheat::Credulous, testkit::mutated_proofs_are_refused));
        assert!(is_caught(Cheat::IgnoresTail, testkit::mutated_proofs_are_refused));
        assert!(is_caught(Cheat::LosesFirst, testkit::a_bulk_load_equals_the_first_block));
        assert!(is_caught(Cheat::Miscounts, testkit::values_listings_and_counts_match_a_model));
    }

    #[test]
    fn two_tables_with_one_id_are_refused() {
        let (kv, clash) = (MemoryStore::new(), Arc::new(Cheater(Cheat::Clash, Default::default())));
        let error = common::open(clash, &kv, None, StoreOptions::default()).unwrap_err();
        assert!(error.to_string().contains("One and Other"), "{error}");
    }
}
