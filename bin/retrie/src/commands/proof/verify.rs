//! `retrie proof verify`: the kinds of answers, each with its verifier.
//!
//! ```text
//!  versions ------> state_getProvenance --.
//!  accountProof --> eth_getProof ---------+--> trusted root  --.
//!  (else) --------> state_getProof -------'                    +--> what is shown, and on what it
//!  reads ---------> state_call: the call, the chain's rules ---+    rests
//!  blocks --------> state_getLogs: the filter -----------------|
//!  form ----------> the same by index tables ------------------'
//! ```

use super::{
    shown::{print_call, print_log_tables, print_logs, print_state, print_versions},
    trusted::{TrustedArgs, TrustedCall, UntrustedSource},
};
use crate::args::{DEFAULT_CHAIN, KeyFormChoice, PinArgs};
use alloy_primitives::{B256, Bytes, keccak256};
use eyre::{Context, OptionExt};
use retrie_chainspec::parse_chain;
use retrie_light_client::{
    CallResponse, EthProofResponse, LightClientError, LogTablesResponse, LogsResponse,
    ProvenanceResponse, StateProofResponse, StateVerifier, TableTrust, TrustedBlock, TrustedRoot,
    verify_log_tables, verify_logs,
};
use retrie_state::KeyForm;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{fs, path::PathBuf};

/// Arguments of `retrie proof verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The proof: a file of `retrie proof get` or `provenance`, or the result of `state_getProof`,
    /// `state_getProvenance`, `eth_getProof`, `state_call` or `state_getLogs`, with or without the
    /// JSON-RPC around it.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    trusted: TrustedArgs,
    /// What was asked: the call of `state_call`, or the filter of `state_getLogs`, as JSON or in a
    /// file.
    #[arg(long, value_name = "JSON_OR_FILE")]
    request: Option<String>,
    /// The chain whose rules a call follows: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON
    /// file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = DEFAULT_CHAIN)]
    chain: String,
    /// The form of the keys in the store whose root is trusted, `plain` or `hashed`; it must be known
    /// unless the root is Ethereum's [default: plain].
    #[arg(long = "state.keys", value_name = "FORM")]
    keys: Option<KeyFormChoice>,
    #[command(flatten)]
    pins: PinArgs,
}

const NO_ANSWER: &str = "no answer of state_getProof, state_getProvenance, eth_getProof, state_call \
                         or state_getLogs";

impl VerifyArgs {
    /// Runs the command.
    pub(super) fn run(self) -> eyre::Result<()> {
        let name = self.file.display().to_string();
        let text = fs::read(&self.file).wrap_err_with(|| format!("reading {name}"))?;
        let mut json: Value =
            serde_json::from_slice(&text).wrap_err_with(|| format!("{name}: no JSON"))?;
        if json.get("jsonrpc").is_some()
            && let Some(result) = json.get_mut("result")
        {
            json = result.take();
        }
        let answer = AnswerFile { name, json };
        let has = |member: &str| answer.json.get(member).is_some();
        if has("reads") {
            self.verify_call(answer)
        } else if has("form") {
            self.verify_log_tables(answer)
        } else if has("blocks") {
            self.verify_logs(answer)
        } else {
            self.verify_state(answer)
        }
    }

    fn verifier(&self) -> eyre::Result<StateVerifier> {
        Ok(match self.keys {
            Some(KeyFormChoice(KeyForm::Hashed)) => self.pins.verifier()?.hashed_keys(),
            Some(KeyFormChoice(KeyForm::Plain)) | None => self.pins.verifier()?,
        })
    }

    /// What was asked, which no answer says.
    fn request<T: DeserializeOwned>(&self, what: &str) -> eyre::Result<T> {
        let given = self.request.as_deref().ok_or_else(|| {
            eyre::eyre!("give the {what} that was asked: --request JSON, or --request FILE")
        })?;
        let (name, text) = match given.trim_start().starts_with('{') {
            true => ("--request", given.to_owned()),
            false => {
                let text =
                    fs::read_to_string(given).wrap_err_with(|| format!("reading {given}"))?;
                (given, text)
            }
        };
        serde_json::from_str(&text).wrap_err_with(|| format!("{name}: no {what}"))
    }

    fn verify_state(&self, answer: AnswerFile) -> eyre::Result<()> {
        let header = answer.json.get("header").cloned();
        let header = header.map(serde_json::from_value).transpose();
        let header = header.wrap_err_with(|| format!("{}: member `header`", answer.name))?;
        let (trusted, origin) = match self.trusted.root(header, &answer.name)? {
            Some((root, origin)) => (root, Ok(origin)),
            None => {
                let root = answer.own_root().wrap_err_with(|| answer.unreadable())?;
                let remedy =
                    "--block-hash HASH of its block, --root ROOT, or --checkpoint NUMBER:ROOT";
                (TrustedRoot::Root(root), Err(answer.untrusted(format!("root {root}"), remedy)))
            }
        };
        let verifier = self.verifier()?;
        if answer.json.get("versions").is_some() {
            let response: ProvenanceResponse = answer.read()?;
            let verified = verifier.verify_provenance(&response, &trusted);
            return print_versions(&verified.map_err(|error| answer.refused(error))?, &origin?);
        }
        let verified = if answer.json.get("accountProof").is_some() {
            let response: EthProofResponse = answer.read()?;
            verifier.verify_eth_proof(&response, &trusted)
        } else {
            let response: StateProofResponse = answer.read()?;
            verifier.verify_response(&response, &trusted)
        };
        print_state(&verified.map_err(|error| answer.refused(error))?, &origin?)
    }

    fn verify_call(&self, answer: AnswerFile) -> eyre::Result<()> {
        let request = self.request("call")?;
        let spec = parse_chain(&self.chain)?;
        let response: CallResponse = answer.read()?;
        let trusted = self.trusted.call()?;
        let block = match &trusted {
            Some(TrustedCall { block, .. }) => *block,
            None => TrustedBlock { hash: response.block_hash, root: Some(response.root) },
        };
        let verified = self.verifier()?.verify_call(&request, &response, &block, &spec);
        let verified = verified.map_err(|error| answer.refused(error))?;
        let Some(trusted) = trusted else {
            let what = format!("block hash {}", response.block_hash);
            let remedy = "--block-hash HASH of its block, and beside it --root ROOT if no header has \
                          the root of the store";
            return Err(answer.untrusted(what, remedy).into());
        };
        trusted.check_number(verified.number).map_err(|error| answer.refused(error))?;
        print_call(&verified, &trusted.origin)
    }

    fn verify_logs(&self, answer: AnswerFile) -> eyre::Result<()> {
        let filter = self.request("filter")?;
        let response: LogsResponse = answer.read()?;
        let trusted = self.trusted.last_block()?;
        let last = response.blocks.last().map(|block| keccak256(&block.header));
        let hash = match &trusted {
            Some((hash, _)) => *hash,
            None => last.ok_or_eyre("there is no block").wrap_err_with(|| answer.unreadable())?,
        };
        let verified = verify_logs(&response, &filter, hash);
        let verified = verified.map_err(|error| answer.refused(error))?;
        let Some((_, origin)) = trusted else {
            let what = format!("last header, of hash {hash},");
            return Err(answer.untrusted(what, "--block-hash HASH of the last block").into());
        };
        print_logs(&verified, &origin)
    }
}

impl VerifyArgs {
    fn verify_log_tables(&self, answer: AnswerFile) -> eyre::Result<()> {
        let filter = self.request("filter")?;
        let response: LogTablesResponse = answer.read()?;
        let trusted = self.trusted.call()?;
        let (hash, root) = match &trusted {
            Some(TrustedCall { block, .. }) => (block.hash, block.root),
            None => {
                let own = response.state.as_ref().map(|state| state.root);
                (keccak256(&response.header), own)
            }
        };
        let verifier = self.verifier()?;
        let trust = TableTrust::State { verifier: &verifier, root };
        let verified = verify_log_tables(&response, &filter, hash, trust);
        let verified = verified.map_err(|error| answer.refused(error))?;
        let Some(trusted) = trusted else {
            let what = format!("header, of hash {hash},");
            let remedy = "--block-hash HASH of its block, and beside it --root ROOT if no header has \
                          the root of the store";
            return Err(answer.untrusted(what, remedy).into());
        };
        if let Some(state) = &response.state {
            let checked = trusted.check_number(state.block.to());
            checked.map_err(|error| answer.refused(error))?;
        }
        print_log_tables(&verified, &trusted.origin)
    }
}

/// The answer of a node in a file.
struct AnswerFile {
    name: String,
    json: Value,
}

impl AnswerFile {
    fn read<T: DeserializeOwned>(&self) -> eyre::Result<T> {
        T::deserialize(&self.json).wrap_err_with(|| self.unreadable())
    }

    fn unreadable(&self) -> String {
        format!("{}: {NO_ANSWER}", self.name)
    }

    /// The root inside the proof itself. The node that made the proof can make up both.
    fn own_root(&self) -> eyre::Result<B256> {
        if let Some(root) = self.json.get("root") {
            return Ok(B256::deserialize(root)?);
        }
        let top = self.json.get("accountProof").and_then(|nodes| nodes.get(0));
        let top = top.ok_or_eyre("it has no root")?;
        Ok(keccak256(Bytes::deserialize(top)?))
    }

    fn untrusted(&self, what: String, remedy: &'static str) -> UntrustedSource {
        UntrustedSource { file: self.name.clone(), what, remedy }
    }

    /// The error of a verifier, with the flag that may help.
    fn refused(&self, error: LightClientError) -> eyre::Report {
        let flag = match &error {
            LightClientError::UnknownParams { backend, .. } => PinArgs::flag_of(backend)
                .map(|flag| format!(": --{flag} says which parameters you trust")),
            LightClientError::OtherKeys { .. } => {
                Some(": --state.keys says which keys the store of the root has".into())
            }
            _ => None,
        };
        let flag = flag.unwrap_or_default();
        eyre::Report::new(error).wrap_err(format!("{} is refused{flag}", self.name))
    }
}
