//! `ForkchoiceUpdate` and its response.

use super::{
    super::ssz::{
        ContainerReader, ContainerWriter, SszBuffer, SszError, optional_bytes, optional_fixed,
    },
    payload::decode_withdrawals,
    status::encode_status,
};
use alloy_primitives::{Address, B128, Bytes};
use alloy_rpc_types_engine::{ForkchoiceState, ForkchoiceUpdated, PayloadAttributes};
use retrie_engine::ApiFork;

/// The body of `POST /forkchoice`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ForkchoiceRequest {
    pub(crate) state: ForkchoiceState,
    pub(crate) attributes: Option<PayloadAttributes>,
    /// From Amsterdam on: the columns that the consensus client keeps, one bit each, the lowest bit
    /// of the first byte for the first column (EIP-8070).
    pub(crate) custody_columns: Option<B128>,
}

pub(crate) fn decode_forkchoice(fork: ApiFork, body: Bytes) -> Result<ForkchoiceRequest, SszError> {
    let mut fields = ContainerReader::new("ForkchoiceUpdate", body);
    let state = ForkchoiceState {
        head_block_hash: fields.hash()?,
        safe_block_hash: fields.hash()?,
        finalized_block_hash: fields.hash()?,
    };
    fields.offset::<()>()?;
    let has_custody = fork >= ApiFork::Amsterdam;
    if has_custody {
        fields.offset::<()>()?;
    }
    let mut tails = fields.into_tails()?;
    let attributes = tails.next()?;
    let attributes = match fork {
        // Those of Paris have a fixed size, so that their list has no offset.
        ApiFork::Paris => (!attributes.is_empty()).then_some(attributes),
        _ => optional_bytes("payload_attributes", &attributes)?,
    };
    let attributes = attributes.map(|bytes| decode_attributes(fork, bytes)).transpose()?;
    let custody_columns = match has_custody {
        true => optional_fixed("custody_columns", &tails.next()?)?.map(B128::new),
        false => None,
    };
    Ok(ForkchoiceRequest { state, attributes, custody_columns })
}

fn decode_attributes(fork: ApiFork, bytes: Bytes) -> Result<PayloadAttributes, SszError> {
    let mut fields = ContainerReader::new("PayloadAttributes", bytes);
    let mut attributes = PayloadAttributes {
        timestamp: fields.u64()?,
        prev_randao: fields.hash()?,
        suggested_fee_recipient: Address::new(fields.array()?),
        ..PayloadAttributes::default()
    };
    let has_withdrawals = fork >= ApiFork::Shanghai;
    if has_withdrawals {
        fields.offset::<()>()?;
    }
    if fork >= ApiFork::Cancun {
        attributes.parent_beacon_block_root = Some(fields.hash()?);
    }
    if fork >= ApiFork::Amsterdam {
        attributes.slot_number = Some(fields.u64()?);
        attributes.target_gas_limit = Some(fields.u64()?);
    }
    let mut tails = fields.into_tails()?;
    if has_withdrawals {
        attributes.withdrawals = Some(decode_withdrawals(&tails.next()?)?);
    }
    Ok(attributes)
}

pub(crate) fn encode_forkchoice(updated: &ForkchoiceUpdated) -> SszBuffer {
    let mut id = SszBuffer::default();
    if let Some(started) = updated.payload_id {
        id.put(started.0);
    }
    let mut fields = ContainerWriter::default();
    fields.put_variable(encode_status(&updated.payload_status));
    fields.put_variable(id);
    fields.finish()
}
