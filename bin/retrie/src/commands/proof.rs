//! `retrie proof`: fetches parts of the state with proofs from a node, and verifies proofs without
//! a node.

mod shown;
mod trusted;
mod verify;

use crate::{
    args::HttpArgs,
    output::{CommandOutput, say},
};
use alloy_primitives::{Address, B256, Bytes, U256};
use eyre::{Context, bail};
use retrie_chainspec::primitives::Header;
use retrie_light_client::{ProvenanceResponse, StateProof, StateProofResponse};
use retrie_sources::RpcClient;
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

/// `retrie proof ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum ProofCommand {
    /// Fetch an account and its slots with a proof from a node (`state_getProof`). Nothing is
    /// verified.
    Get(GetArgs),
    /// Fetch the values of an account or slot over a range of blocks with a proof
    /// (`state_getProvenance`). Nothing is verified.
    Provenance(ProvenanceArgs),
    /// Verify a proof, a call or complete logs; print what is shown and which trust it depends on.
    Verify(verify::VerifyArgs),
}

impl ProofCommand {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Get(args) => args.run(stop),
            Self::Provenance(args) => args.run(stop),
            Self::Verify(args) => args.run(),
        }
    }
}

/// Arguments of `retrie proof get`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GetArgs {
    /// JSON-RPC URL of a retrie node with the namespace `state`.
    #[arg(long, value_name = "URL")]
    rpc: String,
    /// The account.
    #[arg(long, value_name = "ADDRESS")]
    address: Address,
    /// A storage slot of the account, as a number (0x.. or decimal). May be repeated.
    #[arg(long = "slot", value_name = "SLOT", value_parser = parse_slot)]
    slots: Vec<B256>,
    /// The block: its number, or latest, safe, finalized.
    #[arg(long, value_name = "BLOCK", default_value = "latest")]
    block: String,
    /// Output file: the node's response as JSON, and the header of its block.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    http: HttpArgs,
}

/// Arguments of `retrie proof provenance`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProvenanceArgs {
    /// JSON-RPC URL of a retrie node with the namespace `state`, on a backend with provenance
    /// (`cole`).
    #[arg(long, value_name = "URL")]
    rpc: String,
    /// The account.
    #[arg(long, value_name = "ADDRESS")]
    address: Address,
    /// A storage slot of the account, as a number (0x.. or decimal) [default: the account itself].
    #[arg(long, value_name = "SLOT", value_parser = parse_slot)]
    slot: Option<B256>,
    /// First block of the range. The value at its start is shown too.
    #[arg(long, value_name = "NUMBER")]
    from: u64,
    /// Last block of the range.
    #[arg(long, value_name = "NUMBER")]
    to: u64,
    /// Output file: the node's response as JSON, and the header of the block whose root the proof
    /// leads to.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    http: HttpArgs,
}

/// The file written by `retrie proof get` and `provenance`.
#[derive(Debug, Serialize)]
struct ProofFile<T> {
    #[serde(flatten)]
    answer: T,
    /// RLP of the header of the block whose root the proof leads to.
    header: Bytes,
}

/// Writes a response with the header of the block whose root `proof` leads to; the header is
/// `known` or fetched. `shown` describes the proof, if it is not the state after that block.
fn save(
    client: &RpcClient,
    file: &Path,
    answer: impl Serialize,
    proof: &StateProof,
    shown: Option<String>,
    known: Option<Header>,
) -> eyre::Result<()> {
    let header = match known {
        Some(header) => header,
        None => {
            let (hash, header) = client.header(proof.block.number)?;
            if hash != proof.block.hash {
                bail!(
                    "{}: the proof is under the root of block {}, which is {hash} now: try again",
                    client.endpoint(),
                    proof.block
                );
            }
            header
        }
    };
    let name = file.display();
    let json = serde_json::to_vec_pretty(&ProofFile {
        answer,
        header: alloy_rlp::encode(&header).into(),
    })?;
    fs::write(file, json).wrap_err_with(|| format!("writing {name}"))?;
    let out = CommandOutput::default();
    say!(out, "wrote {name}: {} bytes of proof by {}", proof.bytes.len(), proof.backend);
    say!(out, "block {}", proof.block);
    if let Some(shown) = shown {
        say!(out, "{shown}, under the root of this block");
    }
    say!(out, "root {}", proof.root);
    say!(out, "nothing is verified yet: `retrie proof verify` does it against a root you trust");
    Ok(())
}

impl GetArgs {
    fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let client = RpcClient::new(&self.rpc, self.http.client(stop));
        let (hash, header) = match self.block.as_str() {
            tag @ ("latest" | "safe" | "finalized") => client.tagged(tag)?,
            number => match number.parse() {
                Ok(number) => client.header(number)?,
                Err(_) => bail!("--block {number}: it is a number, or latest, safe, finalized"),
            },
        };
        let answer: StateProofResponse =
            client.state_proof(&self.address, &self.slots, header.number)?;
        if answer.keys() != StateProofResponse::keys_of(self.address, self.slots) {
            bail!("{}: the node has answered another question", client.endpoint());
        }
        let proof = answer.to_proof();
        if let Some(number) = proof.as_of {
            if number != header.number || proof.block.number <= number {
                bail!(
                    "{}: asked for the state after block {}, the node has answered of block {number} \
                     under the root of block {}",
                    client.endpoint(),
                    header.number,
                    proof.block
                );
            }
            let shown = format!("state after block {number}");
            return save(&client, &self.output, answer, &proof, Some(shown), None);
        }
        if proof.block.hash != hash {
            bail!(
                "{}: the node proves block {}, and block {} was {hash} a moment before: try again",
                client.endpoint(),
                proof.block,
                header.number
            );
        }
        save(&client, &self.output, answer, &proof, None, Some(header))
    }
}

impl ProvenanceArgs {
    fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        if self.from > self.to {
            bail!(
                "--from {} --to {}: the first block must not be above the last",
                self.from,
                self.to
            );
        }
        let client = RpcClient::new(&self.rpc, self.http.client(stop));
        let blocks = self.from..=self.to;
        let answer: ProvenanceResponse =
            client.provenance(&self.address, self.slot.as_ref(), &blocks)?;
        let asked = (self.address, self.slot, blocks);
        if (answer.address, answer.slot, answer.blocks()) != asked {
            bail!("{}: the node has answered another question", client.endpoint());
        }
        let proof = answer.to_proof();
        let shown = format!("versions in blocks {} to {}", self.from, self.to);
        save(&client, &self.output, answer, &proof, Some(shown), None)
    }
}

fn parse_slot(text: &str) -> Result<B256, String> {
    let number: Result<U256, _> = text.parse();
    number.map(B256::from).map_err(|error| format!("it is no number of 256 bits ({error})"))
}
