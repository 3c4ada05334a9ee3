//! Receipts without blooms (EIP-7642), and the root to which they lead.

use alloc::vec::Vec;
use alloy_primitives::{B256, Log, logs_bloom};
use alloy_rlp::{Decodable, Encodable, Error, Header};
use alloy_trie::root::ordered_trie_root_encoded;

/// A receipt without its bloom, which follows from its logs.
pub(super) struct BloomlessReceipt<'a> {
    /// Type of the transaction (EIP-2718).
    tx_type: u8,
    /// RLP of the status, or of the state root before Byzantium.
    status: &'a [u8],
    /// RLP of the cumulative gas.
    gas: &'a [u8],
    /// RLP of the logs.
    encoded_logs: &'a [u8],
    /// The logs.
    pub(super) logs: Vec<Log>,
}

impl<'a> BloomlessReceipt<'a> {
    /// The receipts of a block from the RLP of their list.
    pub(super) fn decode_list(mut rlp: &'a [u8]) -> alloy_rlp::Result<Vec<Self>> {
        let mut items = Header::decode_bytes(&mut rlp, true)?;
        if !rlp.is_empty() {
            return Err(Error::UnexpectedLength);
        }
        let mut receipts = Vec::new();
        while !items.is_empty() {
            receipts.push(Self::decode(&mut items)?);
        }
        Ok(receipts)
    }

    fn decode(items: &mut &'a [u8]) -> alloy_rlp::Result<Self> {
        let mut fields = Header::decode_bytes(items, true)?;
        let tx_type = u8::decode(&mut fields)?;
        if tx_type > 0x7f {
            return Err(Error::Custom("no transaction has such a type"));
        }
        let (status, _) = item(&mut fields, false)?;
        let (gas, _) = item(&mut fields, false)?;
        let (encoded_logs, mut rest) = item(&mut fields, true)?;
        if !fields.is_empty() {
            return Err(Error::UnexpectedLength);
        }
        let mut logs = Vec::new();
        while !rest.is_empty() {
            logs.push(Log::decode(&mut rest)?);
        }
        Ok(Self { tx_type, status, gas, encoded_logs, logs })
    }

    /// The root of the trie of the receipts of a block (yellow paper 4.3.1), which its header has.
    pub(super) fn root(receipts: &[Self]) -> B256 {
        let leaves: Vec<_> = receipts.iter().map(Self::encode_2718).collect();
        ordered_trie_root_encoded(&leaves)
    }

    fn encode_2718(&self) -> Vec<u8> {
        let bloom = logs_bloom(&self.logs);
        let payload_length =
            self.status.len() + self.gas.len() + bloom.length() + self.encoded_logs.len();
        let mut leaf = Vec::with_capacity(payload_length + 5);
        if self.tx_type != 0 {
            leaf.push(self.tx_type);
        }
        Header { list: true, payload_length }.encode(&mut leaf);
        leaf.extend_from_slice(self.status);
        leaf.extend_from_slice(self.gas);
        bloom.encode(&mut leaf);
        leaf.extend_from_slice(self.encoded_logs);
        leaf
    }
}

/// Takes the next item: all its bytes, and its payload.
fn item<'a>(items: &mut &'a [u8], is_list: bool) -> alloy_rlp::Result<(&'a [u8], &'a [u8])> {
    let before = *items;
    let payload = Header::decode_bytes(items, is_list)?;
    Ok((&before[..before.len() - items.len()], payload))
}
