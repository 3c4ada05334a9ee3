//! `BodiesResponse`.

use super::{
    super::ssz::{ContainerWriter, SszBuffer, list_of},
    payload::{encode_byte_lists, encode_withdrawals},
};
use alloy_rpc_types_engine::ExecutionPayloadBodyV2;
use retrie_engine::ApiFork;

/// Writes the bodies of blocks of `fork`; one that is not there is an empty body with a mark.
pub(crate) fn encode_bodies(fork: ApiFork, bodies: &[Option<ExecutionPayloadBodyV2>]) -> SszBuffer {
    let entries = bodies.iter().map(|body| {
        let mut entry = ContainerWriter::default();
        entry.put([u8::from(body.is_some())]);
        entry.put_variable(encode_body(fork, body.as_ref()));
        entry.finish()
    });
    let mut fields = ContainerWriter::default();
    fields.put_variable(list_of(entries));
    fields.finish()
}

fn encode_body(fork: ApiFork, body: Option<&ExecutionPayloadBodyV2>) -> SszBuffer {
    let mut fields = ContainerWriter::default();
    let transactions = body.into_iter().flat_map(|body| &body.transactions);
    fields.put_variable(encode_byte_lists(transactions));
    if fork >= ApiFork::Shanghai {
        let withdrawals = body.and_then(|body| body.withdrawals.as_deref()).unwrap_or_default();
        fields.put_variable(encode_withdrawals(withdrawals));
    }
    if fork >= ApiFork::Amsterdam {
        let list = body.and_then(|body| body.block_access_list.clone()).unwrap_or_default();
        fields.put_bytes(list);
    }
    fields.finish()
}
