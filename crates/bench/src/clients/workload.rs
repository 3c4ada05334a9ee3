//! What clients are raced on.

use crate::{
    BenchError, Setting,
    chain::{Base, Fill, Recipe},
};
use serde_json::{Map, Value, json};
use std::fmt;

/// When an import commits that was not told when.
const IMPORT: &str = "import, and at the end of a slice";

/// A chain, and how it is run.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name in results.
    pub name: &'static str,
    /// The chain; it has a preload.
    pub recipe: Recipe,
    /// Blocks that are measured.
    pub blocks: u64,
    /// Blocks before them.
    pub warmup: u64,
    /// Turns each client gets; the blocks are shared out among them.
    pub slices: u64,
    /// Blocks a commit; by default the import decides. The end of a slice is always one.
    pub commit_every: Option<u64>,
    /// How the clients get the blocks.
    pub via: Via,
}

/// How a client gets its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// As in an import: many are on the way at once.
    Import,
    /// One by one through the Engine API, as in a live node. Every block is durable before the next
    /// one comes, and senders are recovered on the clock.
    EngineApi,
}

/// When the senders of transactions are recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Senders {
    /// Before the clock starts.
    Recovered,
    /// On the clock.
    Unrecovered,
}

impl fmt::Display for Senders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recovered => "recovered",
            Self::Unrecovered => "unrecovered",
        })
    }
}

impl Workload {
    /// Whether it can be run.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the setting that is wrong.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.blocks == 0 {
            return Err(Setting::Blocks.refused("there must be 1 measured block at least"));
        }
        if self.commit_every == Some(0) {
            return Err(Setting::CommitEvery.refused("a commit must have 1 block at least"));
        }
        if !(1..=self.blocks).contains(&self.slices) {
            let what = "the number of slices must lie between 1 and";
            let what = format!("{what} {}, the number of measured blocks", self.blocks);
            return Err(Setting::Slices.refused(what));
        }
        if self.via == Via::EngineApi && self.commit_every != Some(1) {
            let what = "blocks that come through the Engine API are durable one by one";
            return Err(Setting::CommitEvery.refused(what));
        }
        self.recipe.check()?;
        match self.recipe.preload {
            Some(_) => Ok(()),
            None => Err(BenchError::Workload {
                what: "the chain of a race needs a preloaded state".into(),
            }),
        }
    }

    /// Whether clients find old transactions by their hash. That index is all over its table: where
    /// every block is a commit it would be most of what each writes, whatever holds the state.
    pub fn has_lookup(&self) -> bool {
        self.via == Via::EngineApi || self.commit_every != Some(1)
    }

    /// The state under the chain.
    pub(super) fn base(&self) -> Result<Base, BenchError> {
        let missing = || BenchError::Workload { what: "the chain has no preload".into() };
        Base::of(&self.recipe)?.ok_or_else(missing)
    }

    /// Blocks of slice `slice`, which counts from 1.
    pub(super) const fn slice(&self, slice: u64) -> u64 {
        self.blocks * slice / self.slices - self.blocks * (slice - 1) / self.slices
    }

    /// A name for its blocks, fit for a file name.
    pub(super) fn chain_name(&self, base: &Base) -> String {
        let fill = match self.recipe.fill {
            Fill::Transactions(txs) => format!("{txs}-txs"),
            Fill::Gas(gas) => format!("{gas}-gas"),
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

    /// What was asked for, as fields of a result.
    pub(super) fn params(&self) -> Map<String, Value> {
        let Recipe { seed, accounts, keys, mix, .. } = self.recipe;
        let preload = self.recipe.preload.as_ref();
        let mut params = Map::from_iter([
            ("accounts".to_owned(), json!(accounts)),
            ("signers".to_owned(), json!(preload.map(|preload| preload.senders))),
            ("blocks".to_owned(), json!(self.blocks)),
            ("warmup".to_owned(), json!(self.warmup)),
            ("slices".to_owned(), json!(self.slices)),
            // Some have one less where they cannot all be alike.
            ("blocks_per_slice".to_owned(), json!(self.blocks.div_ceil(self.slices))),
            ("seed".to_owned(), json!(seed)),
            (
                "commit_every".to_owned(),
                self.commit_every.map_or_else(|| json!(IMPORT), |blocks| json!(blocks)),
            ),
        ]);
        let (name, size) = match self.recipe.fill {
            Fill::Transactions(txs) => ("txs", txs),
            Fill::Gas(gas) => ("gas", gas),
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
        // Only where they are not as usual, so that reports of before still compare.
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
