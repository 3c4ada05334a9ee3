//! `cargo bench -p retrie-bench`: the work on a block before its execution, on a generated block of
//! 500 transactions: decoding, checks of header and body, recovery of senders on all cores.

use alloy_rlp::{Decodable, Encodable};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use retrie_bench::chain::{BlockFill, ChainMaker, ChainRecipe};
use retrie_chainspec::primitives::{Block, SealedBlock};
use retrie_storage_mpt::Mpt;
use std::{hint::black_box, sync::Arc};

const TRANSACTIONS: u64 = 500;

fn blocks(criterion: &mut Criterion) {
    let recipe =
        ChainRecipe { fill: BlockFill::Transactions(TRANSACTIONS), ..ChainRecipe::default() };
    let mut maker = ChainMaker::new(recipe, Arc::new(Mpt::default())).expect("a good recipe");
    let spec = maker.spec().clone();
    // The first blocks deploy the contracts.
    let made = std::iter::from_fn(|| maker.next_block().ok())
        .find(|block| block.body().transactions.len() as u64 == TRANSACTIONS)
        .expect("blocks become full");
    let block: Block = made.into_block();
    let sealed = SealedBlock::seal_slow(block.clone());
    let mut encoded = Vec::new();
    block.encode(&mut encoded);

    let mut group = criterion.benchmark_group("block");
    group.sample_size(20).throughput(Throughput::Elements(TRANSACTIONS));
    group.bench_function("decode", |bencher| {
        bencher.iter(|| black_box(Block::decode(&mut &encoded[..]).is_ok()));
    });
    group.bench_function("check", |bencher| {
        bencher.iter(|| {
            let header = retrie_consensus::validate_header(&spec, sealed.sealed_header());
            black_box(header.is_ok() && retrie_consensus::validate_body(&spec, &sealed).is_ok())
        });
    });
    group.bench_function("senders", |bencher| {
        bencher.iter(|| retrie_pipeline::recover_senders(&spec, block.clone()).map(drop));
    });
    group.finish();
}

criterion_group!(benches, blocks);
criterion_main!(benches);
