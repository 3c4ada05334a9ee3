//! Slim receipts: the form of receipts in ere files.

use alloy_consensus::{Eip658Value, Receipt as ReceiptFields, ReceiptEnvelope, ReceiptWithBloom};
use alloy_primitives::Log;
use alloy_rlp::{RlpDecodable, RlpEncodable};
use retrie_chainspec::primitives::{Receipt, TxType};

use crate::error::SourceErrorKind;

/// A receipt without its bloom, RLP `[type, state root or status, cumulative gas, [log, ..]]`.
#[derive(Clone, Debug, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct SlimReceipt {
    /// EIP-2718 type of the transaction.
    pub tx_type: u8,
    /// The status (EIP-658); before Byzantium the state root after the transaction.
    pub status: Eip658Value,
    /// Gas used by the block up to and with this transaction.
    pub cumulative_gas_used: u64,
    /// Its logs.
    pub logs: Vec<Log>,
}

impl From<Receipt> for SlimReceipt {
    fn from(receipt: Receipt) -> Self {
        let Receipt { tx_type, success, cumulative_gas_used, logs } = receipt;
        let status = Eip658Value::Eip658(success);
        Self { tx_type: tx_type as u8, status, cumulative_gas_used, logs }
    }
}

impl SlimReceipt {
    /// The receipt that the root in the header covers, with the bloom of its logs.
    ///
    /// # Errors
    /// If no transaction has its type.
    pub fn into_envelope(self) -> Result<ReceiptEnvelope, SourceErrorKind> {
        let Self { tx_type, status, cumulative_gas_used, logs } = self;
        let fields = ReceiptFields { status, cumulative_gas_used, logs };
        let receipt = ReceiptWithBloom::from(fields);
        let tx_type = TxType::try_from(tx_type)
            .map_err(|_| SourceErrorKind::Format("a receipt of an unknown type of transaction"))?;
        Ok(match tx_type {
            TxType::Legacy => ReceiptEnvelope::Legacy(receipt),
            TxType::Eip2930 => ReceiptEnvelope::Eip2930(receipt),
            TxType::Eip1559 => ReceiptEnvelope::Eip1559(receipt),
            TxType::Eip4844 => ReceiptEnvelope::Eip4844(receipt),
            TxType::Eip7702 => ReceiptEnvelope::Eip7702(receipt),
        })
    }
}

/// The same for all receipts of a block.
pub(super) fn envelopes(
    receipts: Vec<SlimReceipt>,
) -> Result<Vec<ReceiptEnvelope>, SourceErrorKind> {
    receipts.into_iter().map(SlimReceipt::into_envelope).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{B256, hex};

    #[test]
    fn slim_receipts_have_these_bytes() {
        let receipt = |tx_type, status| SlimReceipt {
            tx_type,
            status,
            cumulative_gas_used: 21_000,
            logs: Vec::new(),
        };
        let root = B256::repeat_byte(0xaa);
        for (receipt, bytes) in [
            (receipt(0, Eip658Value::Eip658(true)), hex!("c68001825208c0").to_vec()),
            (receipt(2, Eip658Value::Eip658(false)), hex!("c60280825208c0").to_vec()),
            (
                receipt(0, Eip658Value::PostState(root)),
                [&hex!("e680a0")[..], root.as_slice(), &hex!("825208c0")].concat(),
            ),
        ] {
            assert_eq!(alloy_rlp::encode(&receipt), bytes);
            assert_eq!(alloy_rlp::decode_exact::<SlimReceipt>(&bytes).unwrap(), receipt);
        }
        let unknown = receipt(0x50, Eip658Value::Eip658(true)).into_envelope();
        assert!(matches!(unknown, Err(SourceErrorKind::Format(_))));
    }
}
