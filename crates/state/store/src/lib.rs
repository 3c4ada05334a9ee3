//! The framework that serves the contract of `retrie-state` for every backend: forks, reverts,
//! durable commits, reads of old states.
//!
//! ```text
//!   client                          this crate                            storage-* crates
//!   ------                          ----------                            ----------------
//!   begin(parent) ----------------> StateSession
//!   reader().get(key) ------------> StateProvider - read ---------------> Backend over NodeRead
//!   finish(delta) ----------------> Proposal <----- apply --------------- Backend over NodeWrite
//!   check root, txn = begin_write
//!   commit(proposals, txn) -------> journal + undo rows in the chain's own transaction
//!   txn.commit()
//!   AfterCommit::run() -----------> overlay in memory, background fold into the tables
//! ```
//!
//! # Example
//!
//! One block on top of the empty state of Ethereum's trie, proven before and after its commit.
//!
//! ```
//! use alloy_primitives::{Address, B256};
//! use retrie_state::{Account, Backend, DeltaBuilder, StateKey, StateReader};
//! use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
//! use retrie_storage_mpt::Mpt;
//! use std::sync::Arc;
//!
//! let rows = Arc::new(MemoryStore::new());
//! let store = StateStore::open(Arc::new(Mpt::new()), rows.clone(), StoreOptions::default())?;
//!
//! let key = StateKey::Account(Address::repeat_byte(0x11));
//! let value = Account { nonce: 1, ..Account::default() }.encode();
//! let mut block = DeltaBuilder::new();
//! block.change(key, None, Some(value.clone()));
//! let proposal = store.begin(StateId::Tip)?.finish(&block.build())?;
//! store.seal(&proposal, B256::repeat_byte(0xaa)); // the block's hash
//! let proof = store.at(StateId::Proposal(&proposal))?.prove(&[key])?;
//! let shown = Mpt::new().verify(proposal.root(), &[key.into()], &proof.bytes)?;
//! assert_eq!(shown, [Some(value.clone())]);
//!
//! let mut txn = rows.begin_write()?; // the chain's own rows go into the same transaction
//! let after = store.commit(&[proposal], &mut *txn)?;
//! txn.commit()?;
//! after.run()?;
//! assert_eq!(store.at(StateId::Tip)?.get(&key)?, Some(value));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Vocabulary
//!
//! * **State id**: names a state: the durable tip, a block, a proposal. [`StateId`].
//! * **State provider**: one state, to read and to prove from. [`StateProvider`].
//! * **Session**: the work on one block on top of any parent, durable or not. [`StateSession`].
//! * **Prefetch**: threads read keys before the block asks for them. [`PrefetchHandle`].
//! * **Proposal**: root and writes of one block, in memory. [`Proposal`].
//! * **Durable**: committed, with the chain's own rows, in one transaction of the [`KvStore`].
//! * **Retention**: how many durable blocks can be reverted, read and extended below the tip.
//! * **Flat history**: what each block changed. The framework reads old states of any backend with
//!   it. [`FlatHistory`], [`StateStore::flat_history`].
//! * **History**: the states of all old blocks with their proofs, where a backend itself keeps
//!   them. [`StateHistory`](retrie_state::StateHistory), [`StateStore::history`].
//! * **Diff layer**: the rows that one block writes, in memory.
//! * **Generation**: the rows of consecutive commits, in the journal and in memory. A background
//!   thread *folds* (writes) a full generation into the tables.
//!
//! # Assumptions
//!
//! The [`KvStore`] commits atomically and durably, and its snapshots do not change. One process
//! writes. Backends are pure (see [`Backend`](retrie_state::Backend)).

mod durable;
mod state_store;

pub use crate::{
    durable::{
        CounterSnapshot, DurableTip, EntrySorter, FlatHistory, KvRead, KvSnapshot, KvStore, KvTxn,
        KvWrite, MemoryStore, Proposal, RecordSorter, TableCounts, TableNamespace,
    },
    state_store::{
        AfterCommit, PrefetchHandle, PrefetchObserver, RootTask, StateCheck, StateCheckSink,
        StateId, StateProvider, StateSession, StateStore, StoreGauges, StoreOptions, StoreStats,
        StoreWatch,
    },
};
