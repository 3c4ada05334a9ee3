//! `ExecutionPayload`, `ExecutionPayloadEnvelope` and `BuiltPayload`.

use super::{
    super::ssz::{
        ContainerReader, ContainerWriter, SszBuffer, SszError, byte_list, byte_lists, fixed_list,
    },
    MAX_EXTRA_DATA, MAX_REQUESTS, MAX_TRANSACTIONS, MAX_WITHDRAWALS,
    blobs::blob_bytes,
};
use alloy_eips::{eip4895::Withdrawal, eip7685::Requests};
use alloy_primitives::{Address, Bloom, Bytes, U256};
use alloy_rpc_types_engine::{
    ExecutionPayload, ExecutionPayloadV1, ExecutionPayloadV2, ExecutionPayloadV3,
    ExecutionPayloadV4,
};
use retrie_engine::{
    ApiFork, BuiltPayload, PayloadEnvelope,
    pool::{BlobSidecar, PooledBlob},
};
use std::sync::Arc;

/// Reads the body of `POST /payloads`.
pub(crate) fn decode_envelope(fork: ApiFork, body: Bytes) -> Result<PayloadEnvelope, SszError> {
    let mut fields = ContainerReader::new("ExecutionPayloadEnvelope", body);
    fields.offset::<()>()?;
    let has_root = fork >= ApiFork::Cancun;
    let parent_beacon_block_root = has_root.then(|| fields.hash()).transpose()?;
    let has_requests = fork >= ApiFork::Prague;
    if has_requests {
        fields.offset::<()>()?;
    }
    let mut tails = fields.into_tails()?;
    let payload = decode_payload(fork, tails.next()?)?;
    let requests = || byte_lists("execution_requests", &tails.next()?, MAX_REQUESTS);
    let requests = has_requests.then(requests).transpose()?;
    Ok(PayloadEnvelope { payload, parent_beacon_block_root, requests })
}

fn decode_payload(fork: ApiFork, bytes: Bytes) -> Result<ExecutionPayload, SszError> {
    let mut fields = ContainerReader::new("ExecutionPayload", bytes);
    let mut paris = ExecutionPayloadV1 {
        parent_hash: fields.hash()?,
        fee_recipient: Address::new(fields.array()?),
        state_root: fields.hash()?,
        receipts_root: fields.hash()?,
        logs_bloom: Bloom::new(fields.array()?),
        prev_randao: fields.hash()?,
        block_number: fields.u64()?,
        gas_limit: fields.u64()?,
        gas_used: fields.u64()?,
        timestamp: fields.u64()?,
        extra_data: fields.offset()?,
        base_fee_per_gas: fields.u256()?,
        block_hash: fields.hash()?,
        transactions: fields.offset()?,
    };
    let has_withdrawals = fork >= ApiFork::Shanghai;
    if has_withdrawals {
        fields.offset::<()>()?;
    }
    let (mut blob_gas_used, mut excess_blob_gas, mut slot_number) = (0, 0, 0);
    if fork >= ApiFork::Cancun {
        (blob_gas_used, excess_blob_gas) = (fields.u64()?, fields.u64()?);
    }
    if fork >= ApiFork::Amsterdam {
        fields.offset::<()>()?;
        slot_number = fields.u64()?;
    }
    let mut tails = fields.into_tails()?;
    paris.extra_data = byte_list("extra_data", &tails.next()?, MAX_EXTRA_DATA)?;
    paris.transactions = byte_lists("transactions", &tails.next()?, MAX_TRANSACTIONS)?;
    if !has_withdrawals {
        return Ok(ExecutionPayload::V1(paris));
    }
    let withdrawals = decode_withdrawals(&tails.next()?)?;
    let shanghai = ExecutionPayloadV2 { payload_inner: paris, withdrawals };
    if fork < ApiFork::Cancun {
        return Ok(ExecutionPayload::V2(shanghai));
    }
    let cancun = ExecutionPayloadV3 { payload_inner: shanghai, blob_gas_used, excess_blob_gas };
    if fork < ApiFork::Amsterdam {
        return Ok(ExecutionPayload::V3(cancun));
    }
    // Its own memory, because the chain keeps it for longer than the request.
    let block_access_list = byte_list("block_access_list", &tails.next()?, usize::MAX)?;
    let payload_inner = cancun;
    Ok(ExecutionPayload::V4(ExecutionPayloadV4 { payload_inner, block_access_list, slot_number }))
}

/// Bytes of an encoded withdrawal.
const WITHDRAWAL: usize = 44;

pub(crate) fn decode_withdrawals(bytes: &[u8]) -> Result<Vec<Withdrawal>, SszError> {
    let copied = |item: &[u8; WITHDRAWAL]| Bytes::copy_from_slice(item);
    let items = fixed_list("withdrawals", bytes, MAX_WITHDRAWALS, copied)?;
    items.into_iter().map(decode_withdrawal).collect()
}

fn decode_withdrawal(bytes: Bytes) -> Result<Withdrawal, SszError> {
    let mut fields = ContainerReader::new("Withdrawal", bytes);
    Ok(Withdrawal {
        index: fields.u64()?,
        validator_index: fields.u64()?,
        address: Address::new(fields.array()?),
        amount: fields.u64()?,
    })
}

/// Writes the answer of `GET /payloads/{id}`. The order of the fields is the specification's, which
/// is not that of JSON.
pub(crate) fn encode_built_payload(
    fork: ApiFork,
    payload: &ExecutionPayload,
    built: &BuiltPayload,
) -> SszBuffer {
    let BuiltPayload { requests, sidecars, value, .. } = built;
    encode_built_payload_parts(fork, payload, *value, sidecars, requests)
}

pub(crate) fn encode_built_payload_parts(
    fork: ApiFork,
    payload: &ExecutionPayload,
    value: U256,
    sidecars: &[Arc<BlobSidecar>],
    requests: &Requests,
) -> SszBuffer {
    let mut fields = ContainerWriter::default();
    fields.put_variable(encode_payload(payload));
    fields.put(value.to_le_bytes::<32>());
    if fork >= ApiFork::Cancun {
        fields.put_variable(encode_bundle(sidecars));
    }
    if fork >= ApiFork::Prague {
        fields.put_variable(encode_byte_lists(requests.iter()));
    }
    if fork >= ApiFork::Cancun {
        // Whether the proposer should prefer this payload to a builder's.
        fields.put([u8::from(false)]);
    }
    fields.finish()
}

/// Writes a payload in the shape of its variant.
pub(crate) fn encode_payload(payload: &ExecutionPayload) -> SszBuffer {
    let paris = payload.as_v1();
    let mut fields = ContainerWriter::default();
    fields.put(paris.parent_hash);
    fields.put(paris.fee_recipient);
    fields.put(paris.state_root);
    fields.put(paris.receipts_root);
    fields.put(paris.logs_bloom);
    fields.put(paris.prev_randao);
    fields.put_u64(paris.block_number);
    fields.put_u64(paris.gas_limit);
    fields.put_u64(paris.gas_used);
    fields.put_u64(paris.timestamp);
    fields.put_bytes(paris.extra_data.clone());
    fields.put(paris.base_fee_per_gas.to_le_bytes::<32>());
    fields.put(paris.block_hash);
    fields.put_variable(encode_byte_lists(&paris.transactions));
    if let Some(shanghai) = payload.as_v2() {
        fields.put_variable(encode_withdrawals(&shanghai.withdrawals));
    }
    if let Some(cancun) = payload.as_v3() {
        fields.put_u64(cancun.blob_gas_used);
        fields.put_u64(cancun.excess_blob_gas);
    }
    if let ExecutionPayload::V4(amsterdam) = payload {
        fields.put_bytes(amsterdam.block_access_list.clone());
        fields.put_u64(amsterdam.slot_number);
    }
    fields.finish()
}

pub(crate) fn encode_byte_lists<'a>(items: impl IntoIterator<Item = &'a Bytes>) -> SszBuffer {
    let mut list = ContainerWriter::default();
    for item in items {
        list.put_bytes(item.clone());
    }
    list.finish()
}

pub(crate) fn encode_withdrawals(withdrawals: &[Withdrawal]) -> SszBuffer {
    let mut list = SszBuffer::default();
    for Withdrawal { index, validator_index, address, amount } in withdrawals {
        list.put(index.to_le_bytes());
        list.put(validator_index.to_le_bytes());
        list.put(address);
        list.put(amount.to_le_bytes());
    }
    list
}

/// `BlobsBundleV1` or `V2`, as the sidecars have proofs of blobs or of cells.
fn encode_bundle(sidecars: &[Arc<BlobSidecar>]) -> SszBuffer {
    let mut parts = [SszBuffer::default(), SszBuffer::default(), SszBuffer::default()];
    let [commitments, proofs, blobs] = &mut parts;
    for sidecar in sidecars {
        let (of_blobs, of_proofs, count) = match &**sidecar {
            BlobSidecar::Eip4844(sidecar) => {
                (&sidecar.commitments, &sidecar.proofs, sidecar.blobs.len())
            }
            BlobSidecar::Eip7594(sidecar) => {
                (&sidecar.commitments, &sidecar.cell_proofs, sidecar.blobs.len())
            }
        };
        of_blobs.iter().for_each(|commitment| commitments.put(commitment));
        of_proofs.iter().for_each(|proof| proofs.put(proof));
        for index in 0..count {
            blobs.put_shared(blob_bytes(PooledBlob { sidecar: sidecar.clone(), index }));
        }
    }
    let mut bundle = ContainerWriter::default();
    parts.into_iter().for_each(|part| bundle.put_variable(part));
    bundle.finish()
}
