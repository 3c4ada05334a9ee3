//! `retrie witness lint`: how the witness of some client differs from the canonical one.

use super::{opener, verify::NoBlock};
use crate::{
    args::{DEFAULT_CHAIN, HttpArgs},
    output::{CommandOutput, grouped, say},
};
use eyre::{Context, OptionExt};
use retrie_chainspec::{parse_chain, primitives::Block};
use retrie_pipeline::stateless::{LintReport, WitnessLint};
use retrie_sources::{
    BlockHashOrNumber, RpcClient,
    witness::{WitnessAnswer, enclosed_block, read_block},
};
use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// Arguments of `retrie witness lint`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LintArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = DEFAULT_CHAIN)]
    chain: String,
    /// File of the block: its RLP (binary or hexadecimal), or the JSON of `eth_getBlockByNumber` with
    /// transactions [default: the block in the witness's file].
    #[arg(long, value_name = "FILE", conflicts_with = "rpc")]
    block: Option<PathBuf>,
    /// JSON-RPC endpoint (http or https) to fetch the block from; without a file also the witness
    /// (`debug_executionWitness`).
    #[arg(long, value_name = "URL", requires = "at")]
    rpc: Option<String>,
    /// The block to fetch.
    #[arg(long, value_name = "NUMBER_OR_HASH", requires = "rpc")]
    at: Option<BlockHashOrNumber>,
    #[command(flatten)]
    http: HttpArgs,
    /// Write the findings as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// File of the witness, plain or gzipped: a client's answer, with or without the JSON-RPC around
    /// it, or a file of `retrie witness make`.
    #[arg(value_name = "WITNESS_FILE", required_unless_present = "rpc")]
    file: Option<PathBuf>,
}

impl LintArgs {
    /// Runs the command. Fails with the number of findings, or with [`LintAborted`].
    pub(super) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let report = self.lint(stop).and_then(|report| self.print(&report).map(|()| report));
        let report = report.wrap_err(LintAborted)?;
        match report.findings.len() {
            0 => Ok(()),
            count => Err(WitnessDiffers(count).into()),
        }
    }

    fn lint(&self, stop: &Arc<AtomicBool>) -> eyre::Result<LintReport> {
        let spec = parse_chain(&self.chain)?;
        let node = match (&self.rpc, self.at) {
            (Some(url), Some(at)) => Some((RpcClient::new(url, self.http.client(stop)), at)),
            _ => None,
        };
        if let Some((client, _)) = &node {
            client.check_chain(&spec)?;
        }
        let answer = match (&self.file, &node) {
            (Some(file), _) => WitnessAnswer::load(file)?,
            (None, Some((client, at))) => client.execution_witness(*at)?,
            (None, None) => eyre::bail!("there is no witness: give its file, or --rpc"),
        };
        let block = self.block(&answer, node.as_ref())?;
        let opener = opener()?;
        let opener = opener.extensions().partial_state.ok_or_eyre("it opens no witnesses")?;
        Ok(WitnessLint { spec, opener }.check(block, &answer)?)
    }

    fn block(
        &self,
        answer: &WitnessAnswer,
        node: Option<&(RpcClient, BlockHashOrNumber)>,
    ) -> eyre::Result<Block> {
        let file = self.file.clone().unwrap_or_default();
        Ok(match (&self.block, node, &answer.block) {
            (Some(file), ..) => read_block(file)?,
            (None, Some((client, BlockHashOrNumber::Hash(hash))), _) => {
                client.block_by_hash(*hash)?
            }
            (None, Some((client, BlockHashOrNumber::Number(number))), _) => {
                client.block(*number)?
            }
            (None, None, Some(rlp)) => enclosed_block(&file, rlp)?,
            (None, None, None) => return Err(NoBlock(file).into()),
        })
    }

    fn print(&self, report: &LintReport) -> eyre::Result<()> {
        let out = CommandOutput::new(self.json.clone())?;
        for finding in &report.findings {
            say!(out, "{finding}");
        }
        let (given, needed) = (report.given, report.needed);
        say!(
            out,
            "block {} ({}): {} of {} trie nodes, {} of {} codes and {} of {} headers are needed",
            report.number,
            report.hash,
            grouped(needed.state as u64),
            grouped(given.state as u64),
            grouped(needed.codes as u64),
            grouped(given.codes as u64),
            grouped(needed.headers as u64),
            grouped(given.headers as u64)
        );
        if !report.complete {
            say!(out, "the block was not executed to its end: what is unused is not known");
        }
        if report.findings.is_empty() {
            say!(out, "it is the canonical witness");
        }
        out.json(report)
    }
}

/// There was nothing to compare.
#[derive(Debug)]
pub(crate) struct LintAborted;

impl fmt::Display for LintAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the witness was not checked")
    }
}

/// The witness is not canonical.
#[derive(Debug, thiserror::Error)]
#[error("the witness differs from the canonical one: {} findings", grouped(*.0 as u64))]
struct WitnessDiffers(usize);
