//! The namespace `state`: the state store and its backend's own proofs.

use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::{register_async, register_at_block, register_quick, register_read},
    call,
    context::ResolveBlock,
    eth,
    gathered_proof::{BegunProof, MAX_KEYS},
};
use alloy_eips::BlockId;
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use alloy_serde::JsonStorageKey;
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{LiveView, StateNeed};
use retrie_light_client::{AccountReads, ProvenanceResponse, StateProofResponse};
use retrie_state::{Account, StateError, StateKey, StateReader};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most slots of one request.
const MAX_SLOTS: usize = 1024;
/// Most blocks, and most versions, of one provenance request.
const MAX_BLOCKS: u64 = 100_000;
const MAX_VERSIONS: usize = 10_000;

/// The response of `state_backend`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BackendResponse {
    /// Name of the backend, as in `--state-backend`.
    backend: &'static str,
    /// Version of the backend's format and proofs.
    version: u32,
    /// Name of the hash function of the backend's root.
    hash: &'static str,
    /// Digest of the backend's parameters; zero if it has none.
    params: B256,
    /// Whether the backend proves values.
    proofs: bool,
    /// Whether the backend proves absence.
    absence_proofs: bool,
    /// Whether the backend's root is the state root in Ethereum's headers.
    ethereum_root: bool,
    /// The node's meaning of state roots in headers, as in `--state-root`.
    state_root: &'static str,
    /// The commitment against which a block's writes are checked, by the rules at the head.
    writes_checked_by: &'static str,
    /// Whether the root depends only on the state, not on its history.
    state_determined_root: bool,
    /// Whether the backend keeps the state of every block itself.
    history: bool,
    /// Whether the backend serves and proves the versions of keys over ranges of blocks.
    provenance: bool,
    /// The shard of proofs that this node keeps, for backends with proof shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<String>,
}

/// The response of `state_getRoot`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RootResponse {
    backend: &'static str,
    block: U64,
    block_hash: B256,
    root: B256,
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "state_backend", |rpc, _| Ok(backend(rpc)));
    register_at_block(&mut module, "state_getRoot", 0, |rpc, view, args| {
        let header = view.resolve(args.block_or_latest()?)?;
        let block_hash = header.hash();
        let backend = rpc.live.backend().identity().name;
        let unknown =
            || RpcError::Rejected(format!("backend {backend} has no root of block {block_hash}"));
        let root = view.state_root(&block_hash)?.ok_or_else(unknown)?;
        Ok(RootResponse { backend, block: U64::from(header.number), block_hash, root })
    });
    register_async(&mut module, "state_getProof", ProofRequest::of, prove);
    register_read(&mut module, "state_getProofPart", |rpc, view, args| {
        prove_part(rpc, &view, args)
    });
    register_quick(&mut module, "state_proofShard", |rpc, _| {
        let backend = rpc.live.backend();
        let unsupported = || unsupported(rpc, "proof shards");
        Ok(backend.extensions().proof_shards.ok_or_else(unsupported)?.shard())
    });
    register_read(&mut module, "state_getProvenance", |rpc, view, args| {
        provenance(rpc, &view, args)
    });
    call::register_proven(&mut module);
    eth::register_complete_logs(&mut module);
    module.into()
}

fn unsupported(rpc: &RpcContext, what: &'static str) -> RpcError {
    let backend = rpc.live.backend().identity().name;
    StateError::Unsupported { backend, what }.into()
}

fn backend(rpc: &RpcContext) -> BackendResponse {
    let backend = rpc.live.backend();
    let (identity, can) = (backend.identity(), backend.profile());
    BackendResponse {
        backend: identity.name,
        version: identity.version,
        hash: identity.hash.name(),
        params: identity.params,
        proofs: can.proofs,
        absence_proofs: can.absence_proofs,
        ethereum_root: can.ethereum_root,
        state_root: rpc.live.chain().root_mode().name(),
        writes_checked_by: rpc.live.chain().write_check(rpc.live.head().timestamp).name(),
        state_determined_root: can.state_determined_root,
        history: backend.extensions().history.is_some(),
        provenance: backend.extensions().provenance.is_some(),
        shard: backend.extensions().proof_shards.map(|shards| shards.shard()),
    }
}

/// The parameters of `state_getProof`.
#[derive(Clone)]
struct ProofRequest {
    address: Address,
    slots: Vec<B256>,
    id: BlockId,
}

impl ProofRequest {
    fn of(args: &mut MethodParams<'_>) -> RpcResult<Self> {
        let (address, slots) = (args.required()?, slots(args)?);
        Ok(Self { address, slots, id: args.block_or_latest()? })
    }
}

/// The response of `state_getProof`, whose proof may lack parts.
struct BegunResponse {
    address: Address,
    account: Option<Account>,
    values: Vec<(B256, U256)>,
    proof: BegunProof,
}

/// `state_getProof`.
async fn prove(rpc: Arc<RpcContext>, wanted: ProofRequest) -> RpcResult<StateProofResponse> {
    let context = rpc.clone();
    let begun = rpc.run_read(move |view| begin(&context, &view, wanted.clone())).await?;
    let BegunResponse { address, account, values, proof } = begun;
    Ok(StateProofResponse::new(proof.finish(&rpc).await?, address, account, values))
}

fn begin(rpc: &RpcContext, view: &LiveView, wanted: ProofRequest) -> RpcResult<BegunResponse> {
    let _permit = rpc.eth.proofs.acquire(rpc.limits.proof_permits)?;
    let ProofRequest { address, slots, id } = wanted;
    let block = view.resolve(id)?.hash();
    // The values come from the same state as the proof: the state of the root.
    let state = view.provable_state(&block, &address)?;
    let value = |slot: &B256| Ok((*slot, state.slot(&address, slot)?));
    let values = slots.iter().map(value).collect::<Result<Vec<_>, StateError>>()?;
    let account = state.account(&address)?;
    let proof = BegunProof::of(rpc, &state, vec![AccountReads { address, slots }])?;
    Ok(BegunResponse { address, account, values, proof })
}

/// The accounts of `state_getProofPart`: one, whose slots follow, or all with their slots.
#[derive(Deserialize)]
#[serde(untagged)]
enum PartAccounts {
    One(Address),
    All(Vec<AccountReads>),
}

/// `state_getProofPart`: this node's part of the proof of `state_getProof` or `state_call`.
fn prove_part(rpc: &RpcContext, view: &LiveView, args: &mut MethodParams<'_>) -> RpcResult<Bytes> {
    let reads = match args.required::<PartAccounts>()? {
        PartAccounts::One(address) => vec![AccountReads { address, slots: slots(args)? }],
        PartAccounts::All(reads) => reads,
    };
    let id = args.block_or_latest()?;
    let count: usize = reads.iter().map(|account| 1 + account.slots.len()).sum();
    if count > MAX_KEYS {
        let message = format!("too many accounts and slots: {count} (max {MAX_KEYS})");
        return Err(RpcError::InvalidParams(message));
    }
    let _permit = rpc.eth.proofs.acquire(rpc.limits.proof_permits)?;
    let block = view.resolve(id)?.hash();
    let state = match &reads[..] {
        [AccountReads { address, .. }] => view.provable_state(&block, address)?,
        _ => view.provable_after(&block)?.1,
    };
    Ok(state.prove_part(&AccountReads::keys(&reads))?.bytes)
}

/// The next parameter: slots of an account.
fn slots(args: &mut MethodParams<'_>) -> RpcResult<Vec<B256>> {
    let slots = args.optional::<Vec<JsonStorageKey>>()?.unwrap_or_default();
    if slots.len() > MAX_SLOTS {
        let message = format!("too many slots: {} (max {MAX_SLOTS})", slots.len());
        return Err(RpcError::InvalidParams(message));
    }
    Ok(slots.iter().map(JsonStorageKey::as_b256).collect())
}

/// `state_getProvenance(address, slot | null, from, to)`: the versions of an account or slot over a
/// range of blocks, proven under the root of the head.
fn provenance(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<ProvenanceResponse> {
    let (address, slot): (Address, Option<JsonStorageKey>) = (args.required()?, args.optional()?);
    let (from, to) = (args.block_number()?, args.block_number()?);
    if rpc.live.backend().extensions().provenance.is_none() {
        return Err(unsupported(rpc, "provenance queries"));
    }
    let (from, to) = (view.resolve(from.into())?.number, view.resolve(to.into())?.number);
    if from > to {
        let message = format!("the range of blocks is empty: from {from} to {to}");
        return Err(RpcError::InvalidParams(message));
    }
    if to - from >= MAX_BLOCKS {
        return Err(RpcError::InvalidParams(format!(
            "{} blocks are too many, at most {MAX_BLOCKS}: split the range, first {from} to {}",
            to - from + 1,
            from + (MAX_BLOCKS - 1)
        )));
    }
    let _permit = rpc.eth.proofs.acquire(rpc.limits.proof_permits)?;
    let slot = slot.map(|slot| slot.as_b256());
    let key = slot.map_or(StateKey::Account(address), |slot| StateKey::Slot(address, slot));
    let head = view.state_at(&view.head().hash(), StateNeed::Proofs)?;
    let (mut versions, proof) = head.versions(&[key], from..=to)?;
    let versions = versions.pop().unwrap_or_default();
    if versions.len() > MAX_VERSIONS {
        // The next request may end at the oldest version that still fits into a response.
        let last = versions[versions.len() - MAX_VERSIONS].block.clamp(from, to);
        return Err(RpcError::Rejected(format!(
            "{key} has {} versions in blocks {from} to {to}, more than {MAX_VERSIONS}, the most in \
             one response: split the range, first {from} to {last}",
            versions.len()
        )));
    }
    let damaged = |_| StateError::corrupt("state", format!("a version of {key} is not canonical"));
    Ok(ProvenanceResponse::new(proof, key, from..=to, versions).map_err(damaged)?)
}
