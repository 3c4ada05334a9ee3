//! Every real file of the data folder.

use crate::common;

use std::collections::BTreeMap;

use alloy_primitives::{B256, U256, b256};
use common::mainnet_data;
use retrie_sources::{
    BlockFileKind, BlockSource, BundleKind, Era1Reader, RlpReader, SourceErrorKind, SourceKind,
    detect, list_bundles, verify_era1,
};

#[test]
fn mainnet_chain_folder_streams_in_order_and_links() {
    let Some(data) = mainnet_data() else { return };
    let source = BlockSource::open(data.join("chain")).unwrap();
    let files: Vec<_> = source.files().iter().map(|f| (f.first_block, f.kind)).collect();
    let (era, rlp) = (BlockFileKind::Era1, BlockFileKind::Rlp);
    assert_eq!(files, [(0, era), (8192, era), (16384, rlp), (24576, era)]);

    // File -> blocks, transactions, ommers.
    let mut counts: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    let mut hashes: BTreeMap<u64, B256> = BTreeMap::new();
    let mut expected = 0;
    for item in source {
        let item = item.unwrap();
        let header = &item.block.header;
        if expected == 21_000 {
            expected = 24_576;
        }
        assert_eq!(header.number, expected, "no block is left out");
        if let Some(parent) = expected.checked_sub(1).and_then(|n| hashes.get(&n)) {
            assert_eq!(header.parent_hash, *parent, "block {expected} links to its parent");
        }
        assert_eq!(item.encoded_len, alloy_rlp::encode(&item.block).len() as u64);
        hashes.insert(expected, header.hash_slow());
        expected += 1;
        let name = item.origin.file.file_name().unwrap().to_string_lossy().into_owned();
        let count = counts.entry(name).or_default();
        count[0] += 1;
        count[1] += item.block.body.transactions.len();
        count[2] += item.block.body.ommers.len();
    }
    assert_eq!(expected, 32_768);
    assert_eq!(
        counts.into_iter().collect::<Vec<_>>(),
        [
            ("mainnet-00000-5ec1ffb8.era1".to_owned(), [8192, 0, 1410]),
            ("mainnet-00001-a5364e9a.era1".to_owned(), [8192, 0, 562]),
            ("mainnet-00003-d8b8a40b.era1".to_owned(), [8192, 0, 696]),
            ("mainnet-16384-20999.rlp.gz".to_owned(), [4616, 0, 325]),
        ]
    );
    assert_eq!(
        hashes[&20_999],
        b256!("6e8f7e79e57d9664121a72b6481cc7c6cf0e47e98753a2a0740d4aec9733494a")
    );
}

#[test]
fn mainnet_era1_accumulators_match_the_published_file_names() {
    let Some(data) = mainnet_data() else { return };
    for (epoch, short) in [(0, "5ec1ffb8"), (1, "a5364e9a"), (3, "d8b8a40b")] {
        let path = data.join(format!("chain/mainnet-{epoch:05}-{short}.era1"));
        assert_eq!(detect(&path).unwrap(), SourceKind::Era1);
        let summary = verify_era1(&path).unwrap();
        assert_eq!(summary.first_block, epoch * 8192);
        assert_eq!(summary.block_count, 8192);
        // By convention a file is named after the first four bytes of its accumulator.
        assert_eq!(summary.accumulator.to_string()[2..10], *short);
    }
}

#[test]
fn mainnet_genesis_has_its_known_hash_and_total_difficulty() {
    let Some(data) = mainnet_data() else { return };
    let mut reader = Era1Reader::open(data.join("chain/mainnet-00000-5ec1ffb8.era1")).unwrap();
    let genesis = reader.next().unwrap().unwrap();
    assert_eq!(
        genesis.hash,
        b256!("d4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3")
    );
    assert_eq!(genesis.hash, genesis.block.header.hash_slow());
    assert_eq!(genesis.total_difficulty, U256::from(17_179_869_184_u64));
    assert_eq!(genesis.receipts.as_deref(), Some(&[][..]));
    assert_eq!(genesis.origin.offset, 8);
    assert_eq!(reader.accumulator(), None, "not checked before the end");
}

#[test]
fn mainnet_bundles_load_with_everything_the_readme_counts() {
    let Some(data) = mainnet_data() else { return };
    let mut known: BTreeMap<u64, B256> = BTreeMap::new();

    let folder = data.join("witness");
    assert_eq!(detect(&folder).unwrap(), SourceKind::BundleFolder);
    let files = list_bundles(&folder).unwrap();
    assert!(files.is_sorted_by_key(|f| f.number));
    let mut txs = 0;
    let (mut headers, mut pre, mut post) = (BTreeMap::new(), 0, 0);
    for file in &files {
        let bundle = file.load().unwrap();
        let BundleKind::Witness(witness) = &bundle.kind else {
            panic!("{} is not a witness", file.path.display())
        };
        assert!(bundle.ommers_known);
        txs += bundle.tx_count;
        pre += usize::from(bundle.pre().is_some());
        post += usize::from(witness.post.is_some());
        headers.insert(bundle.number, witness.headers.len());
        let ancestors = bundle.ancestor_hashes();
        let parent = bundle.block.header.parent_hash;
        assert_eq!(ancestors.last_key_value(), Some((&(bundle.number - 1), &parent)));
        for header in &witness.headers {
            assert_eq!(ancestors[&header.number], header.hash_slow());
        }
        assert_eq!(bundle.codes().len(), witness.codes.len());
        let root = |node: &[u8]| alloy_primitives::keccak256(node) == witness.pre_state_root;
        assert!(witness.state.iter().any(|node| root(node)), "{}", bundle.number);
        known.insert(bundle.number, bundle.hash);
    }
    assert_eq!((files.len(), txs, pre, post), (25, 1371, 24, 10));
    assert_eq!([1, 9_069_000, 21_077_746].map(|n| headers[&n]), [1, 4, 13]);

    let files = list_bundles(data.join("prestate")).unwrap();
    let (mut txs, mut shared, mut ancestors) = (0, 0, 0);
    for file in &files {
        let bundle = file.load().unwrap();
        let BundleKind::Prestate(prestate) = &bundle.kind else {
            panic!("{} is not a prestate bundle", file.path.display())
        };
        txs += bundle.tx_count;
        assert_eq!(bundle.ommers_known, bundle.number != 1_796_867);
        assert_eq!(prestate.senders.len() as u64, bundle.tx_count);
        let all = bundle.ancestor_hashes();
        assert!(prestate.block_hashes.iter().all(|(n, hash)| all[n] == *hash));
        assert_eq!(all[&(bundle.number - 1)], bundle.block.header.parent_hash);
        ancestors += prestate.block_hashes.len();
        for account in prestate.pre.values().flatten() {
            let empty = account.code_hash == alloy_primitives::KECCAK256_EMPTY;
            assert!(empty || prestate.codes.contains_key(&account.code_hash));
        }
        if let Some(hash) = known.get(&bundle.number) {
            assert_eq!(*hash, bundle.hash, "both collections hold the same block");
            shared += 1;
        }
    }
    assert_eq!((files.len(), txs, shared, ancestors), (43, 10_312, 6, 16));
}

#[test]
fn a_json_file_that_is_not_a_bundle_is_refused_by_name() {
    let Some(data) = mainnet_data() else { return };
    for path in ["diffs/17686110.json.gz", "genesis/mainnet.json.gz", "contracts/runtime.json.gz"] {
        let path = data.join(path);
        let error = list_bundles(&path).unwrap_err();
        assert!(matches!(*error.kind, SourceErrorKind::NotABundle), "{error}");
        assert_eq!(error.file, path);
    }
    let named_like_one = list_bundles(data.join("diffs")).unwrap();
    let error = named_like_one[0].load().unwrap_err();
    assert!(matches!(*error.kind, SourceErrorKind::NotABundle), "{error}");
}

#[test]
fn real_export_written_again_gives_the_same_bytes() {
    let Some(data) = mainnet_data() else { return };
    let path = data.join("chain/mainnet-16384-20999.rlp.gz");
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.rlp.gz");
    let mut writer = retrie_sources::BlockWriter::create(&copy).unwrap();
    for item in RlpReader::open(&path).unwrap() {
        writer.write(&item.unwrap().block).unwrap();
    }
    assert_eq!(writer.finish().unwrap().blocks, 4616);
    let [original, copy] = [&path, &copy].map(|p| common::gunzip(&std::fs::read(p).unwrap()));
    assert!(original == copy, "decoding and encoding again is the identity on real blocks");
}
