//! A mock backend whose root is the hash of the whole sorted state, and whose proof is the whole
//! state: the plainest backend with a state-determined root and real proofs.

mod common;

use alloy_primitives::{Address, B256, Bytes, keccak256};
use common::{Level, decode_level, digest, encode_level};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Cache, Capabilities, HashId, Identity,
    Jobs, NodeRead, NodeWrite, ProofError, StateDelta, StateError, StateKey, Table, Value, flat,
};
use std::sync::Arc;

static IDENTITY: Identity =
    Identity { name: "mock-hash", version: 1, hash: HashId::Keccak256, params: B256::ZERO };

struct Hashed;

fn whole(view: &dyn NodeRead) -> Result<Level, StateError> {
    let entries = flat::entries(view, None, usize::MAX)?;
    Ok(entries.into_iter().map(|(key, value)| (key, Some(value))).collect())
}

impl Backend for Hashed {
    fn identity(&self) -> &Identity {
        &IDENTITY
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            proofs: true,
            absence_proofs: true,
            state_determined_root: true,
            ethereum_root: false,
            history: false,
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![flat::TABLE]
    }

    fn empty_root(&self) -> B256 {
        digest(&Level::new())
    }

    fn open(&self, _: &dyn NodeRead, _: &Jobs) -> Result<Cache, StateError> {
        Ok(Arc::new(()))
    }

    fn apply(
        &self,
        _: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &Cache,
        delta: &StateDelta,
    ) -> Result<Applied, StateError> {
        flat::apply(view, delta)?;
        Ok(Applied { root: digest(&whole(view.as_read())?), cache: cache.clone() })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        _: &Cache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        flat::get(view, key)
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        _: &Cache,
        address: &Address,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        flat::slots_of(view, address)
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        _: &Cache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        flat::entries(view, start, limit)
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut level = Level::new();
        for entry in entries {
            let (key, value) = entry?;
            flat::put(sink, &key, &value)?;
            level.insert(key, Some(value));
        }
        Ok(digest(&level))
    }

    fn prove(&self, view: &dyn NodeRead, _: &Cache, _: &[StateKey]) -> Result<Bytes, StateError> {
        Ok(encode_level(&whole(view)?).into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        mut proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        if keccak256(proof) != root {
            return Err(ProofError::RootMismatch);
        }
        let level =
            decode_level(&mut proof).ok_or(ProofError::Malformed { what: "the entries" })?;
        Ok(keys.iter().map(|key| level.get(key).cloned().flatten()).collect())
    }

    fn stats(&self, view: &dyn NodeRead, _: &Cache) -> Result<BackendStats, StateError> {
        let live_keys = whole(view)?.len() as u64;
        Ok(BackendStats { tables: vec![(flat::TABLE.name, live_keys)], live_keys, dead_keys: 0 })
    }
}

retrie_state::backend_tests!(|| Arc::new(Hashed) as Arc<dyn Backend>);

#[test]
fn run_all_runs_every_check_too() {
    if std::env::var_os("RETRIE_TESTKIT_SCALE").is_some() {
        retrie_state::testkit::run_all(&|| Arc::new(Hashed));
    }
}

/// A backend that cheats: what the kit is there to find.
mod cheats {
    use super::*;
    use retrie_state::testkit::{self, Kit, Scale};
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
    }

    struct Cheater(Cheat, std::sync::atomic::AtomicU64);

    impl Backend for Cheater {
        fn identity(&self) -> &Identity {
            &IDENTITY
        }
        fn capabilities(&self) -> Capabilities {
            Hashed.capabilities()
        }
        fn tables(&self) -> Vec<Table> {
            Hashed.tables()
        }
        fn empty_root(&self) -> B256 {
            Hashed.empty_root()
        }
        fn open(&self, view: &dyn NodeRead, jobs: &Jobs) -> Result<Cache, StateError> {
            Hashed.open(view, jobs)
        }
        fn apply(
            &self,
            context: &ApplyContext<'_>,
            view: &mut dyn NodeWrite,
            cache: &Cache,
            delta: &StateDelta,
        ) -> Result<Applied, StateError> {
            if let Cheat::KeepsDeleted = self.0 {
                for change in delta.changes() {
                    if let Some(next) = &change.next {
                        view.put(flat::TABLE, &change.key.encode(), next.clone())?;
                    }
                }
                return Ok(Applied { root: digest(&whole(view.as_read())?), cache: cache.clone() });
            }
            let mut applied = Hashed.apply(context, view, cache, delta)?;
            if let Cheat::Impure = self.0 {
                let calls = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                applied.root = keccak256([applied.root.as_slice(), &calls.to_be_bytes()].concat());
            }
            Ok(applied)
        }
        fn read(
            &self,
            view: &dyn NodeRead,
            cache: &Cache,
            key: &StateKey,
        ) -> Result<Option<Value>, StateError> {
            Hashed.read(view, cache, key)
        }
        fn slots_of(
            &self,
            view: &dyn NodeRead,
            cache: &Cache,
            address: &Address,
        ) -> Result<Vec<(B256, Value)>, StateError> {
            Hashed.slots_of(view, cache, address)
        }
        fn entries(
            &self,
            view: &dyn NodeRead,
            cache: &Cache,
            start: Option<&StateKey>,
            limit: usize,
        ) -> Result<Vec<(StateKey, Value)>, StateError> {
            Hashed.entries(view, cache, start, limit)
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
            cache: &Cache,
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
        fn stats(&self, view: &dyn NodeRead, cache: &Cache) -> Result<BackendStats, StateError> {
            let mut stats = Hashed.stats(view, cache)?;
            stats.live_keys += u64::from(matches!(self.0, Cheat::Miscounts));
            Ok(stats)
        }
    }

    fn is_caught(cheat: Cheat, check: fn(&Kit<'_>)) -> bool {
        let make = move || Arc::new(Cheater(cheat, Default::default())) as Arc<dyn Backend>;
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
}
