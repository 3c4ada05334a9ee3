//! `retrie witness verify`: a block on its witness alone.

use super::opener;
use crate::{
    args::{DEFAULT_CHAIN, KeyFormChoice, PinArgs},
    output::{CommandOutput, grouped, say},
};
use alloy_primitives::B256;
use eyre::{Context, OptionExt, bail};
use retrie_backends::{open_witness, proof_formats};
use retrie_chainspec::{ChainSpec, parse_chain, primitives::Block};
use retrie_pipeline::stateless::{
    StateWitnessFile, StatelessOutcome, verify_state_witness, verify_witness,
};
use retrie_sources::witness::{WitnessAnswer, WitnessJson, enclosed_block, read_block};
use retrie_state::{KeyForm, ProofError, StateWitness, WitnessError, descriptor::OpenedWitness};
use std::{path::PathBuf, sync::Arc};

/// Arguments of `retrie witness verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WitnessVerifyArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = DEFAULT_CHAIN)]
    chain: String,
    /// File of the block, as RLP or JSON [default: the block in the witness's file].
    #[arg(long, value_name = "FILE")]
    block: Option<PathBuf>,
    /// Trust this root of the state before the block. Only of a store's own format: roots that no
    /// header has are otherwise taken from the file.
    #[arg(long, value_name = "ROOT")]
    root: Option<B256>,
    /// The form of the keys in the store of that root, `plain` or `hashed` [default: plain].
    #[arg(long = "state.keys", value_name = "FORM")]
    keys: Option<KeyFormChoice>,
    #[command(flatten)]
    pins: PinArgs,
    /// File of the witness, plain or gzipped.
    #[arg(value_name = "WITNESS_FILE")]
    file: PathBuf,
}

impl WitnessVerifyArgs {
    /// Runs the command. Fails unless the block is valid on its witness.
    pub(super) fn run(self) -> eyre::Result<()> {
        let spec = parse_chain(&self.chain)?;
        let json = WitnessJson::load(&self.file)?;
        match json.has(StateWitnessFile::MARKER)? {
            true => self.on_state_witness(&spec, &json.parse()?),
            false if self.root.is_some() => {
                bail!("--root: the root before the block is in the header of its parent")
            }
            false => self.on_execution_witness(&spec, json.parse()?),
        }
    }

    fn on_execution_witness(
        self,
        spec: &Arc<ChainSpec>,
        answer: WitnessAnswer,
    ) -> eyre::Result<()> {
        let block = match (&self.block, &answer.block) {
            (Some(file), _) => read_block(file)?,
            (None, Some(rlp)) => enclosed_block(&self.file, rlp)?,
            (None, None) => return Err(NoBlock(self.file).into()),
        };
        let witness = answer.into_witness(&self.file)?;
        let opener = opener()?;
        let opener = opener.extensions().partial_state.ok_or_eyre("it opens no witnesses")?;
        let name = BlockName::of(&block);
        let shown = verify_witness(spec, opener, block, &witness);
        let shown = shown.wrap_err_with(|| name.refused())?;
        name.print_valid(&shown, "state root")?;
        let out = CommandOutput::default();
        say!(out, "trusted: the hash of the block; nothing here says that it is canonical");
        Ok(())
    }

    fn on_state_witness(&self, spec: &Arc<ChainSpec>, file: &StateWitnessFile) -> eyre::Result<()> {
        let block = match &self.block {
            Some(file) => read_block(file)?,
            None => enclosed_block(&self.file, &file.block)?,
        };
        let name = BlockName::of(&block);
        let witness = file.envelope();
        self.check_trust(file, &witness).wrap_err_with(|| name.refused())?;
        let opened = self.open(&witness).wrap_err_with(|| name.refused())?;
        let shown = verify_state_witness(spec, block, file, &*opened);
        let shown = shown.wrap_err_with(|| name.refused())?;
        name.print_valid(&shown.outcome, &format!("root of {}", file.backend))?;
        let source = match (self.root, shown.is_bound) {
            (Some(_), _) => "the hash of the block, and the root before it (--root)",
            (None, true) => "the hash of the block, which binds both roots",
            (None, false) => {
                "the hash of the block, and the root before it, which the file itself names; --root \
                 takes it from a source that you trust"
            }
        };
        say!(CommandOutput::default(), "trusted: {source}; nothing here says that it is canonical");
        Ok(())
    }

    /// Checks root and form of keys of the envelope, as far as they are known beforehand.
    fn check_trust(&self, file: &StateWitnessFile, witness: &StateWitness) -> eyre::Result<()> {
        if let Some(root) = self.root.filter(|root| *root != witness.root) {
            bail!("the witness is of root {}, and {root} is trusted (--root)", witness.root);
        }
        let mut formats = proof_formats();
        let format = formats
            .find(|format| format.backend == witness.backend && format.hash.name() == witness.hash);
        let is_of_headers = format.is_some_and(|format| format.has_ethereum_root);
        let keys = self.keys.map_or(KeyForm::Plain, |KeyFormChoice(keys)| keys);
        if keys != witness.keys && !is_of_headers {
            bail!(
                "the witness is of {} keys: --state.keys says which keys the store of the root has",
                witness.keys.name()
            );
        }
        let header = file.ancestors()?.pop();
        match header.filter(|header| header.state_root != witness.root) {
            Some(header) if is_of_headers && self.root.is_none() => bail!(
                "the header of the parent has the state root {}, and the witness is of {}: --root \
                 says that you trust that one",
                header.state_root,
                witness.root
            ),
            _ => Ok(()),
        }
    }

    fn open(&self, witness: &StateWitness) -> eyre::Result<Box<dyn OpenedWitness>> {
        open_witness(witness, witness.root, &self.pins.verifiers()?).map_err(|error| {
            let is_pin = matches!(
                error,
                WitnessError::Refused(ProofError::WrongKind { what: "parameters" })
            );
            let flag = PinArgs::flag_of(&witness.backend).filter(|_| is_pin);
            let report = eyre::Report::new(error);
            match flag {
                Some(flag) => report.wrap_err(format!("--{flag} says which parameters you trust")),
                None => report,
            }
        })
    }
}

/// A block in messages.
struct BlockName {
    number: u64,
    hash: B256,
}

impl BlockName {
    fn of(block: &Block) -> Self {
        Self { number: block.header.number, hash: block.header.hash_slow() }
    }

    fn refused(&self) -> String {
        format!("block {} ({}) is refused", self.number, self.hash)
    }

    fn print_valid(&self, shown: &StatelessOutcome, root: &str) -> eyre::Result<()> {
        say!(
            CommandOutput::default(),
            "block {} ({}) is valid: {} gas, {root} {} -> {}",
            self.number,
            self.hash,
            grouped(shown.gas_used),
            shown.before,
            shown.after
        );
        Ok(())
    }
}

/// A witness without its block.
#[derive(Debug, thiserror::Error)]
#[error("{} has no block: give it by --block FILE", .0.display())]
pub(super) struct NoBlock(pub(super) PathBuf);
