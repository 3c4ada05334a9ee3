//! What tests of backends need; above all the conformance suite that every backend runs. Each check
//! is a plain function over a backend factory, and [`backend_tests!`] makes one `#[test]` of each.
//!
//! ```ignore
//! retrie_state_testkit::backend_tests!(|| Arc::new(MyBackend::new()) as Arc<dyn AnyBackend>);
//! ```
//!
//! | to | use |
//! |---|---|
//! | run a backend without a store | [`MemoryView`] |
//! | change some methods of a backend | [`BackendWrapper`] |
//! | let a key-value store fail | [`FaultStore`] |
//! | give a key-value store codes | [`CodeStore`], [`codes()`] |
//! | find public test data | [`data`] |
//! | shorten a long test | [`sample`] |
//! | measure a backend | `benchkit`, with the feature of that name |
//!
//! # Vocabulary
//!
//! * **Block** (`TestBlock`): a random delta with the state it leads to, which a `BTreeMap` model
//!   computes. Its hash depends on its whole history.
//! * **Node** (`TestNode`): a [`StateStore`](retrie_state_store::StateStore) under test, on a store
//!   in memory and a temporary directory for files.
//! * **Roots** (`KnownRoots`): every root that a node computes is recorded under its block's hash.
//!   The same block must have the same root in every node, whatever the node did before.
//!
//! # Scale
//!
//! A check takes a fraction of a second for a plain backend. `RETRIE_TESTKIT_SCALE=n` runs each
//! check with n seeds, `RETRIE_TESTKIT_SEED=s` sets the first seed. A failing test prints its seed.

mod batches;
#[cfg(feature = "benchkit")]
pub mod benchkit;
mod check;
mod chunks;
mod codes;
pub mod data;
mod durability;
mod fault;
mod flat_history;
mod forks;
mod history;
mod model;
mod node;
mod proofs;
mod provenance;
mod roots;
pub mod sample;
mod states;
mod store;
mod view;
mod witnesses;
mod wrapper;

use model::{BlockMiner, ValueFlavour};
use retrie_state::{AnyBackend, KeyForm};
use retrie_state_store::{KvStore, MemoryStore};
use std::sync::Arc;

pub use batches::a_run_equals_its_blocks;
pub use check::a_whole_state_is_checked;
pub use chunks::{a_state_in_chunks_goes_on_as_its_origin, mutated_chunks_are_refused};
pub use codes::{CodeStore, codes};
pub use durability::{
    a_dropped_after_commit_poisons_until_reopened, a_first_commit_of_many_blocks_keeps_them,
    a_kill_at_any_write_loses_nothing_committed, leftover_files_are_removed_on_open,
    pruning_shortens_the_way_back, refused_requests_have_typed_errors, reopening_loses_nothing,
    retention_zero_keeps_no_undo_and_no_old_files, reverting_to_every_depth_restores_the_state,
};
pub use fault::{FaultPlan, FaultStore};
pub use flat_history::every_kept_state_is_read_by_changes;
pub use forks::{
    batches_commit_while_later_proposals_live_on, deep_chains_of_proposals_read_through,
    deep_forks_replace_the_whole_retained_chain, dropped_proposals_leave_no_trace,
    readers_stay_at_their_block, siblings_do_not_see_each_other,
};
pub use history::every_old_state_can_be_read_and_proven;
pub use proofs::{
    mutated_proofs_are_refused, proofs_of_old_blocks_are_those_they_had_at_the_tip,
    proofs_show_presence_and_absence_at_every_retained_block,
};
pub use provenance::versions_are_those_of_the_model_and_proven;
pub use roots::{
    a_bulk_load_equals_the_first_block, equal_states_have_equal_roots,
    roots_do_not_depend_on_the_way_there, slow_jobs_change_nothing,
};
pub use states::{opaque_values_match_a_model, values_listings_and_counts_match_a_model};
pub use store::a_key_value_store_matches_a_model;
pub use view::{MemoryView, TableRows, ViewCounts};
pub use witnesses::{
    mutated_witnesses_say_nothing_wrong, witnesses_give_the_values_and_the_next_root,
};
pub use wrapper::{BackendWrapper, WrappedBackend};

/// Creates an empty backend, the same each time.
pub type BackendFactory<'a> = dyn Fn() -> Arc<dyn AnyBackend> + 'a;

/// How much work the checks do. Backends with costly cryptography use a smaller scale.
#[derive(Clone, Copy, Debug)]
pub struct TestScale {
    /// Number of seeds that each check runs with.
    pub rounds: u64,
    /// Blocks of a usual chain.
    pub blocks: usize,
    /// Operations of a usual block; a big one has ten times as many.
    pub changes: usize,
    /// Proposals on top of each other in the deep checks.
    pub depth: usize,
    /// Number of writes at which a process is killed.
    pub kills: usize,
    /// Mutations tried on each proof; a proof with no more bits than this has each of them flipped.
    pub mutations: usize,
}

impl Default for TestScale {
    fn default() -> Self {
        Self {
            rounds: env("RETRIE_TESTKIT_SCALE").unwrap_or(1).max(1),
            blocks: 24,
            changes: 20,
            depth: 150,
            kills: 100,
            mutations: 2000,
        }
    }
}

impl TestScale {
    /// A small scale, for backends that take milliseconds for a changed key.
    pub fn small() -> Self {
        Self { blocks: 10, changes: 6, depth: 40, kills: 25, mutations: 100, ..Self::default() }
    }

    /// About half of the work, with fewer blocks if `shorter`.
    fn reduced(self, shorter: bool) -> Self {
        Self {
            blocks: if shorter { (self.blocks / 2).max(6) } else { self.blocks },
            depth: self.depth / 2,
            kills: self.kills / 2,
            mutations: self.mutations / 2,
            ..self
        }
    }

    /// For a further configuration of a backend, whose usual one runs the checks at another scale: a
    /// sample of it is the smallest.
    pub fn of_variant(self) -> Self {
        if sample::is_everything() || self.rounds > 1 { self } else { Self::smallest() }
    }

    /// What a sample takes of it. Small scales are samples already.
    fn sampled(self) -> Self {
        let is_sample = !sample::is_everything() && self.rounds == 1 && self.kills > 25;
        if is_sample { self.reduced(true).reduced(false) } else { self }
    }

    /// The smallest scale, for a backend whose own crate has run the checks at another one.
    pub fn smallest() -> Self {
        Self { blocks: 6, depth: 12, kills: 8, mutations: 20, ..Self::small() }
    }
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Makes an empty key-value store.
pub type StoreFactory<'a> = dyn Fn() -> Arc<dyn KvStore> + 'a;

/// A backend under test, and the scale of its test.
#[derive(Clone, Copy)]
pub struct TestKit<'a> {
    factory: &'a BackendFactory<'a>,
    scale: TestScale,
    keys: KeyForm,
    stores: Option<&'a StoreFactory<'a>>,
}

impl std::fmt::Debug for TestKit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestKit").field("scale", &self.scale).finish_non_exhaustive()
    }
}

impl<'a> TestKit<'a> {
    /// Tests the backend that `factory` creates.
    pub fn new(factory: &'a BackendFactory<'a>, scale: TestScale) -> Self {
        let scale = scale.sampled();
        Self { factory, scale, keys: KeyForm::Plain, stores: None }
    }

    /// Gives the backend hashed keys, at a smaller scale: the checks have run with plain keys, and
    /// a backend does not know which it has.
    #[must_use]
    pub fn hashed(self) -> Self {
        let scale = match self.scale.rounds {
            1 => self.scale.reduced(true),
            _ => self.scale,
        };
        Self { keys: KeyForm::Hashed, scale, ..self }
    }

    /// Uses key-value stores that `stores` creates, in place of the one in memory.
    pub const fn on(self, stores: &'a StoreFactory<'a>) -> Self {
        Self { stores: Some(stores), ..self }
    }

    fn key_value_store(&self) -> Arc<dyn KvStore> {
        let make = || Arc::new(MemoryStore::new()) as Arc<dyn KvStore>;
        Arc::new(CodeStore::new(self.stores.map_or_else(make, |make| make()), codes().clone()))
    }

    /// Creates blocks that the backend accepts.
    fn miner(&self, seed: u64, flavour: ValueFlavour, usual: usize) -> BlockMiner {
        let miner = BlockMiner::new(seed, flavour, usual);
        match self.backend().profile().ethereum_state_only {
            true => miner.with_balances_of_ethereum(),
            false => miner,
        }
    }

    fn backend(&self) -> Arc<dyn AnyBackend> {
        (self.factory)()
    }

    /// Runs `check` with each seed.
    fn each_seed(&self, check: impl Fn(u64)) {
        let first = env("RETRIE_TESTKIT_SEED").unwrap_or(1);
        for seed in first..first.saturating_add(self.scale.rounds) {
            eprintln!("seed {seed}");
            check(seed);
        }
    }
}

/// Calls the macro `$then` with the names of all checks.
#[doc(hidden)]
#[macro_export]
macro_rules! __all_backend_checks {
    ($then:path $(, $argument:expr)*) => {
        $then! {
            [$($argument),*]
            values_listings_and_counts_match_a_model
            opaque_values_match_a_model
            siblings_do_not_see_each_other
            dropped_proposals_leave_no_trace
            deep_chains_of_proposals_read_through
            batches_commit_while_later_proposals_live_on
            deep_forks_replace_the_whole_retained_chain
            readers_stay_at_their_block
            reopening_loses_nothing
            a_first_commit_of_many_blocks_keeps_them
            reverting_to_every_depth_restores_the_state
            pruning_shortens_the_way_back
            retention_zero_keeps_no_undo_and_no_old_files
            refused_requests_have_typed_errors
            a_dropped_after_commit_poisons_until_reopened
            a_kill_at_any_write_loses_nothing_committed
            leftover_files_are_removed_on_open
            roots_do_not_depend_on_the_way_there
            a_bulk_load_equals_the_first_block
            equal_states_have_equal_roots
            a_run_equals_its_blocks
            slow_jobs_change_nothing
            proofs_show_presence_and_absence_at_every_retained_block
            proofs_of_old_blocks_are_those_they_had_at_the_tip
            mutated_proofs_are_refused
            witnesses_give_the_values_and_the_next_root
            mutated_witnesses_say_nothing_wrong
            every_old_state_can_be_read_and_proven
            versions_are_those_of_the_model_and_proven
            every_kept_state_is_read_by_changes
            a_whole_state_is_checked
            a_state_in_chunks_goes_on_as_its_origin
            mutated_chunks_are_refused
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __backend_tests {
    ([$factory:expr, $scale:expr] $($check:ident)*) => {$(
        #[test]
        fn $check() {
            $crate::$check(&$crate::TestKit::new(&$factory, $scale));
        }
    )*
        mod hashed_keys {
            use super::*;
            $(
                #[test]
                fn $check() {
                    // A fixed sample of the checks, as each has run with plain keys.
                    if $crate::sample::takes(stringify!($check).len() + 1, 6) {
                        $crate::$check(&$crate::TestKit::new(&$factory, $scale).hashed());
                    }
                }
            )*
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __backend_run_all {
    ([$kit:expr] $($check:ident)*) => {$(
        eprintln!(stringify!($check));
        $check($kit);
    )*};
}

/// Makes one `#[test]` of each check of the [test-kit](crate): `backend_tests!(factory)`
/// or `backend_tests!(factory, scale)`.
#[macro_export]
macro_rules! backend_tests {
    ($factory:expr) => {
        $crate::backend_tests!($factory, $crate::TestScale::default());
    };
    ($factory:expr, $scale:expr) => {
        $crate::__all_backend_checks!($crate::__backend_tests, $factory, $scale);
    };
}

/// Runs every check in turn.
///
/// # Panics
/// At the first one that fails.
pub fn run_all(factory: &BackendFactory<'_>) {
    run_all_of(&TestKit::new(factory, TestScale::default()));
}

/// Runs every check of `kit` in turn.
///
/// # Panics
/// At the first one that fails.
pub fn run_all_of(kit: &TestKit<'_>) {
    crate::__all_backend_checks!(crate::__backend_run_all, kit);
}
