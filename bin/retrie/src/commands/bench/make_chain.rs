//! `retrie bench make-chain`: generates a chain from a seed, in files that any client can import.

use super::chain::ContractArgs;
use crate::{
    args::{parse_count, root_backend},
    output::{CommandOutput, grouped, say},
    progress::{ImportProgress, RaceProgress},
};
use eyre::bail;
use retrie_bench::{
    chain::{
        BlockFill, CHAIN_FILE, ChainFork, ChainMaker, ChainRecipe, ContractSet, GENESIS_FILE,
        GenesisPreload, KeyChoice, MadeChain, TransactionMix, write_chain,
        write_chain_with_branches,
    },
    race::RaceStep,
};
use retrie_pipeline::report::{ImportReport, TipReport};
use std::{path::PathBuf, sync::atomic::AtomicBool};

/// Arguments of `retrie bench make-chain`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MakeChainArgs {
    /// Number of blocks after genesis. The first few deploy contracts.
    #[arg(long, value_name = "N", default_value_t = 300)]
    blocks: u64,
    /// Transactions in each block, as long as they take less than 30 Mgas; more than 1428, which no
    /// 30 Mgas hold, are taken whole.
    #[arg(long, value_name = "N", default_value_t = 120, conflicts_with = "gas_target")]
    txs: u64,
    /// Fill blocks to about this much gas instead, at most 1000000000. Above 30000000 the gas limit
    /// is twice this target.
    #[arg(long, value_name = "GAS")]
    gas_target: Option<u64>,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Fork that is active from genesis on. Amsterdam needs --preload, and its access lists are
    /// written to `access-lists.rlp`.
    #[arg(long, value_enum, default_value_t)]
    fork: ForkArg,
    /// Shares of the kinds of transactions.
    #[arg(long, value_name = "SHARES", default_value_t = TransactionMix::default())]
    mix: TransactionMix,
    /// Number of accounts that receive ether and tokens, of customers of smallbank, and of keys of
    /// kvstore.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = parse_count)]
    accounts: u64,
    /// How many of 100 calls of kvstore read.
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    reads: u32,
    /// Choose the keys of kvstore, and with --preload the receivers, by YCSB's Zipf distribution
    /// with this constant (0.99).
    #[arg(long, value_name = "THETA")]
    zipf: Option<f64>,
    /// How many of 100 writes of kvstore insert a new key.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    inserts: u32,
    /// Put accounts, balances and contracts into genesis, as the races do (`bench transfers` and
    /// the others): no block deploys anything, and nothing reverts. With the flags of a race, the
    /// blocks are those of the race.
    #[arg(long)]
    preload: bool,
    /// With --preload: accounts that sign.
    #[arg(long, value_name = "N", default_value = "20k", value_parser = parse_count, requires = "preload")]
    signers: u64,
    /// With --preload: smallbank and kvstore start empty.
    #[arg(long, requires = "preload")]
    fresh: bool,
    #[command(flatten)]
    contracts: ContractArgs,
    /// Also write `branches.rlp`: the same blocks, and after about every N of them a side branch of
    /// up to 16 blocks. An import follows the branch and reorgs back.
    #[arg(long, value_name = "N")]
    side_branches: Option<u64>,
    /// Folder for `genesis.json` and `chain.rlp`. Existing files are not overwritten.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// The fork of a chain.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum ForkArg {
    #[default]
    Prague,
    Amsterdam,
}

impl MakeChainArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        if self.blocks == 0 {
            bail!("--blocks must be 1 at least");
        }
        if self.contracts.is_given() && !self.preload {
            bail!("--contracts needs --preload: other chains deploy contracts of this program");
        }
        let fill = self.gas_target.map_or(BlockFill::Transactions(self.txs), BlockFill::Gas);
        let preload = match self.preload {
            false => None,
            true => {
                let set = match self.mix.has_tokens() {
                    true => self.contracts.set()?,
                    false => ContractSet::own(),
                };
                Some(GenesisPreload {
                    senders: self.signers,
                    contracts: set.into(),
                    empty_ledgers: self.fresh,
                })
            }
        };
        let recipe = ChainRecipe {
            seed: self.seed,
            fork: match self.fork {
                ForkArg::Prague => ChainFork::Prague,
                ForkArg::Amsterdam => ChainFork::Amsterdam,
            },
            fill,
            mix: self.mix,
            accounts: self.accounts,
            keys: KeyChoice { reads: self.reads, inserts: self.inserts, zipf: self.zipf },
            preload,
        };
        let backend = root_backend()?;
        let mut loading = RaceProgress::default();
        let maker = ChainMaker::start(recipe, backend, stop, &mut |done, total| {
            let backend = "genesis";
            loading.update(RaceStep::Loading { backend, done, total });
        });
        loading.finish();
        let mut maker = maker?;
        let mut progress = ImportProgress::new(Some(self.blocks));
        let mut show = |made: &MadeChain| progress.update(&as_report(made));
        let made = match self.side_branches {
            None => write_chain(&mut maker, self.blocks, &self.dir, stop, &mut show),
            Some(every) => write_chain_with_branches(
                &mut maker,
                self.blocks,
                every,
                &self.dir,
                stop,
                &mut show,
            ),
        };
        progress.finish();
        let made = made?;
        let out = CommandOutput::default();
        let [genesis, chain] = [GENESIS_FILE, CHAIN_FILE].map(|name| self.dir.join(name));
        say!(
            out,
            "made {} blocks, {} txs, {:.1} Mgas; {:.1} MB; head {}, state root {}",
            grouped(made.blocks),
            grouped(made.txs),
            made.gas as f64 / 1e6,
            made.bytes as f64 / 1e6,
            made.head,
            made.state_root,
        );
        say!(out, "retrie import --chain {} --datadir DIR {}", genesis.display(), chain.display());
        Ok(())
    }
}

/// The progress so far, in the form of an import report.
pub(crate) fn as_report(made: &MadeChain) -> ImportReport {
    let tip = TipReport { number: made.blocks, hash: made.head, state_root: made.state_root };
    ImportReport {
        blocks: made.blocks,
        txs: made.txs,
        gas: made.gas,
        tip,
        ..ImportReport::default()
    }
}
