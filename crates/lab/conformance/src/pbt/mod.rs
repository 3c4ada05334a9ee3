//! Suites of the partitioned binary tree (EIP-8297) and of its migration (EIP-8347).
//!
//! ```text
//!  histories.jsonl.zst, codes.json.zst --> pbt-histories  block by block, then loaded at once
//!  real.jsonl.zst, ../mainnet          --> pbt-states     loaded at once, and as blocks
//!  migration.jsonl.zst, histories      --> pbt-migration  files written, compared, and checked
//!  negative.jsonl.zst                  --> pbt-faults     files refused
//!  public/*.json                       --> pbt-public     vectors of other clients
//! ```
//!
//! A folder may have any of these files, so that cases can be kept apart.

mod history;
mod migration;
mod model;
mod public;
mod states;

use crate::{
    archive::TestFile,
    format::{CodeMap, TestVerdict},
    pack::{self, PackSuite},
    worker::TestWorker,
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Runs the case `file` of a suite; `all` has the files that it needs.
pub(crate) fn run(
    suite: PackSuite,
    file: &TestFile,
    all: &[TestFile],
    worker: &TestWorker,
) -> TestVerdict {
    let json: &RawValue = serde_json::from_slice(&file.content)
        .map_err(|error| format!("the line is not JSON: {error}"))?;
    match suite {
        PackSuite::Histories => history::run(json, codes(all, worker)?),
        PackSuite::States => states::run(json, all),
        PackSuite::Migration => migration::run(json, all, codes(all, worker)?),
        PackSuite::Faults => migration::run_fault(json),
        PackSuite::Public => public::run(&file.path, json),
    }
}

/// The codes of the pack, read once by each thread.
fn codes<'a>(all: &[TestFile], worker: &'a TestWorker) -> Result<&'a CodeMap, String> {
    let read = || match find_file(all, pack::CODES) {
        Some(file) => serde_json::from_slice(&file.content)
            .map_err(|error| format!("{}: {error}", pack::CODES)),
        None => Ok(CodeMap::new()),
    };
    worker.pack_codes.get_or_init(read).as_ref().map_err(Clone::clone)
}

/// The file with this path; files are sorted by path.
fn find_file<'a>(all: &'a [TestFile], path: &str) -> Option<&'a TestFile> {
    let at = all.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
    all.get(at)
}

/// A number that JSON has as a number of any size, or as text, decimal or hex.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct JsonNumber(alloy_primitives::U256);

impl<'de> Deserialize<'de> for JsonNumber {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <Box<RawValue>>::deserialize(deserializer)?;
        let text = raw.get().trim_matches('"');
        let number = text.parse().map_err(|_| format!("`{text}` is not a number"));
        number.map(Self).map_err(serde::de::Error::custom)
    }
}

/// Compares what was computed with what a case expects.
fn expect<T: PartialEq + std::fmt::Display>(what: &str, got: T, expected: T) -> TestVerdict {
    match got == expected {
        true => Ok(()),
        false => Err(format!("{what} is {got}, expected {expected}")),
    }
}
