//! Shared by the tests of this crate.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part

use alloy_consensus::{SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::{eip4895::Withdrawal, eip7702::Authorization};
use alloy_primitives::{Address, B256, Bytes, Log, LogData, Signature, TxKind, U256, keccak256};
use alloy_rlp::Decodable;
use retrie_chainspec::primitives::{Block, Header, Receipt, Transaction, TxType, Withdrawals};
use retrie_db::NewBlock;
use std::{io::Read, path::PathBuf};

/// The folder with real chain data, or `None` (visibly) if there is none.
pub fn data() -> Option<PathBuf> {
    retrie_state_testkit::data::find("")
}

pub fn gunzip(path: PathBuf) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The first `limit` blocks of a file of concatenated block RLP.
pub fn blocks(rlp: &[u8], limit: usize) -> Vec<Block> {
    let mut rest = rlp;
    let mut blocks = Vec::new();
    while !rest.is_empty() && blocks.len() < limit {
        blocks.push(Block::decode(&mut rest).unwrap());
    }
    blocks
}

/// A made-up sender for each transaction: the database does not check senders.
pub fn senders(block: &Block) -> Vec<Address> {
    block.body.transactions.iter().map(|tx| Address::from_slice(&tx.tx_hash()[12..])).collect()
}

/// A made-up receipt for each transaction, with logs of all shapes.
pub fn receipts(block: &Block) -> Vec<Receipt> {
    let receipt = |(i, tx): (usize, &Transaction)| {
        let log = |n: usize| Log {
            address: Address::repeat_byte(n as u8),
            data: LogData::new_unchecked(
                (0..n % 5).map(|t| B256::repeat_byte(t as u8)).collect(),
                Bytes::from(vec![n as u8; n * 37]),
            ),
        };
        Receipt {
            tx_type: tx.tx_type(),
            success: i % 3 != 0,
            cumulative_gas_used: 21_000 * (i as u64 + 1),
            logs: (0..i % 7).map(log).collect(),
        }
    };
    block.body.transactions.iter().enumerate().map(receipt).collect()
}

/// A block with all its parts, owned.
#[derive(Clone, Debug)]
pub struct FullBlock {
    pub hash: B256,
    pub block: Block,
    pub senders: Vec<Address>,
    pub receipts: Vec<Receipt>,
    pub access_list: Option<Vec<u8>>,
    pub total_difficulty: U256,
}

impl FullBlock {
    pub fn of(block: Block, total_difficulty: U256) -> Self {
        let (senders, receipts) = (senders(&block), receipts(&block));
        let (hash, access_list) = (block.header.hash_slow(), None);
        Self { hash, block, senders, receipts, access_list, total_difficulty }
    }

    /// The same block with an access list of this length in its header and beside it.
    pub fn with_access_list(mut self, length: usize) -> Self {
        let mut list = Vec::new();
        alloy_rlp::Header { list: true, payload_length: length }.encode(&mut list);
        list.resize(list.len() + length, self.block.header.number as u8 & 0x7f);
        let header = &mut self.block.header;
        // A header ends with its last field, and has all before it.
        header.base_fee_per_gas = Some(7);
        header.withdrawals_root = Some(B256::repeat_byte(1));
        (header.blob_gas_used, header.excess_blob_gas) = (Some(0), Some(0));
        header.parent_beacon_block_root = Some(B256::repeat_byte(2));
        header.requests_hash = Some(B256::repeat_byte(3));
        header.block_access_list_hash = Some(keccak256(&list));
        self.hash = self.block.header.hash_slow();
        self.access_list = Some(list);
        self
    }

    pub fn new_block(&self) -> NewBlock<'_> {
        let access_list = self.access_list.as_deref();
        NewBlock { receipts: Some(&self.receipts), access_list, ..self.unexecuted() }
    }

    pub fn unexecuted(&self) -> NewBlock<'_> {
        NewBlock {
            hash: self.hash,
            header: &self.block.header,
            body: &self.block.body,
            senders: &self.senders,
            receipts: None,
            access_list: None,
            total_difficulty: self.total_difficulty,
        }
    }
}

/// A transaction of each type, different for each `seed`.
pub fn transactions(seed: u64) -> Vec<Transaction> {
    let signature = Signature::new(U256::from(seed + 1), U256::from(7), seed.is_multiple_of(2));
    let to = Address::repeat_byte(0xbb);
    let input = Bytes::from(vec![seed as u8; 100]);
    let access_list = alloy_eips::eip2930::AccessList(vec![alloy_eips::eip2930::AccessListItem {
        address: to,
        storage_keys: vec![keccak256(seed.to_be_bytes())],
    }]);
    let authorization =
        Authorization { chain_id: U256::from(1), address: to, nonce: seed }.into_signed(signature);
    vec![
        TxLegacy { nonce: seed, to: TxKind::Create, input: input.clone(), ..Default::default() }
            .into_signed(signature)
            .into(),
        TxEip2930 {
            chain_id: 1,
            nonce: seed,
            access_list: access_list.clone(),
            ..Default::default()
        }
        .into_signed(signature)
        .into(),
        TxEip1559 { chain_id: 1, nonce: seed, to: to.into(), input, ..Default::default() }
            .into_signed(signature)
            .into(),
        TxEip4844 {
            chain_id: 1,
            nonce: seed,
            to,
            blob_versioned_hashes: vec![B256::repeat_byte(1)],
            ..Default::default()
        }
        .into_signed(signature)
        .into(),
        TxEip7702 {
            chain_id: 1,
            nonce: seed,
            to,
            access_list,
            authorization_list: vec![authorization],
            ..Default::default()
        }
        .into_signed(signature)
        .into(),
    ]
}

/// A made-up block on `parent`; siblings differ by `salt`.
pub fn child(parent: Option<&FullBlock>, salt: u64, transactions: Vec<Transaction>) -> FullBlock {
    let header = Header {
        parent_hash: parent.map_or(B256::ZERO, |p| p.hash),
        number: parent.map_or(0, |p| p.block.header.number + 1),
        timestamp: salt,
        difficulty: U256::from(10),
        extra_data: Bytes::from_static(b"test"),
        ..Header::default()
    };
    let mut block = Block { header, ..Block::default() };
    block.body.transactions = transactions;
    if salt.is_multiple_of(2) {
        block.body.withdrawals = Some(Withdrawals::new(vec![Withdrawal {
            index: salt,
            validator_index: 3,
            address: Address::repeat_byte(4),
            amount: 5,
        }]));
    }
    let parent_difficulty = parent.map_or(U256::ZERO, |p| p.total_difficulty);
    FullBlock::of(block, parent_difficulty + U256::from(10))
}

pub const ALL_TYPES: [TxType; 5] =
    [TxType::Legacy, TxType::Eip2930, TxType::Eip1559, TxType::Eip4844, TxType::Eip7702];
