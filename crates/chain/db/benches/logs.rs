//! `cargo bench -p retrie-db`: searching 100,000 blocks for logs, with the index and by reading
//! every header, and building the index. Each block has three transfers, of one of 200 tokens,
//! between random accounts of 50,000.

use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_primitives::{Address, B256, Bloom, BloomInput, Bytes, Log, Signature, U256, logs_bloom};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use retrie_chainspec::primitives::{Block, Header, Receipt, TxType};
use retrie_db::{
    ChainRead, DatabaseEnv, LogBounds, LogQuery, NewBlock, OpenOptions, ReadTxn, SyncMode,
};
use std::{hint::black_box, sync::atomic::AtomicBool};

const BLOCKS: u64 = 100_000;
const TOKENS: u64 = 200;
const ACCOUNTS: u64 = 50_000;
/// An account that occurs in one of 20,000 blocks.
const RARE: u64 = u64::MAX;

fn word(number: u64) -> B256 {
    U256::from(number).into()
}

fn token(number: u64) -> Address {
    Address::from_word(word(1 + number))
}

/// A pseudo-random number.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn logs(number: u64) -> impl Iterator<Item = Log> {
    (0..3).map(move |at| {
        let seed = 8 * number + at;
        let is_rare = number % 20_000 == 7 && at == 0;
        let to = if is_rare { RARE } else { mixed(seed + 2) % ACCOUNTS };
        let topics = vec![word(0xddf2), word(mixed(seed + 1) % ACCOUNTS), word(to)];
        Log::new_unchecked(token(mixed(seed) % TOKENS), topics, Bytes::from(vec![7; 32]))
    })
}

fn made() -> (tempfile::TempDir, DatabaseEnv) {
    let dir = tempfile::tempdir().expect("a folder");
    let options = OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() };
    let db = DatabaseEnv::create(dir.path(), &options).expect("a database");
    let mut parent_hash = B256::ZERO;
    let numbers: Vec<u64> = (0..BLOCKS).collect();
    for batch in numbers.chunks(5_000) {
        let mut txn = db.begin_write().expect("a transaction");
        for number in batch.iter().copied() {
            let logs: Vec<Log> = logs(number).collect();
            let header =
                Header { number, parent_hash, logs_bloom: logs_bloom(&logs), ..Header::default() };
            let mut block = Block { header, ..Block::default() };
            let tx = TxLegacy { nonce: number, ..TxLegacy::default() };
            block.body.transactions.push(tx.into_signed(Signature::test_signature()).into());
            let (tx_type, cumulative_gas_used) = (TxType::Legacy, 100_000);
            let receipt = Receipt { tx_type, success: true, cumulative_gas_used, logs };
            parent_hash = block.header.hash_slow();
            txn.insert_block(&NewBlock {
                hash: parent_hash,
                header: &block.header,
                body: &block.body,
                senders: &[Address::ZERO],
                receipts: Some(&[receipt]),
                access_list: None,
                total_difficulty: U256::from(number),
            })
            .expect("the next block");
        }
        txn.commit().expect("a commit");
    }
    (dir, db)
}

fn search(read: &ReadTxn, query: &LogQuery) -> usize {
    let found = read.log_candidates(query, 0..=BLOCKS - 1, BLOCKS - 1).expect("an index");
    found.filter(|number| number.as_ref().is_ok_and(|number| *number < BLOCKS)).count()
}

fn searches(criterion: &mut Criterion) {
    let (_dir, db) = made();
    let stop = AtomicBool::new(false);
    let bounds = LogBounds { behind: 1, ..LogBounds::default() };
    let mut group = criterion.benchmark_group("logs");
    group.sample_size(10);
    let rare = word(RARE);
    let blooms =
        [token(3).as_slice(), rare.as_slice()].map(|one| Bloom::from(BloomInput::Raw(one)));
    let read = db.begin_read().expect("a snapshot");
    group.bench_function("receiver of a token, by headers", |bencher| {
        bencher.iter(|| {
            let headers = read.canonical_headers(0).map(|one| one.expect("whole rows").1);
            headers
                .filter(|header| blooms.iter().all(|bloom| header.logs_bloom.contains(bloom)))
                .count()
        });
    });
    drop(read);
    let began = std::time::Instant::now();
    while db.index_logs(&bounds, &stop).expect("an index") {}
    let seconds = began.elapsed().as_secs_f64();
    let stats = db.stats().expect("statistics");
    let bytes: u64 = stats
        .tables
        .iter()
        .filter(|table| table.name.starts_with("Log"))
        .map(|one| one.bytes)
        .sum();
    println!(
        "indexed {BLOCKS} blocks with {} logs in {seconds:.2} s: {:.1} bytes a log",
        3 * BLOCKS,
        bytes as f64 / (3 * BLOCKS) as f64
    );
    let read = db.begin_read().expect("a snapshot");
    let many: Vec<B256> = (0..1000).map(|number| word(1_000_000 + number)).collect();
    let (none, transfer): (&[B256], _) = (&[], [word(0xddf2)]);
    let queries = [
        ("rare receiver", LogQuery::new(&[], [none, none, &[rare], none])),
        ("receiver of a token", LogQuery::new(&[token(3)], [&transfer, none, &[rare], none])),
        ("nobody", LogQuery::new(&[token(9999)], [none; 4])),
        ("1,000 receivers", LogQuery::new(&[], [none, none, &many, none])),
        ("token", LogQuery::new(&[token(3)], [none; 4])),
        ("all transfers", LogQuery::new(&[], [&transfer, none, none, none])),
    ];
    group.throughput(Throughput::Elements(BLOCKS));
    for (name, query) in &queries {
        group.bench_function(format!("{name}, by the index"), |bencher| {
            bencher.iter(|| black_box(search(&read, query)));
        });
    }
    group.finish();
}

criterion_group!(benches, searches);
criterion_main!(benches);
