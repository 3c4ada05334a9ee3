//! The files of EIP-8347: those of the end of a history, and faulty ones.

use super::{
    expect, find_file,
    history::History,
    model::{HASH, ModelState, with_context},
};
use crate::{
    archive::TestFile,
    format::{CodeMap, TestVerdict, parse},
    pack,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{BackendKey, BulkSorter};
use retrie_state_store::RecordSorter;
use retrie_storage_pbt::migration::{
    CheckedState, DualCheck, FileDigest, MigrationContext, MigrationError, PreimageReader,
    SnapshotLayout, SnapshotReader,
};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MigrationCase {
    id: String,
    accounts: u64,
    leaves: u64,
    mpt_state_root: B256,
    pbt_root: B256,
    preimage_bytes: u64,
    preimage_digest: B256,
    preimages: Option<Bytes>,
    rlp: Option<ExpectedFile>,
    counts: Option<ExpectedFile>,
    tagged: Option<ExpectedFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedFile {
    bytes: u64,
    digest: B256,
    hex: Option<Bytes>,
}

impl ExpectedFile {
    fn expect(&self, what: &str, (digest, bytes): &(FileDigest, Vec<u8>)) -> TestVerdict {
        if let Some(expected) = &self.hex
            && expected[..] != bytes[..]
        {
            let at = expected.iter().zip(bytes).take_while(|(one, other)| one == other).count();
            return Err(format!("{what} differs at byte {at}"));
        }
        expect(&format!("the length of {what}"), digest.bytes, self.bytes)?;
        expect(&format!("the digest of {what}"), digest.digest, self.digest)
    }
}

/// The dual check of both files.
fn check(
    layout: SnapshotLayout,
    snapshot: &[u8],
    preimages: &[u8],
    state_root: B256,
) -> Result<CheckedState, MigrationError> {
    let sorters = || -> Box<dyn BulkSorter> { Box::new(RecordSorter::new(None)) };
    let mut watch = |_| true;
    let context = MigrationContext { hash: HASH, sorters: &sorters, watch: &mut watch };
    DualCheck { context, state_root }
        .run(SnapshotReader::new(layout, snapshot), PreimageReader::new(preimages))
}

/// Writes the files of the end of a history, compares them, and checks them.
pub(super) fn run(json: &RawValue, all: &[TestFile], codes: &CodeMap) -> TestVerdict {
    let fail = |error: MigrationError| error.to_string();
    let case: MigrationCase = parse(json)?;
    let history = format!("{}: {}", pack::HISTORIES, case.id);
    let history = find_file(all, &history).ok_or_else(|| format!("{history} is not there"))?;
    let history: History = serde_json::from_slice(&history.content)
        .map_err(|error| format!("history {}: {error}", case.id))?;
    let state = history.end(codes)?;
    expect("the number of accounts", state.0.len() as u64, case.accounts)?;
    let mut export = state.export(codes).map_err(fail)?;
    expect("the number of leaves", export.leaves.totals.leaves, case.leaves)?;
    expect("the root", export.leaves.totals.root, case.pbt_root)?;
    let preimages = with_context(|context| export.write_preimages(context, Vec::new()));
    let preimages = preimages.map_err(fail)?;
    let MigrationCase { preimage_bytes: bytes, preimage_digest: digest, preimages: hex, .. } = case;
    ExpectedFile { bytes, digest, hex }.expect("the preimage file", &preimages)?;
    let layouts = [
        (SnapshotLayout::Rlp, &case.rlp),
        (SnapshotLayout::Counts, &case.counts),
        (SnapshotLayout::Tagged, &case.tagged),
    ];
    for (layout, expected) in layouts {
        let Some(expected) = expected else { continue };
        let written = with_context(|context| export.leaves.write(context, layout, Vec::new()));
        let written = written.map_err(|error| format!("{layout}: {error}"))?;
        expected.expect(&format!("the snapshot ({layout})"), &written)?;
        let checked = check(layout, &written.1, &preimages.1, case.mpt_state_root)
            .map_err(|error| format!("{layout}: the check refuses it: {error}"))?;
        gives_back(checked, &state, codes).map_err(|error| format!("{layout}: {error}"))?;
    }
    Ok(())
}

/// Checks that a checked state is the one that was written.
fn gives_back(mut checked: CheckedState, state: &ModelState, codes: &CodeMap) -> TestVerdict {
    let fail = |error: retrie_state::StateError| error.to_string();
    let entries = checked.entries().map_err(fail)?;
    let entries = entries.map(|entry| entry.map(|(key, value)| (BackendKey::from(key), value)));
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    entries.sort_unstable_by_key(|(key, _)| *key);
    if !entries.into_iter().eq(state.entries()) {
        return Err("the checked state has other entries".into());
    }
    for code in checked.codes().map_err(fail)? {
        let (hash, code) = code.map_err(|error| error.to_string())?;
        if codes.get(&hash).is_none_or(|right| right[..] != code[..]) {
            return Err(format!("the checked state has another code {hash}"));
        }
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FaultCase {
    fault: String,
    mpt_state_root: B256,
    snapshot: Bytes,
    preimages: Bytes,
}

/// The errors that a fault may have, where its name says what is wrong.
fn errors_of(fault: &str) -> Option<&'static [&'static str]> {
    let fault = fault.strip_suffix(" (root fits)").unwrap_or(fault);
    Some(match fault {
        "balance changed" | "storage value changed" => &["StateRoot"],
        "both code hash and delegation" => &["TwoCodeLeaves"],
        "claimed root changed" => &["PbtRoot"],
        "code chunk dropped" => &["CodeHash"],
        "code size plus one" => &["CodeHash", "CodeSizes"],
        "delegation kept as code, July layout" => &["IndicatorAsCode"],
        "delegation padding not zero" => &["BadDelegation"],
        "leaf count one too high" => &["LeafCount"],
        "preimage account missing" | "preimage slot missing" => &["MissingPreimage"],
        "preimage account too many" => &["SurplusAccount"],
        "preimage record twice" => &["Duplicate"],
        "preimage slot too many" | "storage leaf dropped" => &["SurplusSlot"],
        "preimage slots sorted by slot" | "preimages sorted by address" => &["Order"],
        "preimage trailing byte" => &["Truncated"],
        "push count of a chunk changed" => &["WrongChunk"],
        "record twice" => &["Duplicate"],
        "reserved sub-index 3" | "sub-index 200" => &["SubIndex"],
        "reserved zone" => &["ReservedZone"],
        "snapshot cut" => &["Truncated", "LeafCount"],
        "trailing byte in snapshot" => &["TrailingBytes"],
        "two records swapped" => &["Order"],
        "unreferenced code leaf" => &["UnreferencedCode", "SurplusChunk"],
        "value with a leading zero" => &["LeadingZero"],
        "version 1" => &["Version"],
        "zero value stored" => &["ZeroValue"],
        _ => return None,
    })
}

/// Checks that faulty files are refused, by the name of their fault if it is known.
pub(super) fn run_fault(json: &RawValue) -> TestVerdict {
    let FaultCase { fault, mpt_state_root, snapshot, preimages } = parse(json)?;
    let Err(error) = check(SnapshotLayout::Rlp, &snapshot, &preimages, mpt_state_root) else {
        return Err("faulty files are accepted".into());
    };
    let debug = format!("{error:?}");
    let name = debug.split([' ', '(', '{']).next().unwrap_or_default();
    match errors_of(&fault) {
        Some(names) if !names.contains(&name) => {
            Err(format!("it is refused as {name} ({error}), expected {}", names.join(" or ")))
        }
        _ => Ok(()),
    }
}
