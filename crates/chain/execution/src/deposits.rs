//! Deposit requests (EIP-6110), decoded byte by byte from the logs of the deposit contract.
//!
//! The contract emits one event of five byte strings, for which EIP-6110 allows one layout: 576
//! bytes, with five offsets and then each string after its length, padded to words. A log of this
//! event with any other layout makes its block invalid, even if an ABI decoder could read it.

use crate::ExecutionError;
use alloy_eips::eip7685::Requests;
use alloy_evm::block::BlockExecutionResult;
use alloy_primitives::{Address, B256, Log, U256, b256};
use retrie_chainspec::primitives::Receipt;

/// Type of deposit requests (EIP-6110).
const DEPOSIT_REQUEST_TYPE: u8 = 0;
/// Signature hash of `DepositEvent(bytes,bytes,bytes,bytes,bytes)`: the event's first topic.
const DEPOSIT_EVENT: B256 =
    b256!("0x649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5");
/// Bytes of an ABI word.
const WORD: usize = 32;
/// Bytes of the event's data.
const DATA_LENGTH: usize = 576;

/// A byte string of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DepositField {
    name: &'static str,
    /// Offset of its length in the data, in bytes.
    offset: usize,
    /// Its length in bytes.
    length: usize,
}

const fn field(name: &'static str, offset: usize, length: usize) -> DepositField {
    DepositField { name, offset, length }
}

/// The strings in the order of the event, which is also that of the request.
const FIELDS: [DepositField; 5] = [
    field("pubkey", 160, 48),
    field("withdrawal credentials", 256, 32),
    field("amount", 320, 8),
    field("signature", 384, 96),
    field("index", 512, 8),
];

/// How a log of the deposit event differs from the only allowed layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DepositLayoutError {
    /// Its data is too short or too long.
    #[error("its data has {length} bytes, not {DATA_LENGTH}")]
    DataLength {
        /// Length in bytes.
        length: usize,
    },
    /// A field is at another offset.
    #[error("the offset of its {field} is {found}, not {expected}")]
    Offset {
        /// Name of the field.
        field: &'static str,
        /// What the log says.
        found: U256,
        /// What EIP-6110 demands.
        expected: usize,
    },
    /// A field has another length.
    #[error("the length of its {field} is {found}, not {expected}")]
    FieldLength {
        /// Name of the field.
        field: &'static str,
        /// What the log says.
        found: U256,
        /// What EIP-6110 demands.
        expected: usize,
    },
}

/// Decodes the data of a deposit event and appends the request.
fn read_deposit(data: &[u8], request: &mut Vec<u8>) -> Result<(), DepositLayoutError> {
    if data.len() != DATA_LENGTH {
        return Err(DepositLayoutError::DataLength { length: data.len() });
    }
    let word = |at: usize| U256::from_be_slice(&data[at..at + WORD]);
    for (index, DepositField { name, offset, length }) in FIELDS.into_iter().enumerate() {
        let found = word(index * WORD);
        if found != U256::from(offset) {
            return Err(DepositLayoutError::Offset { field: name, found, expected: offset });
        }
        let found = word(offset);
        if found != U256::from(length) {
            return Err(DepositLayoutError::FieldLength { field: name, found, expected: length });
        }
        let begin = offset + WORD;
        request.extend_from_slice(&data[begin..begin + length]);
    }
    Ok(())
}

/// Reads the deposits among the logs of transaction `transaction`, and appends them to `data`.
fn read_deposits(
    number: u64,
    transaction: usize,
    contract: Address,
    logs: &[Log],
    data: &mut Vec<u8>,
) -> Result<(), ExecutionError> {
    for (log, event) in logs.iter().enumerate() {
        if event.address == contract && event.topics().first() == Some(&DEPOSIT_EVENT) {
            read_deposit(&event.data.data, data).map_err(|source| {
                ExecutionError::InvalidDeposit { number, transaction, log, source }
            })?;
        }
    }
    Ok(())
}

/// Checks that every deposit among the logs of one transaction has the required layout.
///
/// # Errors
/// [`ExecutionError::InvalidDeposit`].
pub(crate) fn check_deposits(
    number: u64,
    transaction: usize,
    contract: Option<Address>,
    logs: &[Log],
) -> Result<(), ExecutionError> {
    contract.map_or(Ok(()), |contract| {
        read_deposits(number, transaction, contract, logs, &mut Vec::new())
    })
}

/// The deposits of a block, and the receipts they were read from.
#[derive(Debug)]
pub(crate) struct DepositRequests {
    receipts: Vec<Receipt>,
    /// One request after the other.
    data: Vec<u8>,
}

impl DepositRequests {
    /// Reads the deposits in the receipts of block `number`: none without a deposit contract.
    ///
    /// # Errors
    /// [`ExecutionError::InvalidDeposit`].
    pub(crate) fn read(
        number: u64,
        contract: Option<Address>,
        receipts: Vec<Receipt>,
    ) -> Result<Self, ExecutionError> {
        let mut data = Vec::new();
        if let Some(contract) = contract {
            for (transaction, receipt) in receipts.iter().enumerate() {
                read_deposits(number, transaction, contract, &receipt.logs, &mut data)?;
            }
        }
        Ok(Self { receipts, data })
    }

    /// Adds the receipts to `result`, and the deposits before all other requests, since requests
    /// are in the order of their types (EIP-7685).
    pub(crate) fn complete(
        self,
        result: BlockExecutionResult<Receipt>,
    ) -> BlockExecutionResult<Receipt> {
        let mut requests = Requests::with_capacity(result.requests.len() + 1);
        requests.push_request_with_type(DEPOSIT_REQUEST_TYPE, self.data);
        requests.extend(result.requests);
        BlockExecutionResult { receipts: self.receipts, requests, ..result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;

    /// The data of an event whose fields are runs of one byte each.
    fn event() -> Vec<u8> {
        let mut data = vec![0; DATA_LENGTH];
        for (index, DepositField { offset, length, .. }) in FIELDS.into_iter().enumerate() {
            put(&mut data, index * WORD, offset);
            put(&mut data, offset, length);
            data[offset + WORD..][..length].fill(index as u8 + 1);
        }
        data
    }

    fn put(data: &mut [u8], at: usize, value: usize) {
        data[at..at + WORD].copy_from_slice(&U256::from(value).to_be_bytes::<WORD>());
    }

    fn read(data: &[u8]) -> Result<Vec<u8>, DepositLayoutError> {
        let mut request = Vec::new();
        read_deposit(data, &mut request).map(|()| request)
    }

    #[test]
    fn the_event_is_that_of_the_deposit_contract() {
        assert_eq!(keccak256("DepositEvent(bytes,bytes,bytes,bytes,bytes)"), DEPOSIT_EVENT);
        assert_eq!(FIELDS.iter().map(|field| field.length).sum::<usize>(), 192);
    }

    #[test]
    fn an_event_of_the_one_form_is_a_request() {
        let runs = FIELDS.into_iter().zip(1..).flat_map(|(field, byte)| vec![byte; field.length]);
        assert_eq!(read(&event()), Ok(runs.collect()));
        // Padding is not part of a field and is not checked.
        let mut padded = event();
        padded[FIELDS[2].offset + WORD + FIELDS[2].length] = 0xff;
        assert_eq!(read(&padded), read(&event()));
    }

    /// ABI decoders read all of these.
    #[test]
    fn every_other_offset_or_length_is_refused() {
        for length in [0, DATA_LENGTH - WORD, DATA_LENGTH - 1, DATA_LENGTH + 1, DATA_LENGTH + WORD]
        {
            let mut data = event();
            data.resize(length, 0);
            assert_eq!(read(&data), Err(DepositLayoutError::DataLength { length }));
        }
        for (index, DepositField { name, offset, length }) in FIELDS.into_iter().enumerate() {
            for wrong in [0, offset - 1, offset + WORD, usize::MAX] {
                let mut data = event();
                put(&mut data, index * WORD, wrong);
                let found = U256::from(wrong);
                let error = DepositLayoutError::Offset { field: name, found, expected: offset };
                assert_eq!(read(&data), Err(error));
            }
            for wrong in [0, length - 1, length + 1, usize::MAX] {
                let mut data = event();
                put(&mut data, offset, wrong);
                let found = U256::from(wrong);
                let error =
                    DepositLayoutError::FieldLength { field: name, found, expected: length };
                assert_eq!(read(&data), Err(error));
            }
            // A value beyond 64 bits whose low part is right.
            let mut data = event();
            data[offset] = 1;
            assert!(matches!(read(&data), Err(DepositLayoutError::FieldLength { .. })));
        }
    }
}
