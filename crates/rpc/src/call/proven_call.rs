//! `state_call`: a call, and a proof of all that it read.

use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    context::ResolveBlock,
    debug::headers,
    gathered_proof::{BegunProof, MAX_KEYS},
    geth_errors::TransactFailure,
};
use alloy_eips::BlockId;
use alloy_primitives::{Address, B256, Bytes, U64};
use alloy_rpc_types_eth::TransactionRequest;
use retrie_engine::{LiveView, PostState};
use retrie_execution::{AccessRecorder, CallRules, EvmSimulation, ExecutionInput, prepare_call};
use retrie_light_client::{AccountReads, CallResponse};
use retrie_state::{StateError, StateKey, StateProof, StateReader, StateValue};
use revm::context::result::ExecutionResult;
use std::{sync::Arc, time::Instant};

/// The parameters of `state_call`.
#[derive(Clone)]
pub(super) struct ProvenCallRequest {
    request: TransactionRequest,
    id: BlockId,
}

impl ProvenCallRequest {
    pub(super) fn of(args: &mut MethodParams<'_>) -> RpcResult<Self> {
        Ok(Self { request: args.object()?, id: args.block_or_latest()? })
    }
}

/// A call that was executed, whose proof may lack parts.
struct BegunCall {
    result: ExecutionResult,
    gas: u64,
    reads: Vec<AccountReads>,
    codes: Vec<Bytes>,
    headers: Vec<Bytes>,
    proof: BegunProof,
}

/// `state_call(call, block)`: what the call returns, as `eth_call` has it, also if it fails, and the
/// proof of all that it read.
pub(super) async fn call(
    rpc: Arc<RpcContext>,
    wanted: ProvenCallRequest,
) -> RpcResult<CallResponse> {
    let context = rpc.clone();
    let begun = rpc.run_heavy(move |view| begin(&context, &view, wanted.clone())).await?;
    begun.finish(&rpc).await
}

fn begin(rpc: &RpcContext, view: &LiveView, wanted: ProvenCallRequest) -> RpcResult<BegunCall> {
    let block = view.resolve(wanted.id)?;
    // The values come from the same state as the proof: the state of the root.
    let (state, proven) = view.provable_after(&block.hash())?;
    let spec = rpc.live.spec().for_header(block.header());
    let state = UnlistedState(&state);
    let recorder = AccessRecorder::of_input(ExecutionInput { state: &state, ..state.0.input() });
    let (result, gas) = {
        let mut simulation = EvmSimulation::new(&spec, block.header(), recorder.input());
        simulation.set_deadline(Instant::now() + rpc.limits.evm_timeout);
        let gas_cap = rpc.limits.gas_cap;
        let tx = prepare_call(&mut simulation, wanted.request, CallRules::Call, gas_cap)?;
        let base_fee = simulation.env().block_env.basefee;
        let failed =
            |error| TransactFailure::new(error, &tx, base_fee, rpc.limits.evm_timeout).in_call();
        (simulation.transact(tx.clone()).map_err(failed)?.result, tx.gas_limit)
    };
    let accesses = recorder.into_accesses();
    if accesses.values.len() > MAX_KEYS {
        return Err(RpcError::Rejected(format!(
            "the call reads {} accounts and slots, more than {MAX_KEYS}, the most in one proof",
            accesses.values.len()
        )));
    }
    let reads = AccountReads::of(accesses.values.keys());
    let _permit = rpc.eth.proofs.acquire(rpc.limits.proof_permits)?;
    let proof = BegunProof::of(rpc, &proven, reads.clone())?;
    if proof.as_of().is_some() {
        let (backend, what) = (rpc.live.backend().identity().name, "calls on such old states");
        return Err(StateError::Unsupported { backend, what }.into());
    }
    // The hash of a block is in the header of its child.
    let oldest = accesses.hashes.keys().next().map_or(block.number, |oldest| oldest + 1);
    let headers = headers(view, &block, oldest)?;
    let codes = accesses.codes.into_values().collect();
    Ok(BegunCall { result, gas, reads, codes, headers, proof })
}

/// The state as a verifier has it, who cannot list the slots of an account.
struct UnlistedState<'a>(&'a PostState);

impl StateReader for UnlistedState<'_> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        self.0.get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        Err(StateError::MissingWitness { what: format!("the list of the slots of {address}") })
    }
}

impl BegunCall {
    async fn finish(self, rpc: &Arc<RpcContext>) -> RpcResult<CallResponse> {
        let Self { result, gas, reads, codes, headers, proof } = self;
        let StateProof { backend, version, hash, params, keys, block, root, bytes, .. } =
            proof.finish(rpc).await?;
        Ok(CallResponse {
            backend,
            version,
            hash,
            params,
            keys,
            block: U64::from(block.number),
            block_hash: block.hash,
            root,
            output: result.output().cloned().unwrap_or_default(),
            status: U64::from(u64::from(result.is_success())),
            gas_used: U64::from(result.gas().tx_gas_used()),
            gas: U64::from(gas),
            reads,
            codes,
            headers,
            proof: bytes,
        })
    }
}
