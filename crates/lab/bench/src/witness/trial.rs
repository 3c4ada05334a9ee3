//! One block: its witness is made, opened and executed on; its transactions are proven as calls.

use super::{WitnessCost, WitnessGap, WitnessOutcome};
use crate::{
    BenchError,
    error::{BackendErrorExt, ClientErrorExt},
};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_rpc_types_eth::TransactionRequest;
use retrie_chainspec::{
    ChainSpec,
    primitives::{RecoveredBlock, Transaction},
};
use retrie_execution::{
    AccessRecorder, BlockReads, CallRules, EvmSimulation, ExecutionInput, TransactError,
    WitnessState, execute_block, prepare_call, read_block,
};
use retrie_pipeline::PipelineError;
use retrie_state::{BackendKey, StateError, StateKey, StateReader as _, StateWitness};
use retrie_state_store::{StateId, StateProvider, StateStore};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// A block, and the store whose tip is the state before it.
pub(crate) struct WitnessTrial<'a> {
    /// The store.
    pub(crate) store: &'a StateStore,
    /// The state of its tip.
    pub(crate) state: &'a StateProvider,
    /// That state, with codes and hashes of ancestors.
    pub(crate) input: ExecutionInput<'a>,
    /// The rules of the block.
    pub(crate) spec: &'a ChainSpec,
    /// The block.
    pub(crate) block: &'a RecoveredBlock,
    /// How many of its transactions are proven as calls, at most.
    pub(crate) calls: usize,
}

impl WitnessTrial<'_> {
    /// Measures the block, and adds it to `outcome`.
    ///
    /// # Errors
    /// If the store fails, or [`BenchError::WrongWitness`], [`BenchError::WrongProof`].
    pub(crate) fn run(&self, outcome: &mut WitnessOutcome) -> Result<(), BenchError> {
        let name = outcome.backend.clone();
        let (place, number) = (outcome.len(), self.block.number);
        let reads = read_block(self.spec, self.block, self.input);
        let reads = reads.map_err(PipelineError::from).of_client(&name)?;
        match self.cost(&name, place, &reads)? {
            Ok(cost) => outcome.blocks.push(cost),
            Err(why) => outcome.without.push(WitnessGap { place, number, why }),
        }
        let txs = &self.block.body().transactions;
        let each = txs.len().div_ceil(self.calls.max(1)).max(1);
        let txs = self.block.senders().iter().zip(txs).step_by(each).take(self.calls);
        for (sender, tx) in txs {
            let Some(keys) = self.keys_of_call(*sender, tx, &name)? else { continue };
            let (made, verified, bytes) = self.prove(&keys, &name)?;
            outcome.calls.add(made, verified, bytes);
        }
        Ok(())
    }

    /// Number of the block in the store.
    fn number(&self) -> u64 {
        self.state.number().map_or(0, |number| number.saturating_add(1))
    }

    /// The cost of the witness, or why there is none.
    fn cost(
        &self,
        name: &str,
        place: usize,
        reads: &BlockReads,
    ) -> Result<Result<WitnessCost, String>, BenchError> {
        let delta = &reads.outcome.delta;
        let start = Instant::now();
        let made = self.state.witness(self.number(), &reads.keys, &reads.listed, delta);
        let make_seconds = start.elapsed().as_secs_f64();
        let witness = match made {
            Err(StateError::NoWitness { why, .. }) => return Ok(Err(why.into())),
            made => made.of_backend(name)?,
        };
        let session = self.store.begin(StateId::Tip).of_backend(name)?;
        let expected = session.finish(delta).of_backend(name)?.root();
        let verify_seconds = match self.verified(name, &witness, reads)? {
            Ok((root, time)) if root == expected => time.as_secs_f64(),
            Ok((root, _)) => {
                let why = format!("it gives the root {root}, and the store has {expected}");
                return Err(self.wrong(name, why));
            }
            // What its storage holds is in no witness of most stores.
            Err(_) if !reads.listed.is_empty() => {
                return Ok(Err("it clears a storage whose slots cannot be listed".into()));
            }
            Err(why) => return Err(self.wrong(name, why)),
        };
        let compressed = zstd::bulk::compress(&witness.bytes, 3).map_err(|source| {
            BenchError::Io { action: "compressing", path: "a witness".into(), source }
        })?;
        let changed = delta.changes().iter().map(|change| &change.key);
        let keys: BTreeSet<&StateKey> = reads.keys.iter().chain(changed).collect();
        Ok(Ok(WitnessCost {
            place,
            number: self.block.number,
            keys: keys.len() as u64,
            bytes: witness.bytes.len() as u64,
            zstd_bytes: compressed.len() as u64,
            code_bytes: reads.codes.iter().map(|code| code.len() as u64).sum(),
            make_seconds,
            verify_seconds,
        }))
    }

    /// Executes the block on its witness alone. The root after it and the time, or why it is refused.
    fn verified(
        &self,
        name: &str,
        witness: &StateWitness,
        reads: &BlockReads,
    ) -> Result<Result<(B256, Duration), String>, BenchError> {
        let backend = self.store.backend();
        let maker = backend.extensions().witness_maker(backend.identity()).of_backend(name)?;
        let start = Instant::now();
        let opened = match maker.open_witness(witness.root, &witness.bytes) {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let codes: BTreeMap<B256, &Bytes> =
            reads.codes.iter().map(|code| (keccak256(code), code)).collect();
        let codes = ReadCodes(&codes);
        let state = WitnessState { witness: &*opened, keys: witness.keys };
        let input = ExecutionInput::new(&state, &codes, self.input.hashes);
        let outcome = match execute_block(self.spec, self.block, input) {
            Ok(outcome) => outcome,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let next = opened.apply(self.number(), &witness.keys.delta(&outcome.delta));
        let time = start.elapsed();
        if outcome.receipts != reads.outcome.receipts {
            return Ok(Err("the block has other receipts on it".into()));
        }
        Ok(next.map(|root| (root, time)).map_err(|error| error.to_string()))
    }

    fn wrong(&self, backend: &str, why: String) -> BenchError {
        let number = self.block.number;
        BenchError::WrongWitness { backend: backend.into(), number, why }
    }

    /// The accounts and slots that a transaction reads as a call. `None` if it is no valid call on the
    /// state before the block: an earlier transaction gives its sender the funds, say.
    fn keys_of_call(
        &self,
        sender: Address,
        tx: &Transaction,
        name: &str,
    ) -> Result<Option<Vec<StateKey>>, BenchError> {
        let request = TransactionRequest {
            from: Some(sender),
            to: Some(tx.kind()),
            gas: Some(tx.gas_limit()),
            value: Some(tx.value()),
            input: tx.input().clone().into(),
            ..TransactionRequest::default()
        };
        let recorder = AccessRecorder::of_input(self.input);
        {
            let header = self.block.header();
            let mut simulation = EvmSimulation::new(self.spec, header, recorder.input());
            let Ok(tx) = prepare_call(&mut simulation, request, CallRules::Call, 0) else {
                return Ok(None);
            };
            match simulation.transact(tx) {
                Ok(_) => {}
                Err(TransactError::Invalid(_)) => return Ok(None),
                Err(error) => return Err(self.wrong(name, format!("a call: {error}"))),
            }
        }
        let read: Vec<StateKey> = recorder.into_accesses().values.into_keys().collect();
        let accounts = read.iter().map(|key| StateKey::Account(*key.address()));
        let keys: BTreeSet<StateKey> = accounts.chain(read.iter().copied()).collect();
        Ok(Some(keys.into_iter().collect()))
    }

    /// Proves `keys`, as `state_call` does, and verifies the proof. The two times, and the bytes.
    fn prove(
        &self,
        keys: &[StateKey],
        name: &str,
    ) -> Result<(Duration, Duration, usize), BenchError> {
        let start = Instant::now();
        let proof = self.state.prove(keys).of_backend(name)?;
        let made = start.elapsed();
        let named: Vec<BackendKey> = keys.iter().map(|key| proof.keys.key(key)).collect();
        let start = Instant::now();
        let shown = self.store.backend().verify(proof.root, &named, &proof.bytes);
        let verified = start.elapsed();
        let held = keys.iter().map(|key| self.state.get(key)).collect::<Result<Vec<_>, _>>();
        if shown != Ok(held.of_backend(name)?) {
            let key = format!("the {} keys of a call in block {}", keys.len(), self.block.number);
            return Err(BenchError::WrongProof { backend: name.into(), key });
        }
        Ok((made, verified, proof.bytes.len()))
    }
}

/// The codes that came with a witness.
struct ReadCodes<'a>(&'a BTreeMap<B256, &'a Bytes>);

impl retrie_execution::CodeReader for ReadCodes<'_> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.0.get(hash).map(|code| (*code).clone()))
    }
}
