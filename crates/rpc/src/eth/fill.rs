//! `eth_fillTransaction`: completes a transaction so that it only needs a signature.

use super::fee;
use crate::{MethodParams, RpcContext, RpcError, RpcResult, args::register_heavy, call::estimate};
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip4844WithSidecar, TxEip7702,
    TxLegacy, transaction::RlpEcdsaEncodableTx,
};
use alloy_eips::{
    BlockId, Typed2718,
    eip2718::Encodable2718,
    eip2930::AccessList,
    eip4844::{
        BYTES_PER_BLOB, Blob, BlobTransactionSidecar, Bytes48, env_settings::EnvKzgSettings,
    },
    eip7594::{BlobTransactionSidecarEip7594, CELLS_PER_EXT_BLOB, MAX_BLOBS_PER_TX_FUSAKA},
    eip7702::SignedAuthorization,
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U64, U256, keccak256};
use alloy_rlp::{BufMut, EMPTY_STRING_CODE, Header};
use alloy_rpc_types_eth::TransactionRequest;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::SealedHeader;
use retrie_engine::{LiveView, pool::BlobSidecar};
use retrie_state::StateReader;
use serde::{Deserialize, Serialize};

/// Most blobs of a transaction (EIP-7594).
const MAX_BLOBS: usize = MAX_BLOBS_PER_TX_FUSAKA as usize;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "eth_fillTransaction", |rpc, view, args| fill(rpc, &view, args));
}

/// A transaction in a request. The sidecar may consist of blobs only.
#[derive(Clone, Debug, Deserialize)]
struct FillRequest {
    blobs: Option<Vec<Bytes>>,
    commitments: Option<Vec<Bytes48>>,
    proofs: Option<Vec<Bytes48>>,
    #[serde(flatten)]
    request: TransactionRequest,
}

/// The response: the transaction in EIP-2718 encoding and in JSON.
#[derive(Clone, Debug, Serialize)]
struct FillTransactionResult {
    raw: Bytes,
    tx: UnsignedTransaction,
}

/// A transaction with a signature of zeros, in geth's form: absent fields are omitted, except the
/// fees.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct UnsignedTransaction {
    r#type: U64,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain_id: Option<U64>,
    nonce: U64,
    to: Option<Address>,
    gas: U64,
    gas_price: Option<U256>,
    max_priority_fee_per_gas: Option<U256>,
    max_fee_per_gas: Option<U256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_fee_per_blob_gas: Option<U256>,
    value: U256,
    input: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    access_list: Option<AccessList>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blob_versioned_hashes: Vec<B256>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    authorization_list: Vec<SignedAuthorization>,
    v: U64,
    r: U64,
    s: U64,
    #[serde(skip_serializing_if = "Option::is_none")]
    y_parity: Option<U64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blobs: Vec<Blob>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    commitments: Vec<Bytes48>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    proofs: Vec<Bytes48>,
    hash: B256,
}

fn rejected<T>(message: impl Into<String>) -> RpcResult<T> {
    Err(RpcError::Rejected(message.into()))
}

/// `eth_fillTransaction(transaction)`. Checks run in geth's order.
fn fill(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<FillTransactionResult> {
    let mut wanted: FillRequest = args.required()?;
    let (spec, head) = (rpc.live.spec(), view.head());
    let sidecar = sidecar(&mut wanted, spec.is_osaka_active_at_timestamp(head.timestamp))?;
    let mut request = wanted.request;
    complete(rpc, view, &mut request)?;
    Ok(assemble(request, spec.chain_id(), sidecar))
}

/// Fills open fields: fees, nonce, gas. Checks the chain id and removes it from the request.
pub(super) fn complete(
    rpc: &RpcContext,
    view: &LiveView,
    request: &mut TransactionRequest,
) -> RpcResult<()> {
    let head = view.head();
    fill_fees(rpc, view, head, request)?;

    let from = request.from.unwrap_or_default();
    if request.nonce.is_none() {
        let pooled = rpc.pool.as_ref().and_then(|pool| pool.nonce(&from));
        let nonce = match pooled {
            Some(nonce) => nonce,
            None => view.state(&head.hash())?.account(&from)?.unwrap_or_default().nonce,
        };
        request.nonce = Some(nonce);
    }
    check(request)?;
    let chain_id = request.chain_id.take();
    if request.gas.is_none() {
        // On a dev chain the next block's time may differ much from the latest block's.
        let at = if rpc.dev.is_some() { BlockId::pending() } else { BlockId::latest() };
        let estimated = estimate(rpc, view, request.clone(), at, None, None)?;
        request.gas = Some(estimated);
    }
    let own_chain = rpc.live.spec().chain_id();
    if let Some(have) = chain_id
        && have != own_chain
    {
        return rejected(format!("chainId does not match node's (have={have}, want={own_chain})"));
    }
    Ok(())
}

/// Rejects requests that cannot become a transaction.
fn check(request: &TransactionRequest) -> RpcResult<()> {
    if let (Some(input), Some(data)) = (&request.input.input, &request.input.data)
        && input != data
    {
        return rejected(
            "both \"data\" and \"input\" are set and not equal. Please use \"input\" to pass \
             transaction call data",
        );
    }
    let blobs = request.blob_versioned_hashes.as_ref().map(Vec::len);
    match blobs {
        Some(0) => return rejected("need at least 1 blob for a blob transaction"),
        Some(have) => check_count(have)?,
        None => {}
    }
    if request.to.is_none_or(|to| to.is_create()) {
        if blobs.is_some() {
            return rejected("missing \"to\" in blob transaction");
        }
        if request.input.input().is_none_or(|input| input.is_empty()) {
            return rejected("contract creation without any data provided");
        }
        if request.authorization_list.is_some() {
            return rejected(
                "authorizationList provided for contract creation, but \"to\" field is missing",
            );
        }
    }
    Ok(())
}

fn check_count(have: usize) -> RpcResult<()> {
    if have <= MAX_BLOBS {
        return Ok(());
    }
    rejected(format!("too many blobs in transaction (have={have}, max={MAX_BLOBS})"))
}

// -- fees -----------------------------------------------------------------------------------------

fn fill_fees(
    rpc: &RpcContext,
    view: &LiveView,
    head: &SealedHeader,
    request: &mut TransactionRequest,
) -> RpcResult<()> {
    let spec = rpc.live.spec();
    if request.max_fee_per_blob_gas == Some(0) {
        return rejected("maxFeePerBlobGas, if specified, must be non-zero");
    }
    if request.blob_versioned_hashes.is_some() && request.max_fee_per_blob_gas.is_none() {
        let Some(params) = spec.blob_params_at_timestamp(head.timestamp) else {
            return rejected("blob transactions are not valid before Cancun is active");
        };
        let fee = head.blob_fee(params).unwrap_or_default();
        request.max_fee_per_blob_gas = Some(fee.saturating_mul(2));
    }
    let (max_fee, tip) = (request.max_fee_per_gas, request.max_priority_fee_per_gas);
    if request.gas_price.is_some() {
        if max_fee.is_some() || tip.is_some() {
            return rejected("both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified");
        }
        if request.authorization_list.is_some() {
            return rejected("both gasPrice and authorizationList specified");
        }
        // geth would build a transaction without the blobs.
        if request.blob_versioned_hashes.is_some() {
            return rejected("both gasPrice and blobs or blobVersionedHashes specified");
        }
    }
    if let (Some(max_fee), Some(tip)) = (max_fee, tip) {
        if max_fee == 0 && rpc.dev.is_none() {
            return rejected("maxFeePerGas must be non-zero");
        }
        return check_fees(max_fee, tip);
    }
    let is_london = spec.is_london_active_at_block(head.number);
    if let Some(price) = request.gas_price {
        // A dev chain may have a base fee of zero. If it has not, the pool rejects the price.
        if price == 0 && is_london && rpc.dev.is_none() {
            return rejected("gasPrice must be non-zero after london fork");
        }
        return Ok(());
    }
    if !is_london {
        if max_fee.is_some() || tip.is_some() {
            return rejected(
                "maxFeePerGas and maxPriorityFeePerGas are not valid before London is active",
            );
        }
        request.gas_price = Some(fee::tip(rpc, view)?);
        return Ok(());
    }
    let tip = tip.map_or_else(|| fee::tip(rpc, view), Ok)?;
    // Leaves room for a rising base fee, or for one that the dev chain's user has set.
    let set = rpc.dev.as_ref().and_then(|dev| dev.chain.next_block().base_fee);
    let base_fee = u128::from(head.base_fee_per_gas.max(set).unwrap_or_default());
    let max_fee = max_fee.unwrap_or_else(|| base_fee.saturating_mul(2).saturating_add(tip));
    request.max_fee_per_gas = Some(max_fee);
    request.max_priority_fee_per_gas = Some(tip);
    check_fees(max_fee, tip)
}

fn check_fees(max_fee: u128, tip: u128) -> RpcResult<()> {
    if max_fee >= tip {
        return Ok(());
    }
    rejected(format!("maxFeePerGas ({max_fee}) < maxPriorityFeePerGas ({tip})"))
}

// -- blobs ----------------------------------------------------------------------------------------

/// Builds the sidecar from the request's blobs, in the form of the fork, and sets the versioned
/// hashes in the request. Missing parts are computed, given parts are verified.
fn sidecar(wanted: &mut FillRequest, is_osaka: bool) -> RpcResult<Option<BlobSidecar>> {
    let FillRequest { blobs, commitments, proofs, request } = wanted;
    let Some(blobs) = blobs.take() else { return Ok(None) };
    let (commitments, proofs) = (commitments.take(), proofs.take());
    let (count, hashes) = (blobs.len(), request.blob_versioned_hashes.as_ref());
    match (&commitments, &proofs) {
        (None, Some(_)) => return rejected("blob proofs provided while commitments were not"),
        (Some(_), None) => return rejected("blob commitments provided while proofs were not"),
        _ => {}
    }
    if let Some(hashes) = hashes
        && hashes.len() != count
    {
        let have = hashes.len();
        return rejected(format!(
            "number of blobs and hashes mismatch (have={have}, want={count})"
        ));
    }
    if let Some(commitments) = &commitments
        && commitments.len() != count
    {
        let have = commitments.len();
        return rejected(format!(
            "number of blobs and commitments mismatch (have={have}, want={count})"
        ));
    }
    // Checked first, because computing proofs takes long.
    check_count(count)?;
    let expected = if is_osaka { count * CELLS_PER_EXT_BLOB } else { count };
    let given = match (commitments, proofs) {
        (Some(commitments), Some(proofs)) if proofs.len() == expected => {
            Some((commitments, proofs))
        }
        (Some(_), Some(proofs)) if proofs.len() != count => {
            let have = proofs.len();
            return rejected(format!(
                "number of blobs and proofs mismatch (have={have}, want={expected})"
            ));
        }
        // No proofs, or proofs in the form before Osaka.
        _ => None,
    };
    let blobs = blobs.iter().enumerate().map(decode_blob).collect::<RpcResult<Vec<_>>>()?;
    let is_given = given.is_some();
    let sidecar = match given {
        Some((commitments, proofs)) => of_parts(blobs, commitments, proofs, is_osaka),
        None => computed(blobs, is_osaka)?,
    };
    let own: Vec<B256> = sidecar.versioned_hashes().collect();
    if is_given && let Err(error) = sidecar.validate(&own, EnvKzgSettings::Default.get()) {
        return rejected(format!("failed to verify blob proof: {error}"));
    }
    let different =
        hashes.and_then(|hashes| hashes.iter().zip(&own).find(|(have, own)| have != own));
    if let Some((have, want)) = different {
        return rejected(format!("blob hash verification failed (have={have}, want={want})"));
    }
    request.blob_versioned_hashes = Some(own);
    Ok(Some(sidecar))
}

fn decode_blob((index, bytes): (usize, &Bytes)) -> RpcResult<Blob> {
    Blob::try_from(&bytes[..]).map_err(|_| {
        let message = format!("blobs[{index}] has {} bytes, want {BYTES_PER_BLOB}", bytes.len());
        RpcError::InvalidParams(message)
    })
}

fn of_parts(
    blobs: Vec<Blob>,
    commitments: Vec<Bytes48>,
    proofs: Vec<Bytes48>,
    is_osaka: bool,
) -> BlobSidecar {
    if is_osaka {
        BlobTransactionSidecarEip7594 { blobs, commitments, cell_proofs: proofs }.into()
    } else {
        BlobTransactionSidecar { blobs, commitments, proofs }.into()
    }
}

fn computed(blobs: Vec<Blob>, is_osaka: bool) -> RpcResult<BlobSidecar> {
    let settings = EnvKzgSettings::Default.get();
    let (mut commitments, mut proofs) = (Vec::new(), Vec::new());
    for (index, blob) in blobs.iter().enumerate() {
        let one = vec![*blob];
        let parts = if is_osaka {
            BlobTransactionSidecarEip7594::try_from_blobs_with_settings(one, settings)
                .map(|one| (one.commitments, one.cell_proofs))
        } else {
            BlobTransactionSidecar::try_from_blobs_with_settings(one, settings)
                .map(|one| (one.commitments, one.proofs))
        };
        let (commitment, proof) = parts.map_err(|error| {
            RpcError::Rejected(format!("blobs[{index}]: error computing commitment: {error:?}"))
        })?;
        commitments.extend(commitment);
        proofs.extend(proof);
    }
    Ok(of_parts(blobs, commitments, proofs, is_osaka))
}

// -- the transaction ------------------------------------------------------------------------------

/// Builds the transaction from a request whose fields are all filled.
fn assemble(
    request: TransactionRequest,
    chain_id: u64,
    sidecar: Option<BlobSidecar>,
) -> FillTransactionResult {
    let (nonce, gas_limit) = (request.nonce.unwrap_or_default(), request.gas.unwrap_or_default());
    let to = request.to.unwrap_or(TxKind::Create);
    let (value, input) =
        (request.value.unwrap_or_default(), request.input.into_input().unwrap_or_default());
    let mut tx = UnsignedTransaction {
        nonce: U64::from(nonce),
        to: to.to().copied(),
        gas: U64::from(gas_limit),
        value,
        input: input.clone(),
        ..Default::default()
    };
    if let Some(gas_price) = request.gas_price {
        tx.gas_price = Some(U256::from(gas_price));
        let legacy = TxLegacy { chain_id: None, nonce, gas_price, gas_limit, to, value, input };
        // geth drops the access list here.
        let Some(access_list) = request.access_list else {
            let raw = unsigned_legacy(&legacy);
            tx.hash = keccak256(&raw);
            return FillTransactionResult { raw, tx };
        };
        let TxLegacy { nonce, gas_price, gas_limit, to, value, input, .. } = legacy;
        tx.access_list = Some(access_list.clone());
        let typed =
            TxEip2930 { chain_id, nonce, gas_price, gas_limit, to, value, access_list, input };
        return tx.of(typed, chain_id);
    }
    let max_fee_per_gas = request.max_fee_per_gas.unwrap_or_default();
    let max_priority_fee_per_gas = request.max_priority_fee_per_gas.unwrap_or_default();
    let access_list = request.access_list.unwrap_or_default();
    tx.max_fee_per_gas = Some(U256::from(max_fee_per_gas));
    tx.max_priority_fee_per_gas = Some(U256::from(max_priority_fee_per_gas));
    tx.access_list = Some(access_list.clone());
    if let Some(authorization_list) = request.authorization_list {
        tx.authorization_list = authorization_list.clone();
        let typed = TxEip7702 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: to.to().copied().unwrap_or_default(),
            value,
            access_list,
            authorization_list,
            input,
        };
        return tx.of(typed, chain_id);
    }
    if let Some(blob_versioned_hashes) = request.blob_versioned_hashes {
        let max_fee_per_blob_gas = request.max_fee_per_blob_gas.unwrap_or_default();
        tx.max_fee_per_blob_gas = Some(U256::from(max_fee_per_blob_gas));
        tx.blob_versioned_hashes = blob_versioned_hashes.clone();
        let typed = TxEip4844 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: to.to().copied().unwrap_or_default(),
            value,
            access_list,
            blob_versioned_hashes,
            max_fee_per_blob_gas,
            input,
        };
        let Some(sidecar) = sidecar else { return tx.of(typed, chain_id) };
        tx.blobs = sidecar.blobs().to_vec();
        tx.commitments = sidecar.commitments().to_vec();
        tx.proofs = match &sidecar {
            BlobSidecar::Eip4844(sidecar) => sidecar.proofs.clone(),
            BlobSidecar::Eip7594(sidecar) => sidecar.cell_proofs.clone(),
        };
        return tx.of(TxEip4844WithSidecar::from_tx_and_sidecar(typed, sidecar), chain_id);
    }
    let typed = TxEip1559 {
        chain_id,
        nonce,
        gas_limit,
        max_fee_per_gas,
        max_priority_fee_per_gas,
        to,
        value,
        access_list,
        input,
    };
    tx.of(typed, chain_id)
}

impl UnsignedTransaction {
    /// The response for this typed transaction.
    fn of<T>(self, typed: T, chain_id: u64) -> FillTransactionResult
    where
        T: SignableTransaction<Signature> + RlpEcdsaEncodableTx + Typed2718 + Send + Sync,
    {
        let r#type = U64::from(typed.ty());
        let signed = typed.into_signed(Signature::new(U256::ZERO, U256::ZERO, false));
        let chain_id = Some(U64::from(chain_id));
        let y_parity = Some(U64::ZERO);
        let tx = Self { r#type, chain_id, y_parity, hash: *signed.hash(), ..self };
        FillTransactionResult { raw: signed.encoded_2718().into(), tx }
    }
}

/// The encoding with zeros for `v`, `r` and `s`; it has no chain id before it is signed.
fn unsigned_legacy(legacy: &TxLegacy) -> Bytes {
    let payload_length = legacy.rlp_encoded_fields_length() + 3;
    let mut raw = Vec::with_capacity(payload_length + 9);
    Header { list: true, payload_length }.encode(&mut raw);
    legacy.rlp_encode_fields(&mut raw);
    raw.put_slice(&[EMPTY_STRING_CODE; 3]);
    raw.into()
}
