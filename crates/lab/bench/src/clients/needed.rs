//! The work that the blocks of a slice need, whatever client does it.

use super::workload::{BlockDelivery, ClientWorkload, SenderRecovery};
use crate::{
    limit::{CHANGED_KEY_BYTES, HashWork, NeededWork, mix_name},
    race::RaceTerms,
};
use retrie_db::SyncMode;

/// Counts the work that slices of a workload need.
#[derive(Clone, Debug)]
pub(super) struct SliceNeeds {
    mix: String,
    senders: SenderRecovery,
    is_durable: bool,
    /// Blocks in each commit; `None` if one commit a slice is enough.
    commit_every: Option<u64>,
    /// The least number of keys in the trie that changed keys are in, for a client with Ethereum's
    /// root.
    trie: Option<u64>,
}

/// The counts of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceCounts {
    pub(super) blocks: u64,
    pub(super) transactions: u64,
    pub(super) gas: u64,
    /// Keys that its blocks change.
    pub(super) changed: u64,
}

impl SliceNeeds {
    /// Of a client with Ethereum's root, or of any client, on a made chain.
    pub(super) fn on_made(
        workload: &ClientWorkload,
        senders: SenderRecovery,
        terms: &RaceTerms,
        has_ethereum_root: bool,
    ) -> Self {
        let recipe = &workload.recipe;
        // Transfers change the accounts of senders and receivers. Other calls change slots of
        // several contracts too: tokens with a slot for each sender, or ten banks that share the
        // accounts.
        let keys = match &recipe.preload {
            Some(preload) if recipe.mix.transfers_alone() => recipe.accounts + preload.senders,
            Some(preload) if !preload.empty_ledgers => preload.senders.min(recipe.accounts / 10),
            _ => 0,
        };
        let commit_every = match workload.via {
            BlockDelivery::Import => workload.commit_every,
            BlockDelivery::EngineApi => Some(1),
        };
        Self {
            mix: mix_name(recipe),
            senders,
            is_durable: terms.sync == SyncMode::Durable,
            commit_every,
            trie: has_ethereum_root.then_some(keys),
        }
    }

    /// Of real blocks, each a commit. How many keys their tries have is not known.
    pub(super) fn on_real(mix: &str, terms: &RaceTerms, has_ethereum_root: bool) -> Self {
        Self {
            mix: mix.into(),
            senders: SenderRecovery::Unrecovered,
            is_durable: terms.sync == SyncMode::Durable,
            commit_every: Some(1),
            trie: has_ethereum_root.then_some(0),
        }
    }

    /// The work for a slice.
    pub(super) fn of(&self, counts: SliceCounts) -> NeededWork {
        let SliceCounts { blocks, transactions, gas, changed } = counts;
        let commits = match self.commit_every {
            None => blocks.min(1),
            Some(every) => blocks.div_ceil(every.max(1)),
        };
        let of_block = changed / blocks.max(1);
        NeededWork {
            signatures: match self.senders {
                SenderRecovery::Recovered => 0,
                SenderRecovery::Unrecovered => transactions,
            },
            hashes: self.trie.map_or_else(HashWork::default, |keys| {
                HashWork::leaves(changed) + HashWork::branches(of_block, keys) * blocks as f64
            }),
            commits: if self.is_durable { commits } else { 0 },
            bytes: if self.is_durable { changed * CHANGED_KEY_BYTES } else { 0 },
            ..NeededWork::executing(self.mix.clone(), gas)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{ChainRecipe, ContractSet, GenesisPreload, TransactionMix};
    use crate::race::MemoryTerms;

    fn needs(mix: TransactionMix, senders: SenderRecovery, has_root: bool) -> SliceNeeds {
        let contracts = ContractSet::own().into();
        let preload = GenesisPreload { senders: 50, contracts, empty_ledgers: false };
        let recipe =
            ChainRecipe { mix, accounts: 10_000, preload: Some(preload), ..ChainRecipe::BUILT_IN };
        let workload = ClientWorkload {
            name: "transfers",
            recipe,
            blocks: 30,
            warmup: 0,
            slices: 3,
            commit_every: Some(4),
            via: BlockDelivery::Import,
        };
        let terms = RaceTerms {
            sync: SyncMode::Durable,
            cache_bytes: 0,
            retention: 8,
            read_threads: 0,
            memory: MemoryTerms::FREE,
        };
        SliceNeeds::on_made(&workload, senders, &terms, has_root)
    }

    #[test]
    fn slice_needs_what_its_blocks_have() {
        const COUNTS: SliceCounts =
            SliceCounts { blocks: 10, transactions: 1000, gas: 21_000_000, changed: 2000 };
        let transfers = TransactionMix { transfers: 1, ..TransactionMix::NOTHING };
        let raw = needs(transfers, SenderRecovery::Unrecovered, false).of(COUNTS);
        assert_eq!((raw.signatures, raw.commits, raw.bytes), (1000, 3, 64_000));
        assert_eq!(raw.gas.into_iter().collect::<Vec<_>>(), [("transfers=1".into(), 21_000_000)]);
        assert_eq!(raw.hashes, HashWork::default());
        let mpt = needs(transfers, SenderRecovery::Recovered, true).of(COUNTS);
        assert_eq!(mpt.signatures, 0);
        assert!(mpt.hashes.nodes > 2000.0 + 10.0 * 200.0, "{mpt:?}");
        let swaps = TransactionMix { swaps: 1, ..TransactionMix::NOTHING };
        let swaps = needs(swaps, SenderRecovery::Recovered, true).of(COUNTS);
        assert!(swaps.gas.contains_key("swaps=1, own contracts"));
        assert!(swaps.hashes.nodes < mpt.hashes.nodes, "fifty senders in the trie at least");
    }
}
