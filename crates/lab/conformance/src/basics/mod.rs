//! `ethereum-tests-basics`: tries, RLP, difficulty, genesis blocks, single transactions. The folder
//! of a file tells its kind.

mod difficulty;
mod genesis;
mod rlp;
mod transactions;
mod tries;
mod vectors;

use crate::{format::TestVerdict, worker::TestWorker};
use serde_json::value::RawValue;

/// Runs the test `json` of the file `path`.
pub(crate) fn run(path: &str, json: &RawValue, worker: &TestWorker) -> TestVerdict {
    let (folder, _) = path.split_once('/').unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    match folder {
        "TrieTests" if file.contains("nextprev") => tries::neighbours(json),
        "TrieTests" => tries::root(file.to_lowercase().contains("secure"), json),
        "RLPTests" => rlp::run(json),
        "DifficultyTests" => difficulty::by_fork(json),
        "GenesisTests" => genesis::run(json),
        "TransactionTests" => transactions::run(json, worker),
        "BasicTests" => match file {
            "hexencodetest.json" => vectors::nibbles(json),
            "keyaddrtest.json" => vectors::key(json),
            "txtest.json" => vectors::transaction(json),
            _ => difficulty::of_chain(file, json),
        },
        _ => Err(format!("no tests are known in folder {folder}")),
    }
}
