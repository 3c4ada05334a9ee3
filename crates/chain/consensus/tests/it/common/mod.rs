//! Test data: real mainnet blocks and public test suites.

#![allow(dead_code, unreachable_pub)]

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use alloy_primitives::hex;
use alloy_rlp::Decodable;
use flate2::read::GzDecoder;
use retrie_chainspec::primitives::{Block, Header, SealedBlock, SealedHeader};
use serde_json::Value;

/// The data folder, or `None` after a visible note that the test is skipped.
pub fn data() -> Option<PathBuf> {
    retrie_state_testkit::data::find("")
}

/// Content of a gzip file.
pub fn gunzip(path: &Path) -> Vec<u8> {
    let mut data = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut data).unwrap();
    data
}

/// The files of `NAME.tar.zst` of the conformance data, by path inside the archive.
pub fn archive(data: &Path, name: &str) -> BTreeMap<String, Vec<u8>> {
    let file = File::open(data.join("conformance").join(format!("{name}.tar.zst"))).unwrap();
    let mut archive = tar::Archive::new(zstd::stream::read::Decoder::new(file).unwrap());
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.header().entry_type().is_file() {
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(path.trim_start_matches("./").to_owned(), content);
        }
    }
    files
}

/// Blocks of concatenated RLP.
pub fn decode_chain(mut rlp: &[u8]) -> Vec<SealedBlock> {
    let mut blocks = Vec::new();
    while !rlp.is_empty() {
        blocks.push(SealedBlock::seal_slow(Block::decode(&mut rlp).unwrap()));
    }
    blocks
}

/// The consecutive blocks 16,384 to 20,999 of mainnet: no transactions, many ommers.
pub fn early_chain(data: &Path) -> Vec<SealedBlock> {
    decode_chain(&gunzip(&data.join("mainnet/chain/mainnet-16384-20999.rlp.gz")))
}

/// The gzipped JSON files of a folder of the mainnet data, in order of block number.
pub fn bundles(data: &Path, folder: &str) -> Vec<Value> {
    let mut bundles: Vec<Value> = std::fs::read_dir(data.join("mainnet").join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".json.gz"))
        .map(|path| serde_json::from_slice(&gunzip(&path)).unwrap())
        .collect();
    bundles.sort_by_key(|bundle| bundle["number"].as_u64());
    bundles
}

pub fn hex_of(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

pub fn header_of(value: &Value) -> SealedHeader {
    SealedHeader::seal_slow(Header::decode(&mut hex_of(value).as_slice()).unwrap())
}

pub fn block_of(value: &Value) -> SealedBlock {
    SealedBlock::seal_slow(Block::decode(&mut hex_of(value).as_slice()).unwrap())
}

/// Every block of the witness bundles with its parent header.
pub fn witness_pairs(data: &Path) -> Vec<(SealedBlock, SealedHeader)> {
    bundles(data, "witness")
        .iter()
        .map(|bundle| {
            let block = block_of(&bundle["block"]);
            let parent = header_of(bundle["headers"].as_array().unwrap().last().unwrap());
            (block, parent)
        })
        .collect()
}
