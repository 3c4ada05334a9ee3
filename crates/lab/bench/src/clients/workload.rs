//! The workload of a race of clients.

use crate::{
    BenchError, RaceSetting,
    chain::{BlockFill, ChainRecipe, GenesisBase},
};
use serde_json::{Map, Value, json};
use std::fmt;

/// Value of the param `commit_every` if the import itself decides when it commits.
const IMPORT: &str = "import, and at the end of a slice";

/// A chain, and how it is split into warm-up, slices and commits.
#[derive(Clone, Debug)]
pub struct ClientWorkload {
    /// Its name in results.
    pub name: &'static str,
    /// The recipe of the chain. It must have a preload.
    pub recipe: ChainRecipe,
    /// Number of measured blocks.
    pub blocks: u64,
    /// Number of blocks of the warm-up.
    pub warmup: u64,
    /// Number of turns of each client. The measured blocks are divided among them.
    pub slices: u64,
    /// Blocks per commit; by default the import decides. The end of a slice is always a commit.
    pub commit_every: Option<u64>,
    /// How the clients get their blocks.
    pub via: BlockDelivery,
}

/// How a client gets its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockDelivery {
    /// As in an import, with many blocks in the pipeline at once.
    Import,
    /// One by one through the Engine API, as in a live node. Every block is durable before the next
    /// one is sent, and senders are recovered on the clock.
    EngineApi,
}

/// When the senders of transactions are recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderRecovery {
    /// Before the clock starts.
    Recovered,
    /// On the clock.
    Unrecovered,
}

impl fmt::Display for SenderRecovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recovered => "recovered",
            Self::Unrecovered => "unrecovered",
        })
    }
}

impl ClientWorkload {
    /// Checks whether the workload can be run.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the setting that is wrong.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.blocks == 0 {
            return Err(RaceSetting::Blocks.refused("there must be 1 measured block at least"));
        }
        if self.commit_every == Some(0) {
            return Err(RaceSetting::CommitEvery.refused("a commit must have 1 block at least"));
        }
        if !(1..=self.blocks).contains(&self.slices) {
            let what = "the number of slices must lie between 1 and";
            let what = format!("{what} {}, the number of measured blocks", self.blocks);
            return Err(RaceSetting::Slices.refused(what));
        }
        if self.via == BlockDelivery::EngineApi && self.commit_every != Some(1) {
            let what = "blocks that come through the Engine API are durable one by one";
            return Err(RaceSetting::CommitEvery.refused(what));
        }
        self.recipe.check()?;
        match self.recipe.preload {
            Some(_) => Ok(()),
            None => Err(BenchError::Workload {
                what: "the chain of a race needs a preloaded state".into(),
            }),
        }
    }

    /// Whether clients keep the index from transaction hashes to blocks. Its keys are spread over
    /// the whole table. If every block is a commit, the index would be most of what a client
    /// writes, with any state backend.
    pub fn has_lookup(&self) -> bool {
        self.via == BlockDelivery::EngineApi || self.commit_every != Some(1)
    }

    /// The genesis state of the chain.
    pub(super) fn base(&self) -> Result<GenesisBase, BenchError> {
        let missing = || BenchError::Workload { what: "the chain has no preload".into() };
        GenesisBase::of(&self.recipe)?.ok_or_else(missing)
    }

    /// A name for the blocks, valid as a file name.
    pub(super) fn chain_name(&self, base: &GenesisBase) -> String {
        let fill = match self.recipe.fill {
            BlockFill::Transactions(txs) => format!("{txs}-txs"),
            BlockFill::Gas(gas) => format!("{gas}-gas"),
        };
        let keys = self.recipe.keys;
        let inserts = match keys.inserts {
            0 => String::new(),
            inserts => format!("-inserts-{inserts}"),
        };
        let keys = match (self.recipe.mix.kvstore, keys.zipf) {
            (0, None) => String::new(),
            (0, Some(theta)) => format!("-zipf-{theta}"),
            (_, None) => format!("-reads-{}", keys.reads),
            (_, Some(theta)) => format!("-reads-{}-zipf-{theta}", keys.reads),
        };
        format!("blocks-{}-{fill}{keys}{inserts}-{}", self.warmup + self.blocks, base.name())
    }

    /// The params of a result.
    pub(super) fn params(&self) -> Map<String, Value> {
        let ChainRecipe { seed, accounts, keys, mix, .. } = self.recipe;
        let preload = self.recipe.preload.as_ref();
        let mut params = Map::from_iter([
            ("accounts".to_owned(), json!(accounts)),
            ("signers".to_owned(), json!(preload.map(|preload| preload.senders))),
            ("blocks".to_owned(), json!(self.blocks)),
            ("warmup".to_owned(), json!(self.warmup)),
            ("slices".to_owned(), json!(self.slices)),
            // Some slices have one block less if the blocks cannot be divided evenly.
            ("blocks_per_slice".to_owned(), json!(self.blocks.div_ceil(self.slices))),
            ("seed".to_owned(), json!(seed)),
            (
                "commit_every".to_owned(),
                self.commit_every.map_or_else(|| json!(IMPORT), |blocks| json!(blocks)),
            ),
        ]);
        let (name, size) = match self.recipe.fill {
            BlockFill::Transactions(txs) => ("txs", txs),
            BlockFill::Gas(gas) => ("gas", gas),
        };
        params.insert(name.to_owned(), json!(size));
        if mix.has_tokens() {
            params.insert(
                "contracts".to_owned(),
                json!(preload.map(|preload| preload.contracts.name())),
            );
        }
        if mix.kvstore > 0 {
            params.insert("reads".to_owned(), json!(keys.reads));
        }
        if mix.kvstore > 0 || keys.zipf.is_some() {
            params.insert("zipf".to_owned(), json!(keys.zipf));
        }
        // Only if they differ from the default, so that older reports still compare.
        if preload.is_some_and(|preload| preload.empty_ledgers) {
            params.insert("fresh".to_owned(), json!(true));
        }
        if !self.has_lookup() {
            params.insert("transaction_lookup".to_owned(), json!(false));
        }
        if keys.inserts > 0 {
            params.insert("inserts".to_owned(), json!(keys.inserts));
        }
        params
    }
}
