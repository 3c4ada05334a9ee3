//! A second encoder, which is as simple as the definition: it writes every level into bytes of its own.

use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{B128, Bytes};
use alloy_rpc_types_engine::{
    ExecutionPayload, ExecutionPayloadBodyV2, ForkchoiceState, PayloadAttributes, PayloadStatus,
};
use retrie_engine::{ApiFork, PayloadEnvelope};

/// A field or an item.
pub(super) enum SszPart {
    Fixed(Vec<u8>),
    Variable(Vec<u8>),
}

use SszPart::{Fixed, Variable};

fn fixed(bytes: impl AsRef<[u8]>) -> SszPart {
    Fixed(bytes.as_ref().to_vec())
}

fn number(number: u64) -> SszPart {
    fixed(number.to_le_bytes())
}

/// A container, or a list, of these parts.
pub(super) fn sequence(parts: Vec<SszPart>) -> Vec<u8> {
    let size = |part: &SszPart| match part {
        Fixed(bytes) => bytes.len(),
        Variable(_) => 4,
    };
    let mut next: usize = parts.iter().map(size).sum();
    let (mut front, mut back) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Fixed(bytes) => front.extend(bytes),
            Variable(bytes) => {
                front.extend((next as u32).to_le_bytes());
                next += bytes.len();
                back.extend(bytes);
            }
        }
    }
    [front, back].concat()
}

fn byte_lists(items: &[Bytes]) -> Vec<u8> {
    sequence(items.iter().map(|item| Variable(item.to_vec())).collect())
}

fn withdrawals(all: &[Withdrawal]) -> Vec<u8> {
    let one = |one: &Withdrawal| {
        let (first, second) = (number(one.index), number(one.validator_index));
        Fixed(sequence(vec![first, second, fixed(one.address), number(one.amount)]))
    };
    sequence(all.iter().map(one).collect())
}

pub(super) fn payload(payload: &ExecutionPayload) -> Vec<u8> {
    let paris = payload.as_v1();
    let mut parts = vec![
        fixed(paris.parent_hash),
        fixed(paris.fee_recipient),
        fixed(paris.state_root),
        fixed(paris.receipts_root),
        fixed(paris.logs_bloom),
        fixed(paris.prev_randao),
        number(paris.block_number),
        number(paris.gas_limit),
        number(paris.gas_used),
        number(paris.timestamp),
        Variable(paris.extra_data.to_vec()),
        fixed(paris.base_fee_per_gas.as_le_slice()),
        fixed(paris.block_hash),
        Variable(byte_lists(&paris.transactions)),
    ];
    if let Some(shanghai) = payload.as_v2() {
        parts.push(Variable(withdrawals(&shanghai.withdrawals)));
    }
    if let Some(cancun) = payload.as_v3() {
        parts.extend([number(cancun.blob_gas_used), number(cancun.excess_blob_gas)]);
    }
    if let ExecutionPayload::V4(amsterdam) = payload {
        parts.push(Variable(amsterdam.block_access_list.to_vec()));
        parts.push(number(amsterdam.slot_number));
    }
    sequence(parts)
}

pub(super) fn envelope(envelope: &PayloadEnvelope) -> Vec<u8> {
    let mut parts = vec![Variable(payload(&envelope.payload))];
    parts.extend(envelope.parent_beacon_block_root.map(fixed));
    parts.extend(envelope.requests.as_ref().map(|requests| Variable(byte_lists(requests))));
    sequence(parts)
}

pub(super) fn forkchoice(
    fork: ApiFork,
    state: ForkchoiceState,
    attributes: Option<&PayloadAttributes>,
    custody: Option<B128>,
) -> Vec<u8> {
    let list = attributes.map(|of| {
        let mut parts =
            vec![number(of.timestamp), fixed(of.prev_randao), fixed(of.suggested_fee_recipient)];
        parts.extend(of.withdrawals.as_ref().map(|all| Variable(withdrawals(all))));
        parts.extend(of.parent_beacon_block_root.map(fixed));
        parts.extend(of.slot_number.map(number));
        parts.extend(of.target_gas_limit.map(number));
        let attributes = sequence(parts);
        sequence(vec![if fork == ApiFork::Paris {
            Fixed(attributes)
        } else {
            Variable(attributes)
        }])
    });
    let hashes = [state.head_block_hash, state.safe_block_hash, state.finalized_block_hash];
    let mut parts = vec![fixed(hashes.concat()), Variable(list.unwrap_or_default())];
    if fork >= ApiFork::Amsterdam {
        parts.push(Variable(custody.map(|bits| bits.to_vec()).unwrap_or_default()));
    }
    sequence(parts)
}

pub(super) fn status(code: u8, status: &PayloadStatus, error: Option<&str>) -> Vec<u8> {
    let error = error.map(|error| sequence(vec![Variable(error.into())]));
    let hash = status.latest_valid_hash.map(|hash| hash.to_vec());
    sequence(vec![
        Fixed(vec![code]),
        Variable(hash.unwrap_or_default()),
        Variable(error.unwrap_or_default()),
    ])
}

pub(super) fn bodies(fork: ApiFork, bodies: &[Option<ExecutionPayloadBodyV2>]) -> Vec<u8> {
    let entry = |body: &Option<ExecutionPayloadBodyV2>| {
        let empty = ExecutionPayloadBodyV2 {
            transactions: Vec::new(),
            withdrawals: None,
            block_access_list: None,
        };
        let of = body.as_ref().unwrap_or(&empty);
        let mut parts = vec![Variable(byte_lists(&of.transactions))];
        if fork >= ApiFork::Shanghai {
            parts.push(Variable(withdrawals(of.withdrawals.as_deref().unwrap_or_default())));
        }
        if fork >= ApiFork::Amsterdam {
            parts.push(Variable(of.block_access_list.clone().unwrap_or_default().to_vec()));
        }
        let mark = Fixed(vec![u8::from(body.is_some())]);
        Variable(sequence(vec![mark, Variable(sequence(parts))]))
    };
    let entries = sequence(bodies.iter().map(entry).collect());
    sequence(vec![Variable(entries)])
}
