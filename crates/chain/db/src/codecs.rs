//! Values of the chain tables: bytes and back. The formats are listed in [`tables`](crate::tables).
//!
//! Decoders return the fault; callers add table and key.

use alloy_consensus::TxType;
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::{Address, Log, U256};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use retrie_chainspec::primitives::{Header, Receipt, Transaction, Withdrawals};

type DecodeResult<T> = std::result::Result<T, String>;

pub(crate) fn encode_header(header: &Header) -> Vec<u8> {
    alloy_rlp::encode(header)
}

pub(crate) fn decode_header(bytes: &[u8]) -> DecodeResult<Header> {
    alloy_rlp::decode_exact(bytes).map_err(|e| format!("the header does not decode ({e})"))
}

/// The parts of a block besides its header and transactions.
#[derive(Debug, PartialEq, Eq, RlpDecodable)]
#[rlp(trailing)]
pub(crate) struct BodyRow {
    pub(crate) transactions: u64,
    pub(crate) ommers: Vec<Header>,
    pub(crate) withdrawals: Option<Withdrawals>,
}

#[derive(RlpEncodable)]
#[rlp(trailing)]
struct BodyRowRef<'a> {
    transactions: u64,
    ommers: &'a Vec<Header>,
    withdrawals: Option<&'a Withdrawals>,
}

pub(crate) fn encode_body(
    transactions: usize,
    ommers: &Vec<Header>,
    withdrawals: Option<&Withdrawals>,
) -> Vec<u8> {
    alloy_rlp::encode(BodyRowRef { transactions: transactions as u64, ommers, withdrawals })
}

pub(crate) fn decode_body(bytes: &[u8]) -> DecodeResult<BodyRow> {
    alloy_rlp::decode_exact(bytes).map_err(|e| format!("the body does not decode ({e})"))
}

pub(crate) fn encode_transaction(transaction: &Transaction, sender: &Address) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(Address::len_bytes() + transaction.encode_2718_len());
    bytes.extend_from_slice(sender.as_slice());
    transaction.encode_2718(&mut bytes);
    bytes
}

/// Sender and EIP-2718 encoding.
pub(crate) fn split_transaction(bytes: &[u8]) -> DecodeResult<(Address, &[u8])> {
    let (sender, encoded) = bytes
        .split_first_chunk::<20>()
        .ok_or_else(|| "the row is shorter than a sender".to_owned())?;
    Ok((Address::from(*sender), encoded))
}

pub(crate) fn decode_transaction(bytes: &[u8]) -> DecodeResult<(Transaction, Address)> {
    let (sender, mut encoded) = split_transaction(bytes)?;
    let transaction = Transaction::decode_2718(&mut encoded)
        .map_err(|e| format!("the transaction does not decode ({e})"))?;
    if !encoded.is_empty() {
        return Err(format!("{} bytes follow the transaction", encoded.len()));
    }
    Ok((transaction, sender))
}

#[derive(RlpEncodable)]
struct ReceiptRowRef<'a> {
    tx_type: u8,
    success: bool,
    cumulative_gas_used: u64,
    logs: &'a Vec<Log>,
}

#[derive(RlpDecodable)]
struct ReceiptRow {
    tx_type: u8,
    success: bool,
    cumulative_gas_used: u64,
    logs: Vec<Log>,
}

pub(crate) fn encode_receipt(receipt: &Receipt) -> Vec<u8> {
    alloy_rlp::encode(ReceiptRowRef {
        tx_type: receipt.tx_type as u8,
        success: receipt.success,
        cumulative_gas_used: receipt.cumulative_gas_used,
        logs: &receipt.logs,
    })
}

pub(crate) fn decode_receipt(bytes: &[u8]) -> DecodeResult<Receipt> {
    let row: ReceiptRow =
        alloy_rlp::decode_exact(bytes).map_err(|e| format!("the receipt does not decode ({e})"))?;
    let tx_type = TxType::try_from(row.tx_type)
        .map_err(|_| format!("transaction type {} is unknown", row.tx_type))?;
    Ok(Receipt {
        tx_type,
        success: row.success,
        cumulative_gas_used: row.cumulative_gas_used,
        logs: row.logs,
    })
}

pub(crate) fn encode_difficulty(difficulty: U256) -> Vec<u8> {
    difficulty.to_be_bytes_trimmed_vec()
}

pub(crate) fn decode_difficulty(bytes: &[u8]) -> DecodeResult<U256> {
    if bytes.len() > 32 || bytes.first() == Some(&0) {
        return Err("the total difficulty is not a number of at most 256 bits".to_owned());
    }
    Ok(U256::from_be_slice(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{B256, LogData, address, b256, bytes, hex, keccak256};
    use retrie_chainspec::primitives::Withdrawal;

    /// Mainnet's genesis header, whose hash is well known.
    fn genesis() -> Header {
        Header {
            state_root: b256!("d7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544"),
            difficulty: U256::from(0x4_0000_0000_u64),
            gas_limit: 5000,
            extra_data: bytes!("11bbe8db4e347b4e8c937c1c8370e4b5ed33adb3db69cbdb7a38e1e50b1b82fa"),
            nonce: alloy_primitives::B64::from(0x42_u64),
            ..Header::default()
        }
    }

    #[test]
    fn header_row_hashes_to_the_block_hash() {
        let row = encode_header(&genesis());
        assert_eq!(
            keccak256(&row),
            b256!("d4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3")
        );
        assert_eq!(decode_header(&row).unwrap(), genesis());
        assert!(decode_header(&row[..row.len() - 1]).is_err());
        assert!(decode_header(&[row.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn header_row_keeps_the_fields_of_amsterdam() {
        let header = Header {
            withdrawals_root: Some(B256::repeat_byte(1)),
            base_fee_per_gas: Some(7),
            blob_gas_used: Some(1),
            excess_blob_gas: Some(2),
            parent_beacon_block_root: Some(B256::repeat_byte(3)),
            requests_hash: Some(B256::repeat_byte(4)),
            block_access_list_hash: Some(B256::repeat_byte(5)),
            slot_number: Some(9),
            ..genesis()
        };
        assert_eq!(decode_header(&encode_header(&header)).unwrap(), header);
    }

    #[test]
    fn body_rows_are_these_bytes() {
        let empty = encode_body(3, &vec![], None);
        assert_eq!(hex::encode(&empty), "c203c0");
        let withdrawal = Withdrawal {
            index: 1,
            validator_index: 2,
            address: address!("00000000000000000000000000000000000000aa"),
            amount: 0x100,
        };
        let withdrawals = Withdrawals::new(vec![withdrawal]);
        let full = encode_body(0, &vec![], Some(&withdrawals));
        assert_eq!(
            hex::encode(&full),
            "de80c0dbda01029400000000000000000000000000000000000000aa820100"
        );
        let decoded = decode_body(&full).unwrap();
        assert_eq!(
            decoded,
            BodyRow { transactions: 0, ommers: vec![], withdrawals: Some(withdrawals) }
        );
        // No withdrawals and an empty list of withdrawals are different bodies.
        let none = decode_body(&encode_body(0, &vec![], None)).unwrap();
        let zero = decode_body(&encode_body(0, &vec![], Some(&Withdrawals::default()))).unwrap();
        assert_eq!(none.withdrawals, None);
        assert_eq!(zero.withdrawals, Some(Withdrawals::default()));
        let with_ommers = decode_body(&encode_body(1, &vec![genesis()], None)).unwrap();
        assert_eq!(with_ommers.ommers, [genesis()]);
    }

    #[test]
    fn receipt_rows_are_these_bytes() {
        let receipt = Receipt {
            tx_type: TxType::Eip1559,
            success: true,
            cumulative_gas_used: 21_000,
            logs: vec![Log {
                address: address!("00000000000000000000000000000000000000aa"),
                data: LogData::new_unchecked(vec![B256::with_last_byte(1)], bytes!("beef")),
            }],
        };
        let row = encode_receipt(&receipt);
        assert_eq!(
            hex::encode(&row),
            "f8430201825208f83cf83a9400000000000000000000000000000000000000aae1a0\
             000000000000000000000000000000000000000000000000000000000000000182beef"
        );
        assert_eq!(decode_receipt(&row).unwrap(), receipt);
        let failed = Receipt { success: false, logs: vec![], ..receipt };
        assert_eq!(hex::encode(encode_receipt(&failed)), "c60280825208c0");
        for tx_type in (0..5_u8).map(|byte| TxType::try_from(byte).unwrap()) {
            let typed = Receipt { tx_type, ..failed.clone() };
            assert_eq!(decode_receipt(&encode_receipt(&typed)).unwrap(), typed);
        }
        assert!(decode_receipt(&hex!("c67f80825208c0")).unwrap_err().contains("type 127"));
        assert!(decode_receipt(&hex!("c60280825208")).is_err());
    }

    #[test]
    fn transaction_row_is_the_sender_and_the_raw_transaction() {
        // The transaction of mainnet block 46147, the first ever.
        let raw = hex!(
            "f86780862d79883d2000825208945df9b87991262f6ba471f09758cde1c0fc1de734827a69801ca0\
             88ff6cf0fefd94db46111149ae4bfc179e9b94721fffd821d38d16464b3f71d0a045e0aff800961c\
             fce805daef7016b9b675c137a6a41a548f7b60a3484c06a33a"
        );
        let sender = address!("a1e4380a3b1f749673e270229993ee55f35663b4");
        let row = [sender.as_slice(), &raw].concat();
        let (transaction, read) = decode_transaction(&row).unwrap();
        assert_eq!(read, sender);
        assert_eq!(
            *transaction.tx_hash(),
            b256!("5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060")
        );
        assert_eq!(encode_transaction(&transaction, &sender), row);
        assert!(decode_transaction(&row[..19]).is_err());
        assert!(decode_transaction(&row[..100]).is_err());
        assert!(decode_transaction(&[row.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn difficulty_rows_are_minimal() {
        assert_eq!(encode_difficulty(U256::ZERO), Vec::<u8>::new());
        assert_eq!(encode_difficulty(U256::from(0x0400)), [4, 0]);
        for td in [U256::ZERO, U256::from(17), U256::MAX] {
            assert_eq!(decode_difficulty(&encode_difficulty(td)).unwrap(), td);
        }
        assert!(decode_difficulty(&[0, 1]).is_err());
        assert!(decode_difficulty(&[1; 33]).is_err());
    }
}
