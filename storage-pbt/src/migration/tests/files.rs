//! Bytes of the files.

use super::*;
use alloy_primitives::hex;

#[test]
fn the_smallest_state_has_the_files_that_eip_8347_says() {
    // One account: nonce 3, balance 0x1000, no code.
    let mut state = StateFixture::default();
    state.account(0x11, 3, 0x1000, &[]);
    let path = account_path(TreeHash::Blake3, &address(0x11).into());
    let (path, empty) = (hex::encode(path), hex::encode(keccak256([])));
    let root = hex::encode(state.export().unwrap().leaves.totals.root);
    let (one, none) = ("0000000000000001", "0000000000000000");
    let basic = format!("9103{:0>28}1000", "");
    let expected = [
        format!("{root}0000000000000002 f5a200{path}00{basic} f844a200{path}01a0{empty}"),
        format!("{root}{one} {path} 0103 021000 00 00 {none}{none}"),
        format!("00 {path} 0103 021000 00 07 {root}"),
    ];
    for (layout, expected) in SnapshotLayout::ALL.into_iter().zip(expected) {
        let files = state.files(layout);
        assert_eq!(hex::encode(&files.preimages), format!("{}00000000", "11".repeat(20)));
        assert_eq!(hex::encode(&files.snapshot), expected.replace(' ', ""), "{layout}");
    }
}

#[test]
fn the_empty_state_has_files_too() {
    let state = StateFixture::default();
    for layout in SnapshotLayout::ALL {
        let files = state.files(layout);
        assert!(files.preimages.is_empty());
        let checked = files.check(alloy_trie::EMPTY_ROOT_HASH).unwrap();
        assert_eq!((checked.accounts, checked.snapshot.leaves), (0, 0));
        assert_eq!(checked.snapshot.root, B256::ZERO);
    }
}

#[test]
fn digests_are_those_of_the_bytes_and_a_lie_is_named() {
    let state = small_state();
    for layout in SnapshotLayout::ALL {
        let files = state.files(layout);
        let checked = files.check(state.state_root()).unwrap();
        let of = |bytes: &[u8]| FileDigest { bytes: bytes.len() as u64, digest: keccak256(bytes) };
        assert_eq!(checked.preimages, of(&files.preimages));
        assert_eq!(checked.snapshot.file, of(&files.snapshot));
        let file = checked.snapshot.file;
        file.expect(MigrationFile::Snapshot, keccak256(&files.snapshot)).unwrap();
        let lie = file.expect(MigrationFile::Snapshot, B256::ZERO);
        assert_eq!(fault(lie), "Digest");
    }
}

#[test]
fn leaves_that_were_read_are_written_to_the_same_bytes() {
    let mut state = small_state();
    state.account(9, 1, 1, &code(9, true));
    for layout in SnapshotLayout::ALL {
        let files = state.files(layout);
        let mut reader = SnapshotReader::new(layout, &files.snapshot[..]);
        let export = state.export().unwrap();
        // The groups of each storage, counted by hand.
        let mut groups: BTreeMap<B256, Vec<B256>> = BTreeMap::new();
        for key in state.leaves().keys().filter(|key| key.zone() == 0xff) {
            groups.entry(key.path()).or_default().push(key.group());
        }
        let counts = groups.into_values().map(|mut groups| {
            groups.dedup();
            Ok(groups.len() as u64)
        });
        let totals = export.leaves.totals;
        let mut writer = SnapshotWriter::new(layout, Vec::new(), totals, Box::new(counts)).unwrap();
        while let Some(leaf) = reader.next_leaf().unwrap() {
            writer.push(&leaf).unwrap();
        }
        let summary = reader.finish().unwrap();
        assert_eq!((summary.root, summary.leaves), (totals.root, totals.leaves));
        let (digest, bytes) = writer.finish().unwrap();
        assert_eq!(digest, summary.file);
        assert_eq!(bytes, files.snapshot, "{layout}");
    }
}

#[test]
fn layouts_have_names() {
    for layout in SnapshotLayout::ALL {
        assert_eq!(layout.to_string().parse(), Ok(layout));
    }
    assert!("Rlp".parse::<SnapshotLayout>().unwrap_err().contains("tagged"));
}
