//! Shared by the tests: the mainnet data, a synthetic chain, writers of era1 and ere, and damage.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::path::PathBuf;

use alloy_consensus::{
    Eip658Value, Receipt, ReceiptEnvelope, ReceiptWithBloom, SignableTransaction, TxEip1559,
    TxEip4844, TxLegacy,
    proofs::{calculate_receipt_root, calculate_transaction_root, calculate_withdrawals_root},
};
use alloy_eips::eip4895::{Withdrawal, Withdrawals};
use alloy_primitives::{Address, B256, Bytes, Log, Signature, TxKind, U256};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::{Block, BlockBody, Header, Transaction};
use retrie_sources::era1::{HeaderRecord, accumulator_root};

/// The mainnet data; `None`, after a message, if it is missing and not required.
pub fn mainnet_data() -> Option<PathBuf> {
    retrie_state_testkit::data::find("mainnet")
}

/// A linked chain with transactions of several types, ommers and (from block `shanghai` on)
/// withdrawals.
pub fn chain(first: u64, count: u64, shanghai: u64) -> Vec<Block> {
    merged_chain(first, count, shanghai, u64::MAX)
}

/// The same; from block `merge` on without difficulty.
pub fn merged_chain(first: u64, count: u64, shanghai: u64, merge: u64) -> Vec<Block> {
    let mut parent = B256::repeat_byte(7);
    (first..first + count)
        .map(|number| {
            let transactions = (0..number % 4).map(|i| transaction(number, i)).collect::<Vec<_>>();
            let ommers: Vec<Header> = (0..number % 3)
                .map(|i| Header { number: number - i - 1, gas_limit: i, ..Default::default() })
                .collect();
            let withdrawals = (number >= shanghai).then(|| {
                Withdrawals::new(vec![Withdrawal {
                    index: number,
                    amount: 5,
                    ..Default::default()
                }])
            });
            let body = BlockBody { transactions, ommers, withdrawals };
            let header = Header {
                parent_hash: parent,
                number,
                difficulty: U256::from(if number < merge { 131_072 + number } else { 0 }),
                gas_limit: 30_000_000,
                gas_used: 21_000 * (number % 4),
                timestamp: 1_438_269_988 + number,
                extra_data: Bytes::from(vec![number as u8; (number % 33) as usize]),
                transactions_root: calculate_transaction_root(&body.transactions),
                receipts_root: calculate_receipt_root(&receipts(number)),
                ommers_hash: body.calculate_ommers_root(),
                base_fee_per_gas: (number >= shanghai).then_some(7),
                withdrawals_root: body.withdrawals.as_ref().map(|w| calculate_withdrawals_root(w)),
                ..Default::default()
            };
            let block = Block::new(header, body);
            parent = block.header.hash_slow();
            block
        })
        .collect()
}

fn transaction(number: u64, i: u64) -> Transaction {
    let signature = Signature::test_signature();
    let to = Address::with_last_byte(i as u8);
    let input = Bytes::from(vec![0xab; (number % 300) as usize]);
    match i {
        0 => TxLegacy { nonce: number, to: TxKind::Create, input, ..Default::default() }
            .into_signed(signature)
            .into(),
        1 => TxEip1559 { chain_id: 1, nonce: number, to: to.into(), input, ..Default::default() }
            .into_signed(signature)
            .into(),
        _ => {
            let blob_versioned_hashes = vec![B256::repeat_byte(1)];
            TxEip4844 { chain_id: 1, to, input, blob_versioned_hashes, ..Default::default() }
                .into_signed(signature)
                .into()
        }
    }
}

/// One receipt per transaction of [`chain`]; the one of the legacy transaction as before Byzantium.
pub fn receipts(number: u64) -> Vec<ReceiptEnvelope> {
    (0..number % 4)
        .map(|i| {
            let data = Bytes::from(vec![1, 2, 3]);
            let log = Log::new_unchecked(Address::ZERO, vec![B256::with_last_byte(9)], data);
            let status = match i {
                0 => Eip658Value::PostState(B256::repeat_byte(number as u8)),
                _ => Eip658Value::Eip658(number.is_multiple_of(2)),
            };
            let receipt =
                Receipt { status, cumulative_gas_used: 21_000 * (i + 1), logs: vec![log] };
            let receipt = ReceiptWithBloom::from(receipt);
            match i {
                0 => ReceiptEnvelope::Legacy(receipt),
                1 => ReceiptEnvelope::Eip1559(receipt),
                _ => ReceiptEnvelope::Eip4844(receipt),
            }
        })
        .collect()
}

/// Writes era1 files, valid or with one fault.
#[derive(Debug, Default, Clone)]
pub struct Era1File {
    pub bytes: Vec<u8>,
    pub offsets: Vec<u64>,
    pub records: Vec<HeaderRecord>,
    pub start: Option<u64>,
    pub total_difficulty: U256,
}

impl Era1File {
    pub fn new(parent_difficulty: U256) -> Self {
        let mut this = Self { total_difficulty: parent_difficulty, ..Default::default() };
        this.entry(0x3265, &[]);
        this
    }

    /// All blocks, without a fault.
    pub fn of(blocks: &[Block], parent_difficulty: U256) -> Vec<u8> {
        let mut this = Self::new(parent_difficulty);
        for block in blocks {
            this.block(block, &receipts(block.header.number));
        }
        this.finish()
    }

    pub fn entry(&mut self, kind: u16, data: &[u8]) {
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((data.len() as u32).to_le_bytes());
        self.bytes.extend([0; 2]);
        self.bytes.extend(data);
    }

    pub fn block(&mut self, block: &Block, receipts: &[ReceiptEnvelope]) {
        self.start.get_or_insert(block.header.number);
        self.offsets.push(self.bytes.len() as u64);
        self.entry(0x03, &snappy(&alloy_rlp::encode(&block.header)));
        self.entry(0x04, &snappy(&alloy_rlp::encode(&block.body)));
        let mut encoded = Vec::new();
        alloy_rlp::encode_list(receipts, &mut encoded);
        self.entry(0x05, &snappy(&encoded));
        self.total_difficulty += block.header.difficulty;
        self.entry(0x06, &self.total_difficulty.to_le_bytes::<32>());
        self.records.push(HeaderRecord {
            block_hash: block.header.hash_slow(),
            total_difficulty: self.total_difficulty,
        });
    }

    pub fn finish(mut self) -> Vec<u8> {
        let root = accumulator_root(&self.records).unwrap();
        self.entry(0x07, root.as_slice());
        self.index();
        self.bytes
    }

    pub fn index(&mut self) {
        let at = self.bytes.len() as u64;
        let mut data = self.start.unwrap_or_default().to_le_bytes().to_vec();
        for offset in &self.offsets {
            data.extend(offset.wrapping_sub(at).to_le_bytes());
        }
        data.extend((self.offsets.len() as u64).to_le_bytes());
        self.entry(0x3266, &data);
    }
}

/// Writes ere files, valid or with one fault.
#[derive(Debug, Clone)]
pub struct EreDraft {
    pub start: u64,
    /// Types and data of the entries, in the order of the file.
    pub sections: Vec<(u16, Vec<Vec<u8>>)>,
    /// What comes between them and the index.
    pub tail: Vec<(u16, Vec<u8>)>,
    /// Added to the offset of each of these words of the index.
    pub shifts: Vec<(usize, u64)>,
}

impl EreDraft {
    pub const HEADERS: u16 = 0x03;
    pub const BODIES: u16 = 0x04;
    pub const RECEIPTS: u16 = 0x0a;
    pub const PROOFS: u16 = 0x0b;
    pub const DIFFICULTIES: u16 = 0x06;
    pub const ACCUMULATOR: u16 = 0x07;

    /// All blocks, without a fault. Before the first one lies a difficulty of 1000, unless it is
    /// genesis.
    pub fn of(blocks: &[Block]) -> Self {
        let packed = |item: Vec<u8>| snappy(&item);
        let mut total = U256::from(if blocks[0].header.number == 0 { 0 } else { 1000 });
        let mut records = Vec::new();
        let mut difficulties = Vec::new();
        for Block { header, .. } in blocks {
            total += header.difficulty;
            difficulties.push(total.to_le_bytes::<32>().to_vec());
            if !header.difficulty.is_zero() {
                records
                    .push(HeaderRecord { block_hash: header.hash_slow(), total_difficulty: total });
            }
        }
        let slim = |block: &Block| {
            let list: Vec<u8> =
                receipts(block.header.number).iter().flat_map(slim_receipt).collect();
            packed(rlp_list(&list))
        };
        let mut sections: Vec<(u16, Vec<Vec<u8>>)> = vec![
            (Self::HEADERS, blocks.iter().map(|b| packed(alloy_rlp::encode(&b.header))).collect()),
            (Self::BODIES, blocks.iter().map(|b| packed(alloy_rlp::encode(&b.body))).collect()),
            (Self::RECEIPTS, blocks.iter().map(slim).collect()),
        ];
        let mut tail = Vec::new();
        if records.len() == blocks.len() {
            let entry = |proof: Vec<u8>| {
                let mut fields = vec![0x80];
                proof.as_slice().encode(&mut fields);
                packed(rlp_list(&fields))
            };
            sections.push((Self::PROOFS, proofs(&records).into_iter().map(entry).collect()));
        }
        if !records.is_empty() {
            sections.push((Self::DIFFICULTIES, difficulties));
            tail.push((Self::ACCUMULATOR, accumulator_root(&records).unwrap().to_vec()));
        }
        Self { start: blocks[0].header.number, sections, tail, shifts: Vec::new() }
    }

    /// Without the entries of this type.
    pub fn without(mut self, kind: u16) -> Self {
        self.sections.retain(|(other, _)| *other != kind);
        self.tail.retain(|(other, _)| *other != kind);
        self
    }

    /// The entries of this type.
    pub fn section(&mut self, kind: u16) -> &mut Vec<Vec<u8>> {
        &mut self.sections.iter_mut().find(|(other, _)| *other == kind).unwrap().1
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = Era1File::new(U256::ZERO);
        let mut offsets = Vec::new();
        for (kind, entries) in &self.sections {
            let mut list = Vec::new();
            for data in entries {
                list.push(file.bytes.len() as u64);
                file.entry(*kind, data);
            }
            offsets.push((*kind, list));
        }
        for (kind, data) in &self.tail {
            file.entry(*kind, data);
        }
        let order = [Self::HEADERS, Self::BODIES, Self::RECEIPTS, Self::DIFFICULTIES, Self::PROOFS];
        offsets.sort_by_key(|(kind, _)| order.iter().position(|other| other == kind));
        let (start, count) = (file.bytes.len() as u64, self.sections[0].1.len());
        let mut words = vec![self.start];
        for position in 0..count {
            for (_, list) in &offsets {
                words.push(list.get(position).copied().unwrap_or_default().wrapping_sub(start));
            }
        }
        words.extend([offsets.len() as u64, count as u64]);
        for (at, shift) in &self.shifts {
            words[*at] = words[*at].wrapping_add(*shift);
        }
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.entry(0x3267, &data);
        file.bytes
    }
}

/// RLP of a list with this payload.
pub fn rlp_list(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend(payload);
    out
}

fn slim_receipt(receipt: &ReceiptEnvelope) -> Vec<u8> {
    let inner = receipt.as_receipt().unwrap();
    let mut fields = Vec::new();
    (receipt.tx_type() as u8).encode(&mut fields);
    inner.status.encode(&mut fields);
    inner.cumulative_gas_used.encode(&mut fields);
    inner.logs.encode(&mut fields);
    rlp_list(&fields)
}

/// The definition, without shortcuts: the hashes beside the way of each record up a tree of 8192
/// leaves, and the length of the list.
fn proofs(records: &[HeaderRecord]) -> Vec<Vec<u8>> {
    use sha2::{Digest, Sha256};
    let pair = |left: B256, right: B256| {
        B256::from_slice(&Sha256::digest([left.as_slice(), right.as_slice()].concat()))
    };
    let difficulty = |one: &HeaderRecord| B256::from(one.total_difficulty.to_le_bytes::<32>());
    let mut level: Vec<B256> =
        records.iter().map(|one| pair(one.block_hash, difficulty(one))).collect();
    level.resize(8192, B256::ZERO);
    let mut levels = Vec::new();
    while level.len() > 1 {
        let above = level.chunks(2).map(|two| pair(two[0], two[1])).collect();
        levels.push(std::mem::replace(&mut level, above));
    }
    let length = U256::from(records.len()).to_le_bytes::<32>();
    let proof = |(position, record): (usize, &HeaderRecord)| {
        let mut proof = difficulty(record).to_vec();
        for (height, level) in levels.iter().enumerate() {
            proof.extend(level[(position >> height) ^ 1]);
        }
        proof.extend(length);
        proof
    };
    records.iter().enumerate().map(proof).collect()
}

pub fn snappy(data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = snap::write::FrameEncoder::new(Vec::new());
    encoder.write_all(data).unwrap();
    let mut out = encoder.into_inner().unwrap();
    if data.is_empty() {
        out = b"\xff\x06\x00\x00sNaPpY".to_vec();
    }
    out
}

pub fn gzip(data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

pub fn gunzip(data: &[u8]) -> Vec<u8> {
    use std::io::Read;
    let mut out = Vec::new();
    flate2::read::MultiGzDecoder::new(data).read_to_end(&mut out).unwrap();
    out
}

pub fn encode_all(blocks: &[Block]) -> Vec<u8> {
    let mut out = Vec::new();
    for block in blocks {
        block.encode(&mut out);
    }
    out
}

/// A small deterministic generator (xorshift64), so that a failing mutation can be repeated.
#[derive(Debug)]
pub struct Xorshift64(pub u64);

impl Xorshift64 {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    /// A damaged copy: flipped, cut, missing, doubled, foreign or appended bytes.
    pub fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        let at = self.below(out.len());
        match self.below(8) {
            0 => out.truncate(at),
            1 => drop(out.remove(at)),
            2 => out.insert(at, self.below(256) as u8),
            3 => out[at] = [0x00, 0x7f, 0x80, 0xb8, 0xbf, 0xc0, 0xf8, 0xff][self.below(8)],
            4 => {
                let end = (at + 1 + self.below(64)).min(out.len());
                let piece = out[at..end].to_vec();
                out.splice(at..at, piece);
            }
            5 => out.push(self.below(256) as u8),
            _ => out[at] ^= 1 << self.below(8),
        }
        out
    }
}
