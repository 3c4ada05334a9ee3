//! The arguments of experiments, as values.

use crate::{
    commands::bench::{
        chain::{BankArgs, ChainRaceArgs, KvArgs, SenderRaces, TokenArgs},
        locality::{LocalityArgs, TreeHeights},
        measurement::RaceMeasurement,
        provenance::ProvenanceRaceArgs,
        race::BenchRace,
        state::{KeysArg, StateRaceArgs},
        tree_sync::TreeFetchArgs,
        trees::TreesArgs,
    },
    output::CommandOutput,
};
use clap::{CommandFactory, Parser, error::ErrorKind};
use eyre::bail;
use retrie_bench::paper::{ExperimentSetup, KvMix, PaperExperiment};
use std::sync::atomic::AtomicBool;

/// Transactions in each block, if the paper does not say.
const TXS_PER_BLOCK: u64 = 500;

/// The command of an experiment, with its arguments.
#[derive(Debug)]
#[cfg_attr(test, derive(clap::Subcommand))]
pub(super) enum ExperimentWork {
    #[cfg_attr(test, command(flatten))]
    Race(Box<BenchRace>),
    /// Counts in flat files, without a backend.
    Locality(LocalityArgs),
    /// Trees in memory.
    Trees(TreesArgs),
    /// The same trees, fetched from peers.
    Sync(TreeFetchArgs),
}

/// Parses the flags that an experiment leaves to the user.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true)]
struct UserFlags<T: clap::Args> {
    #[command(flatten)]
    args: T,
}

impl<T: clap::Args> UserFlags<T> {
    /// The arguments with the user's `flags`, which must not be among the words of the experiment.
    fn parse(flags: &[String], words: &[String]) -> Result<T, clap::Error> {
        let args = Self::try_parse_from(flags)?.args;
        let mut command = Self::command();
        command.build();
        let is_set = |long: &str| words.contains(&format!("--{long}"));
        let is_given = |long: &str| {
            let flag = format!("--{long}");
            flags.iter().any(|given| given.split('=').next() == Some(&*flag))
        };
        let twice = command.get_arguments().find(|arg| {
            arg.get_long().is_some_and(|long| {
                // Further backends race beside those of the experiment.
                long != "backends" && is_set(long) && is_given(long)
            })
        });
        match twice.map(|arg| format!("the argument '{arg}' cannot be used multiple times")) {
            None => Ok(args),
            Some(why) => Err(Self::command().error(ErrorKind::ArgumentConflict, why)),
        }
    }
}

impl ExperimentWork {
    /// The work of an experiment with these words, and with the user's `flags` for stores.
    pub(super) fn new(
        experiment: &PaperExperiment,
        words: &[String],
        flags: &[String],
    ) -> eyre::Result<Self> {
        Ok(match experiment.setup {
            ExperimentSetup::Locality { heights: (low, high), samples, rows } => {
                let mut args: LocalityArgs = UserFlags::parse(flags, words)?;
                args.heights = TreeHeights((low..=high).collect());
                (args.samples, args.rows, args.cold) = (samples, rows, samples > 0);
                Self::Locality(args)
            }
            ExperimentSetup::Trees { elements, hash_every, shapes } => {
                let mut args: TreesArgs = UserFlags::parse(flags, words)?;
                (args.elements, args.hash_every) = (vec![elements], hash_every);
                args.shapes = shapes.into();
                Self::Trees(args)
            }
            ExperimentSetup::Sync { elements, chunk, peers, byzantine } => {
                let mut args: TreeFetchArgs = UserFlags::parse(flags, words)?;
                (args.tree.elements, args.tree.chunk) = (elements, chunk);
                (args.peers, args.byzantine) = (peers, byzantine);
                Self::Sync(args)
            }
            _ => Self::Race(Box::new(race(experiment, words, flags)?)),
        })
    }

    pub(super) fn measure(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        match self {
            Self::Race(race) => race.measure(out, stop),
            Self::Locality(args) => args.measured(out, stop),
            Self::Trees(args) => args.measured(out, stop),
            Self::Sync(args) => args.measured(out, stop),
        }
    }
}

/// The race of an experiment.
fn race(
    experiment: &PaperExperiment,
    words: &[String],
    flags: &[String],
) -> eyre::Result<BenchRace> {
    let backends = experiment.backends;
    Ok(match experiment.setup {
        ExperimentSetup::State { .. } | ExperimentSetup::Replay { .. } => {
            let args = UserFlags::parse(flags, words)?;
            BenchRace::State(state_args(args, &experiment.setup, backends))
        }
        ExperimentSetup::Chain { workload: workload @ ("erc20" | "uniswap"), .. } => {
            let mut tokens: TokenArgs = UserFlags::parse(flags, words)?;
            tokens.args = chain_args(tokens.args, &experiment.setup, backends)?;
            match workload {
                "erc20" => BenchRace::Erc20(tokens),
                _ => BenchRace::Uniswap(tokens),
            }
        }
        ExperimentSetup::Chain { .. } => {
            let args = UserFlags::parse(flags, words)?;
            BenchRace::Transfers(chain_args(args, &experiment.setup, backends)?)
        }
        ExperimentSetup::SmallBank { .. } => {
            let mut bank: BankArgs = UserFlags::parse(flags, words)?;
            bank.args = chain_args(bank.args, &experiment.setup, backends)?;
            bank.fresh = true;
            BenchRace::Smallbank(bank)
        }
        ExperimentSetup::KvStore { mix, .. } => {
            let mut store: KvArgs = UserFlags::parse(flags, words)?;
            store.args = chain_args(store.args, &experiment.setup, backends)?;
            store.inserts = 50;
            store.ratio = vec![match mix {
                KvMix::ReadOnly => 100,
                KvMix::ReadWrite => 50,
                KvMix::WriteOnly => 0,
            }];
            BenchRace::Kvstore(store)
        }
        ExperimentSetup::Provenance { states, blocks, txs_per_block, ranges, memory_pairs } => {
            let mut args: ProvenanceRaceArgs = UserFlags::parse(flags, words)?;
            (args.states, args.blocks, args.txs) = (states, blocks, txs_per_block);
            args.range = ranges.into();
            args.backend_args.set("cole.memory-pairs", &memory_pairs)?;
            prepend(&mut args.backends, backends);
            BenchRace::Provenance(args)
        }
        _ => bail!("`{}` is no race", experiment.setup.workload()),
    })
}

/// The arguments of a race of stores; `args` has the other flags.
fn state_args(
    mut args: StateRaceArgs,
    setup: &ExperimentSetup,
    backends: &[&str],
) -> StateRaceArgs {
    let mut limit = None;
    match *setup {
        ExperimentSetup::State { keys, pairs, commit_every, cache_mb, proofs, memory_limit_mb } => {
            args.keys = vec![keys.map_or(KeysArg::Fresh, KeysArg::Preloaded)];
            (args.pairs, args.commit_every) = (pairs, commit_every);
            set_if_some(&mut args.stores.cache_mb, cache_mb);
            if proofs > 0 {
                args.stores.proofs = proofs;
            }
            limit = memory_limit_mb;
        }
        // The blocks that the papers replayed are not available; the corpus has others.
        ExperimentSetup::Replay { pad_accounts, memory_limit_mb, .. } => {
            args.keys = vec![KeysArg::Real];
            args.pad_accounts = pad_accounts.unwrap_or(args.pad_accounts);
            limit = memory_limit_mb;
        }
        _ => {}
    }
    set_if_some(&mut args.stores.memory_limit, limit.map(|mib| mib << 20));
    prepend(&mut args.stores.backends, backends);
    args
}

/// The arguments of a race of clients; `args` has the other flags.
fn chain_args(
    mut args: ChainRaceArgs,
    setup: &ExperimentSetup,
    backends: &[&str],
) -> eyre::Result<ChainRaceArgs> {
    let mut of_cole = None;
    match *setup {
        ExperimentSetup::Chain {
            accounts,
            senders,
            txs,
            txs_per_block,
            skewed,
            cache_mb,
            merge_interval,
            ..
        } => {
            let (blocks, a_block) = blocks_of(txs, txs_per_block);
            (args.accounts, args.signers) = (vec![accounts], Some(senders));
            (args.blocks, args.txs) = (Some(blocks), Some(a_block));
            set_if_some(&mut args.zipf, skewed.then_some(0.99));
            set_if_some(&mut args.cache_mb, cache_mb);
            if let Some(blocks) = merge_interval {
                args.backend_args.set("lmpt.merge-interval", &blocks)?;
            }
        }
        ExperimentSetup::SmallBank { blocks, txs_per_block, cache_mb, memory_pairs } => {
            args.accounts = vec![bank_accounts(blocks, txs_per_block)];
            (args.blocks, args.txs) = (Some(blocks), Some(txs_per_block));
            of_cole = Some((cache_mb, memory_pairs));
        }
        ExperimentSetup::KvStore {
            base, blocks, txs_per_block, cache_mb, memory_pairs, ..
        } => {
            args.accounts = vec![base];
            (args.blocks, args.txs) = (Some(blocks), Some(txs_per_block));
            of_cole = Some((cache_mb, memory_pairs));
        }
        _ => {}
    }
    // The COLE authors' program: one caller, nothing signed, and every block is measured, from the
    // first one on.
    if let Some((cache_mb, memory_pairs)) = of_cole {
        (args.signers, args.warmup) = (Some(1), Some(0));
        args.backend_args.set("cole.memory-pairs", &memory_pairs)?;
        set_if_some(&mut args.cache_mb, cache_mb);
    }
    // The papers' nodes had these transactions in their pool.
    args.senders = Some(SenderRaces::RECOVERED);
    prepend(&mut args.backends, backends);
    Ok(args)
}

/// Number of blocks of `txs` transactions, and of transactions in each.
pub(super) fn blocks_of(txs: u64, txs_per_block: Option<u64>) -> (u64, u64) {
    let a_block = txs_per_block.unwrap_or(TXS_PER_BLOCK).min(txs);
    (txs.div_ceil(a_block), a_block)
}

/// Number of accounts of SmallBank: in the authors' program up to as many are named as there are
/// transactions.
pub(super) const fn bank_accounts(blocks: u64, txs_per_block: u64) -> u64 {
    blocks * txs_per_block
}

fn set_if_some<T>(place: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *place = value;
    }
}

/// Puts the experiment's backends before those that the user adds.
fn prepend(names: &mut Vec<String>, backends: &[&str]) {
    names.splice(0..0, backends.iter().map(ToString::to_string));
}

#[cfg(test)]
mod tests {
    use super::{super::words::words, *};
    use retrie_bench::paper::{Paper, experiments};

    /// Parses the command line after `retrie bench`.
    #[derive(Debug, clap::Parser)]
    #[command(no_binary_name = true)]
    struct BenchCli {
        #[command(subcommand)]
        work: ExperimentWork,
    }

    #[test]
    fn every_experiment_of_every_paper_is_a_valid_command() {
        for paper in Paper::ALL {
            for scale in [1.0, 0.01, 1e-6] {
                for experiment in experiments(paper, scale) {
                    let words = words(&experiment.setup);
                    let line = BenchCli::try_parse_from(&words);
                    assert!(line.is_ok(), "{paper}: {words:?}: {}", line.unwrap_err());
                }
            }
        }
    }

    /// What is run is what the printed command line runs.
    #[test]
    fn command_lines_repeat_the_experiments() {
        let more = ["--sync", "none", "--retention=0", "--backends", "raw"].map(String::from);
        for experiment in Paper::ALL.into_iter().flat_map(|paper| experiments(paper, 0.01)) {
            let mut words = words(&experiment.setup);
            let flags = if experiment.backends.is_empty() { &[] } else { &more[..] };
            if !flags.is_empty() {
                words.extend(["--backends".into(), experiment.backends.join(",")]);
            }
            let work = ExperimentWork::new(&experiment, &words, flags).unwrap();
            words.extend_from_slice(flags);
            let line = BenchCli::try_parse_from(&words).unwrap();
            assert_eq!(format!("{work:?}"), format!("{:?}", line.work), "{words:?}");
        }
    }

    #[test]
    fn flags_that_the_experiment_sets_are_refused() {
        let state = experiments(Paper::Bavl, 0.01)
            .into_iter()
            .find(|one| matches!(one.setup, ExperimentSetup::State { .. }))
            .unwrap();
        let words = words(&state.setup);
        for flags in [&["--pairs", "5"][..], &["--pairs=5"]] {
            let flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
            let error = ExperimentWork::new(&state, &words, &flags).unwrap_err().to_string();
            let line = BenchCli::try_parse_from(words.iter().chain(&flags)).unwrap_err();
            assert_eq!(error.lines().next(), line.to_string().lines().next());
        }
    }
}
