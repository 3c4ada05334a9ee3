//! `retrie proof`: fetches parts of the state with proofs from a node, and verifies proofs without
//! a node.

use crate::{
    args::{HttpArgs, KeyFormChoice, PinArgs},
    output::{CommandOutput, say},
};
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use eyre::{Context, OptionExt, bail};
use retrie_chainspec::primitives::Header;
use retrie_light_client::{
    EthProofResponse, LightClientError, ProvenValue, ProvenanceResponse, StateProof,
    StateProofResponse, TrustBasis, TrustedRoot, VerifiedProvenance, VerifiedState,
};
use retrie_sources::RpcClient;
use retrie_state::KeyForm;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    /// Verify a proof; print what it shows and which trust it depends on.
    Verify(VerifyArgs),
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

/// Arguments of `retrie proof verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The proof: a file of `retrie proof get` or `provenance`, or the result of `state_getProof`,
    /// `state_getProvenance` or `eth_getProof`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    trusted: TrustedArgs,
    /// The form of the keys in the store whose root is trusted, `plain` or `hashed`; it must be known
    /// unless the root is Ethereum's [default: plain].
    #[arg(long = "state.keys", value_name = "FORM")]
    keys: Option<KeyFormChoice>,
    #[command(flatten)]
    pins: PinArgs,
}

/// What is trusted: a root, a checkpoint or a header. Without any of these the proof is checked
/// against the root in its own file. That verifies nothing, and is an error.
#[derive(Clone, Debug, clap::Args)]
struct TrustedArgs {
    /// Trust this root, whatever its block.
    #[arg(long, value_name = "ROOT", conflicts_with_all = ["checkpoint", "header", "block_hash"])]
    root: Option<B256>,
    /// Trust this root of this block: for roots that are in no header.
    #[arg(long, value_name = "NUMBER:ROOT", value_parser = parse_checkpoint, conflicts_with_all = ["header", "block_hash"])]
    checkpoint: Option<(u64, B256)>,
    /// Trust the `stateRoot` of the block with this hash. Its header is taken from the file of
    /// `retrie proof get`, or from --header.
    #[arg(long, value_name = "HASH")]
    block_hash: Option<B256>,
    /// Trust the `stateRoot` of this header: its RLP, binary or hexadecimal. With --block-hash its
    /// hash is checked.
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
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

impl VerifyArgs {
    fn run(self) -> eyre::Result<()> {
        let name = self.file.display().to_string();
        let text = fs::read(&self.file).wrap_err_with(|| format!("reading {name}"))?;
        let json: Value =
            serde_json::from_slice(&text).wrap_err_with(|| format!("{name}: no JSON"))?;
        let header = json.get("header").cloned();
        let header = header.map(serde_json::from_value).transpose();
        let header = header.wrap_err_with(|| format!("{name}: member `header`"))?;
        let (trusted, origin) = match self.trusted.root(header, &name)? {
            Some((root, origin)) => (root, Ok(origin)),
            None => {
                let root = own_root(&json).wrap_err_with(|| format!("{name}: {NO_ANSWER}"))?;
                (TrustedRoot::Root(root), Err(UntrustedRoot { file: name.clone(), root }))
            }
        };
        let read = || format!("{name}: {NO_ANSWER}");
        let refused = |error: LightClientError| {
            let flag = match &error {
                LightClientError::UnknownParams { backend, .. } => PinArgs::flag_of(backend)
                    .map(|flag| format!(": --{flag} says which parameters you trust")),
                LightClientError::OtherKeys { .. } => {
                    Some(": --state.keys says which keys the store of the root has".into())
                }
                _ => None,
            };
            let flag = flag.unwrap_or_default();
            eyre::Report::new(error).wrap_err(format!("{name} is refused{flag}"))
        };
        let verifier = match self.keys {
            Some(KeyFormChoice(KeyForm::Hashed)) => self.pins.verifier()?.hashed_keys(),
            Some(KeyFormChoice(KeyForm::Plain)) | None => self.pins.verifier()?,
        };
        if json.get("versions").is_some() {
            let answer: ProvenanceResponse = serde_json::from_value(json).wrap_err_with(read)?;
            let verified = verifier.verify_provenance(&answer, &trusted).map_err(refused)?;
            return print_versions(&verified, &origin?);
        }
        let verified = if json.get("accountProof").is_some() {
            let answer: EthProofResponse = serde_json::from_value(json).wrap_err_with(read)?;
            verifier.verify_eth_proof(&answer, &trusted)
        } else {
            let answer: StateProofResponse = serde_json::from_value(json).wrap_err_with(read)?;
            verifier.verify_response(&answer, &trusted)
        };
        print(&verified.map_err(refused)?, &origin?)
    }
}

const NO_ANSWER: &str = "no answer of state_getProof, of state_getProvenance, or of eth_getProof";

/// The root inside the proof itself. The node that made the proof can make up both.
fn own_root(answer: &Value) -> eyre::Result<B256> {
    if let Some(root) = answer.get("root") {
        return Ok(B256::deserialize(root)?);
    }
    let top = answer.get("accountProof").and_then(|nodes| nodes.get(0));
    let top = top.ok_or_eyre("it has no root")?;
    Ok(keccak256(Bytes::deserialize(top)?))
}

/// The proof is complete, but its root has no trusted source.
#[derive(Debug)]
struct UntrustedRoot {
    file: String,
    root: B256,
}

impl std::fmt::Display for UntrustedRoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, root } = self;
        write!(
            f,
            "nothing is verified: {file} is consistent, but its root {root} comes from the file itself, \
             and the node that made the file can make up both. Give a hash or root that you trust, from \
             a source other than this node: --block-hash HASH of its block, --root ROOT, or \
             --checkpoint NUMBER:ROOT"
        )
    }
}

impl std::error::Error for UntrustedRoot {}

impl TrustedArgs {
    /// The trusted root, and a text about its source. `enclosed` is the header that came with the
    /// proof in `file`.
    fn root(
        &self,
        enclosed: Option<Bytes>,
        file: &str,
    ) -> eyre::Result<Option<(TrustedRoot, String)>> {
        if let Some(root) = self.root {
            let origin = "the root was given on the command line (--root)".to_owned();
            return Ok(Some((TrustedRoot::Root(root), origin)));
        }
        if let Some((number, root)) = self.checkpoint {
            let origin =
                format!("the root of block {number} was given on the command line (--checkpoint)");
            return Ok(Some((TrustedRoot::Checkpoint { number, root }, origin)));
        }
        let (rlp, source) = match (&self.header, enclosed, self.block_hash) {
            (Some(path), ..) => (read_header(path)?, path.display().to_string()),
            (None, Some(rlp), Some(_)) => (rlp, file.to_owned()),
            (None, None, Some(_)) => {
                bail!("the proof comes without the header of its block: give it by --header FILE")
            }
            (None, _, None) => return Ok(None),
        };
        let (hash, origin) = match self.block_hash {
            Some(hash) => (
                hash,
                format!(
                    "the block hash was given on the command line (--block-hash); the header of \
                     that hash, and the root in it, come from {source}"
                ),
            ),
            None => (
                keccak256(&rlp),
                format!(
                    "the header, and the root in it, were taken from {source} as they are \
                     (--header): no --block-hash says what its hash must be"
                ),
            ),
        };
        Ok(Some((TrustedRoot::Header { hash, rlp }, origin)))
    }
}

/// RLP of a header, binary or hexadecimal.
fn read_header(path: &Path) -> eyre::Result<Bytes> {
    let bytes = fs::read(path).wrap_err_with(|| format!("reading {}", path.display()))?;
    let bytes = match bytes.trim_ascii().strip_prefix(b"0x") {
        Some(digits) => hex::decode(digits).wrap_err_with(|| path.display().to_string())?,
        None => bytes,
    };
    Ok(bytes.into())
}

fn print(verified: &VerifiedState, origin: &str) -> eyre::Result<()> {
    let out = CommandOutput::default();
    if let Some(number) = verified.as_of {
        say!(out, "state after block {number}:");
    }
    for shown in &verified.shown {
        say!(out, "{}", line(shown));
    }
    print_trust(&out, &verified.trust, origin)
}

fn print_versions(verified: &VerifiedProvenance, origin: &str) -> eyre::Result<()> {
    let out = CommandOutput::default();
    let (from, to) = (verified.blocks.start(), verified.blocks.end());
    say!(out, "{}, blocks {from} to {to}: {} versions", verified.key, verified.versions.len());
    for (block, shown) in &verified.versions {
        say!(out, "set by block {block}: {}", line(shown));
    }
    print_trust(&out, &verified.trust, origin)
}

fn line(shown: &ProvenValue) -> String {
    match shown {
        ProvenValue::Account { address, account: None } => {
            format!("account {address}: there is none")
        }
        ProvenValue::Account { address, account: Some(account) } => format!(
            "account {address}: balance {} wei, nonce {}, code hash {}",
            account.balance, account.nonce, account.code_hash
        ),
        ProvenValue::Slot { slot, value, .. } => format!("slot {slot}: {value:#x}"),
    }
}

fn print_trust(out: &CommandOutput, trust: &TrustBasis, origin: &str) -> eyre::Result<()> {
    say!(out, "trusted: {origin}");
    for sentence in trust.sentences() {
        say!(out, "verified: {sentence}");
    }
    Ok(())
}

fn parse_slot(text: &str) -> Result<B256, String> {
    let number: Result<U256, _> = text.parse();
    number.map(B256::from).map_err(|error| format!("it is no number of 256 bits ({error})"))
}

fn parse_checkpoint(text: &str) -> Result<(u64, B256), String> {
    let (number, root) = text.split_once(':').ok_or("it is NUMBER:ROOT")?;
    let number = number.parse().map_err(|error| format!("block number: {error}"))?;
    Ok((number, root.parse().map_err(|error| format!("root: {error}"))?))
}
