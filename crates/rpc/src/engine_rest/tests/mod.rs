//! What the containers are, byte by byte; what is refused; which request is which call.

mod calls;
mod codec;
mod plain;
mod refused;

use super::ssz::SszBuffer;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
use alloy_rpc_types_engine::{
    ExecutionPayload, ExecutionPayloadV1, ExecutionPayloadV2, ExecutionPayloadV3,
    ExecutionPayloadV4, PayloadAttributes,
};
use retrie_engine::{ApiFork, PayloadEnvelope};

/// Numbers that look random and are the same in every run (SplitMix64).
struct RandomNumbers(u64);

impl RandomNumbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    fn hash(&mut self) -> B256 {
        B256::from_slice(&self.bytes(32))
    }

    /// Up to `most` byte lists, also empty ones.
    fn lists(&mut self, most: usize) -> Vec<Bytes> {
        let count = self.below(most + 1);
        (0..count)
            .map(|_| {
                let len = self.below(200);
                self.bytes(len).into()
            })
            .collect()
    }

    fn withdrawals(&mut self) -> Vec<Withdrawal> {
        let count = self.below(17);
        (0..count)
            .map(|_| Withdrawal {
                index: self.next(),
                validator_index: self.next(),
                address: Address::from_slice(&self.bytes(20)),
                amount: self.next(),
            })
            .collect()
    }

    fn payload(&mut self, fork: ApiFork) -> ExecutionPayload {
        let extra = self.below(33);
        let paris = ExecutionPayloadV1 {
            parent_hash: self.hash(),
            fee_recipient: Address::from_slice(&self.bytes(20)),
            state_root: self.hash(),
            receipts_root: self.hash(),
            logs_bloom: Bloom::from_slice(&self.bytes(256)),
            prev_randao: self.hash(),
            block_number: self.next(),
            gas_limit: self.next(),
            gas_used: self.next(),
            timestamp: self.next(),
            extra_data: self.bytes(extra).into(),
            base_fee_per_gas: U256::from_be_bytes(self.hash().0),
            block_hash: self.hash(),
            transactions: self.lists(20),
        };
        if fork == ApiFork::Paris {
            return ExecutionPayload::V1(paris);
        }
        let shanghai = ExecutionPayloadV2 { payload_inner: paris, withdrawals: self.withdrawals() };
        if fork == ApiFork::Shanghai {
            return ExecutionPayload::V2(shanghai);
        }
        let cancun = ExecutionPayloadV3 {
            payload_inner: shanghai,
            blob_gas_used: self.next(),
            excess_blob_gas: self.next(),
        };
        if fork < ApiFork::Amsterdam {
            return ExecutionPayload::V3(cancun);
        }
        let list = self.below(9000);
        ExecutionPayload::V4(ExecutionPayloadV4 {
            payload_inner: cancun,
            block_access_list: self.bytes(list).into(),
            slot_number: self.next(),
        })
    }

    fn envelope(&mut self, fork: ApiFork) -> PayloadEnvelope {
        PayloadEnvelope {
            payload: self.payload(fork),
            parent_beacon_block_root: (fork >= ApiFork::Cancun).then(|| self.hash()),
            requests: (fork >= ApiFork::Prague).then(|| self.lists(4)),
        }
    }

    fn attributes(&mut self, fork: ApiFork) -> PayloadAttributes {
        PayloadAttributes {
            timestamp: self.next(),
            prev_randao: self.hash(),
            suggested_fee_recipient: Address::from_slice(&self.bytes(20)),
            withdrawals: (fork >= ApiFork::Shanghai).then(|| self.withdrawals()),
            parent_beacon_block_root: (fork >= ApiFork::Cancun).then(|| self.hash()),
            slot_number: (fork >= ApiFork::Amsterdam).then(|| self.next()),
            target_gas_limit: (fork >= ApiFork::Amsterdam).then(|| self.next()),
        }
    }
}

/// The bytes of a buffer, which must have the size that it says.
fn whole(buffer: SszBuffer) -> Vec<u8> {
    let size = buffer.size();
    let bytes = buffer.into_pieces().concat();
    assert_eq!(bytes.len(), size);
    bytes
}
