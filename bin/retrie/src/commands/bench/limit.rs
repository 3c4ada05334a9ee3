//! `retrie bench limit`: measures what each kind of work costs on this machine.

use super::{chain::data_folder, stores::state_cache};
use crate::{
    args::{parse_count, root_backend},
    output::{CommandOutput, say},
};
use retrie_bench::{
    chain::ContractSet,
    limit::{DurableCost, MachineLimits, ProbeConfig, ProbeInputs, UnitCost, measure},
    memory::parse_size,
    state::{BlockCorpus, TraceError},
};
use retrie_pipeline::report::machine;
use retrie_sources::Bundle;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "Each probe runs on one core alone and on all cores at once, in turns; a figure is the \
median of the rounds. Made blocks and mainnet's are executed on a map in memory. The result is kept in \
limit.json beside the cache of prepared states; then `bench`, `replay` and `import` print beside each \
result how near to the limit it is.";

/// Arguments of `retrie bench limit`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct LimitArgs {
    /// Rounds of each probe, alone and together.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Least length of a round in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    round_ms: u64,
    /// Blocks made of each mix of transactions.
    #[arg(long, value_name = "N", default_value = "8", value_parser = parse_count)]
    blocks: u64,
    /// Transactions in each of these blocks.
    #[arg(long, value_name = "N", default_value = "200", value_parser = parse_count)]
    txs: u64,
    /// Size of the file whose pages are read (64MB, 1GB).
    #[arg(long, value_name = "SIZE", default_value = "256MB", value_parser = parse_size)]
    file: u64,
    /// Folder of the cache of prepared states: its disk is measured, and the result is kept there;
    /// or `none` [default: retrie/bench in the user's cache directory].
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    /// Write the figures as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl LimitArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = CommandOutput::new(self.json.clone())?;
        let cache = state_cache(self.state_cache.clone());
        let (bundles, contracts) = (real_bundles()?, contract_sets());
        say!(out, "{}", machine());
        if bundles.is_empty() {
            say!(
                out,
                "without mainnet's blocks and contracts: RETRIE_DATA names no folder with them"
            );
        }
        let config = ProbeConfig {
            rounds: self.rounds,
            round: Duration::from_millis(self.round_ms),
            blocks: self.blocks,
            transactions: self.txs,
            file_bytes: self.file,
        };
        let (root_maker, bundles, cache) = (root_backend()?, &bundles[..], &cache);
        let inputs = ProbeInputs { root_maker, contracts, bundles, cache, stop };
        let limits = measure(&config, &inputs, &mut |probe| tracing::info!("{probe}"))?;
        print(&out, &limits)?;
        match limits.keep(cache)? {
            Some(file) => say!(out, "kept in {}", file.display()),
            None => say!(out, "kept nowhere: --state-cache is `none`, or there is no home"),
        }
        out.json(&limits)
    }
}

/// The real blocks in `RETRIE_DATA`; none if there is no such folder.
fn real_bundles() -> eyre::Result<Vec<Bundle>> {
    match BlockCorpus::user_default().prestate_bundles() {
        Err(TraceError::NoData { .. }) => Ok(Vec::new()),
        bundles => Ok(bundles?),
    }
}

/// The contracts of this program, and those of mainnet if they are there.
fn contract_sets() -> Vec<Arc<ContractSet>> {
    let mainnet = ContractSet::mainnet(&data_folder()).ok();
    std::iter::once(ContractSet::own()).chain(mainnet).map(Arc::new).collect()
}

/// Prints a line for each probe.
fn print(out: &CommandOutput, limits: &MachineLimits) -> eyre::Result<()> {
    say!(out, "\n{:<52} {:>12} {:>12} {:>8}", "a unit of work", "one core", "all cores", "speedup");
    let line = |name: &str, cost: UnitCost| -> eyre::Result<()> {
        let (alone, together) = (time(cost.alone), time(cost.together));
        say!(out, "{name:<52} {alone:>12} {together:>12} {:>8.2}", cost.speedup());
        Ok(())
    };
    line("recover a sender", limits.sender)?;
    for (mix, cost) in &limits.execution {
        line(&format!("execute a transaction: {mix}"), cost.transaction())?;
        line(&format!("  a gas of these ({:.0} each)", cost.gas_per_transaction), cost.gas)?;
    }
    line("hash a branch of 532 bytes (keccak-256)", limits.branch_hash)?;
    line("hash a leaf of 70 bytes (keccak-256)", limits.leaf_hash)?;
    line("look up a key in memory", limits.lookup)?;
    say!(out, "all cores: elapsed time of the whole machine for a unit");
    let disk = &limits.disk;
    say!(out, "\n{:<52} {:>12} {:>12}", "the disk", "one thread", "16 threads");
    let page = disk.page;
    say!(
        out,
        "{:<52} {:>12} {:>12}",
        "read a random page of 4096 bytes",
        time(page.alone),
        time(page.together)
    );
    say!(out, "\n{:<52} {:>12} {:>12}", "a durable commit", "itself", "a MiB more");
    for (name, DurableCost { commit, byte }) in [
        ("write to a file, fdatasync", disk.file),
        ("  a file for each core, all at once", disk.files),
        ("append rows to our database, commit", disk.database),
    ] {
        say!(out, "{name:<52} {:>12} {:>12}", time(commit), time(byte * f64::from(1 << 20)));
    }
    Ok(())
}

/// Seconds with a fitting unit.
fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.2} us", s * 1e6),
        s => format!("{:.3} ns", s * 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_have_the_unit_that_fits() {
        let shown = [2.5, 0.0125, 4.2e-5, 3.1e-8, 0.0].map(time);
        assert_eq!(shown, ["2.50 s", "12.50 ms", "42.00 us", "31.000 ns", "0.000 ns"]);
    }
}
