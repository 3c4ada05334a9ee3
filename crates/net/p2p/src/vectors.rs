//! The public test vectors of the protocols.

use serde_json::Value;
use std::{fs::File, io::Read, path::Path};

/// Reads a file of `vectors` in the archive `p2p` of the conformance data. Returns `None` without
/// the data, unless `RETRIE_REQUIRE_DATA` is set.
pub(crate) fn vectors(name: &str) -> Option<Value> {
    let file = File::open(retrie_state_testkit::data::find("conformance/p2p.tar.zst")?).unwrap();
    let mut archive = tar::Archive::new(zstd::stream::read::Decoder::new(file).unwrap());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap().ends_with(Path::new("vectors").join(name)) {
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            return Some(serde_json::from_str(&text).unwrap());
        }
    }
    panic!("the vectors have no {name}")
}
