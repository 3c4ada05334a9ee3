//! Rows of the index, byte by byte.
//!
//! | table | key | value |
//! |---|---|---|
//! | `AddressBlocks` | number (8) | hash (32), 1 if internal calls are known, else 0 (1); accounts; nonces; contracts |
//! | `AddressHistory` | account (20), number (8) | the transactions of the block that it takes part in |
//! | `SenderNonces` | sender (20), nonce (8) | number (8), index (4) |
//! | `ContractCreators` | contract (20), number (8) | index (4), creator (20) |
//!
//! *Accounts* is a varint, their number, and the accounts in ascending order (20 each). *Nonces* is a
//! varint, their number, and for each transaction in order the position of its sender among the
//! accounts and its nonce, two varints. *Contracts* is a varint, their number, and the position of
//! each, a varint, in ascending order. The transactions of `AddressHistory` are runs of consecutive
//! indexes: how many are skipped and how many follow, two varints. Positions and runs begin with 0.

use super::{BlockParticipants, ContractCreation};
use alloy_primitives::{Address, B256};
use retrie_state::wire::{WireError, WireReader, put_varint};
use std::collections::BTreeMap;

/// The row of a block: with the number, the keys of all its rows in the other tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockKeys {
    pub(super) hash: B256,
    pub(super) is_traced: bool,
    /// All participants, in ascending order.
    pub(super) accounts: Vec<Address>,
    /// Sender and nonce of each transaction.
    pub(super) nonces: Vec<(Address, u64)>,
    /// The created contracts, in ascending order, each once.
    pub(super) contracts: Vec<Address>,
}

/// The rows of a block in the other tables.
pub(super) struct BlockRows {
    /// The transactions that each account takes part in, in ascending order.
    pub(super) history: BTreeMap<Address, Vec<u32>>,
    /// The last creation of each contract: its transaction, and the creator.
    pub(super) creations: BTreeMap<Address, (u32, Address)>,
}

impl BlockRows {
    pub(super) fn of(block: &BlockParticipants) -> Self {
        let mut history: BTreeMap<Address, Vec<u32>> = BTreeMap::new();
        let mut creations = BTreeMap::new();
        for (index, transaction) in (0..).zip(&block.transactions) {
            let creators = transaction.created.iter().flat_map(|one| [one.contract, one.creator]);
            let all = transaction.accounts.iter().copied().chain([transaction.sender]);
            for account in all.chain(creators) {
                let indexes = history.entry(account).or_default();
                if indexes.last() != Some(&index) {
                    indexes.push(index);
                }
            }
            for ContractCreation { contract, creator } in &transaction.created {
                creations.insert(*contract, (index, *creator));
            }
        }
        Self { history, creations }
    }

    /// The row that lists the keys of these rows.
    pub(super) fn keys(&self, block: &BlockParticipants) -> BlockKeys {
        BlockKeys {
            hash: block.hash,
            is_traced: block.is_traced,
            accounts: self.history.keys().copied().collect(),
            nonces: block.transactions.iter().map(|one| (one.sender, one.nonce)).collect(),
            contracts: self.creations.keys().copied().collect(),
        }
    }
}

/// Bytes of an address.
const ACCOUNT: usize = 20;
const UNKNOWN_ACCOUNT: &str = "it names an account that it does not list";

impl BlockKeys {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(64 + 21 * self.accounts.len() + 4 * self.nonces.len());
        row.extend_from_slice(self.hash.as_slice());
        row.push(self.is_traced.into());
        put_varint(&mut row, self.accounts.len() as u64);
        self.accounts.iter().for_each(|account| row.extend_from_slice(account.as_slice()));
        // The list has every sender and every contract.
        let position = |account| self.accounts.binary_search(account).unwrap_or_default() as u64;
        put_varint(&mut row, self.nonces.len() as u64);
        for (sender, nonce) in &self.nonces {
            put_varint(&mut row, position(sender));
            put_varint(&mut row, *nonce);
        }
        put_varint(&mut row, self.contracts.len() as u64);
        self.contracts.iter().for_each(|contract| put_varint(&mut row, position(contract)));
        row
    }

    /// Decodes a row, or says what is wrong with it.
    pub(super) fn decode(row: &[u8]) -> Result<Self, &'static str> {
        let mut reader = WireReader::new(row);
        let wire = WireError::what;
        let hash = reader.hash().map_err(wire)?;
        let is_traced = match reader.u8().map_err(wire)? {
            0 => false,
            1 => true,
            _ => return Err("the byte after the hash is neither 0 nor 1"),
        };
        let count = reader.count(ACCOUNT).map_err(wire)?;
        let mut accounts: Vec<Address> = Vec::with_capacity(count);
        for _ in 0..count {
            accounts.push(Address::from(reader.array::<ACCOUNT>().map_err(wire)?));
        }
        if !accounts.is_sorted_by(|one, next| one < next) {
            return Err("its accounts are not in ascending order");
        }
        let account = |position: u64| {
            let found = usize::try_from(position).ok().and_then(|at| accounts.get(at));
            found.copied().ok_or(UNKNOWN_ACCOUNT)
        };
        let count = reader.count(2).map_err(wire)?;
        let mut nonces = Vec::with_capacity(count);
        for _ in 0..count {
            let sender = account(reader.varint().map_err(wire)?)?;
            nonces.push((sender, reader.varint().map_err(wire)?));
        }
        let count = reader.count(1).map_err(wire)?;
        let mut contracts = Vec::with_capacity(count);
        for _ in 0..count {
            contracts.push(account(reader.varint().map_err(wire)?)?);
        }
        if !contracts.is_sorted_by(|one, next| one < next) {
            return Err("its contracts are not in ascending order");
        }
        reader.finish().map_err(wire)?;
        Ok(Self { hash, is_traced, accounts, nonces, contracts })
    }
}

/// Key of a row of `AddressHistory` and `ContractCreators` (by block), and of `SenderNonces` (by
/// nonce).
pub(super) fn account_key(account: &Address, number: u64) -> [u8; 28] {
    let mut key = [0; 28];
    key[..20].copy_from_slice(account.as_slice());
    key[20..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The number in such a key.
pub(super) fn number_in_key(key: &[u8]) -> Option<u64> {
    let number = key.get(20..)?.try_into().ok()?;
    Some(u64::from_be_bytes(number))
}

/// No block has more transactions: each takes 21,000 gas.
const MOST_TRANSACTIONS: u64 = 1 << 20;

/// Encodes indexes, which must be in ascending order.
pub(super) fn encode_indexes(indexes: &[u32]) -> Vec<u8> {
    let mut row = Vec::new();
    let mut rest = indexes;
    let mut next = 0;
    while let Some(first) = rest.first() {
        let run = (*first..).zip(rest).take_while(|(expected, index)| expected == *index).count();
        put_varint(&mut row, u64::from(first - next));
        put_varint(&mut row, run as u64);
        next = first + run as u32;
        rest = &rest[run..];
    }
    row
}

/// Decodes indexes, or says what is wrong with them.
pub(super) fn decode_indexes(row: &[u8]) -> Result<Vec<u32>, &'static str> {
    let mut reader = WireReader::new(row);
    let (mut indexes, mut next) = (Vec::new(), 0_u64);
    while !reader.is_empty() {
        let skipped = reader.varint().map_err(WireError::what)?;
        let run = reader.varint().map_err(WireError::what)?;
        let first = next.checked_add(skipped).filter(|_| run > 0);
        let end =
            first.and_then(|first| first.checked_add(run)).filter(|end| *end <= MOST_TRANSACTIONS);
        let (Some(first), Some(end)) = (first, end) else {
            return Err("its runs are empty or too long");
        };
        indexes.extend((first..end).map(|index| index as u32));
        next = end;
    }
    if indexes.is_empty() { Err("it names no transaction") } else { Ok(indexes) }
}

/// Encodes the transaction and the creator of a contract.
pub(super) fn encode_creation(index: u32, creator: &Address) -> [u8; 24] {
    let mut row = [0; 24];
    row[..4].copy_from_slice(&index.to_be_bytes());
    row[4..].copy_from_slice(creator.as_slice());
    row
}

/// Decodes the transaction and the creator.
pub(super) fn decode_creation(row: &[u8]) -> Option<(u32, Address)> {
    let (index, creator) = row.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*index), Address::try_from(creator).ok()?))
}
