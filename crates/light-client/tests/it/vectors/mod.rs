//! The golden vectors in `vectors/`: valid and forged proofs, each with the verdict that every
//! verifier must reach. The TypeScript verifier runs the same files.
//!
//! `RETRIE_WRITE_VECTORS=1 cargo test -p retrie-light-client --test it vectors::` writes them anew.

mod chain;
mod format;
mod make;
mod make_bavl;
mod make_cole;
mod make_duptree;
mod make_hashed;
mod make_lmpt;
mod make_lvmt;
mod make_mpt;
mod make_pbt;
mod recorded;

use format::VectorFile;

type MakeVectors = fn() -> VectorFile;

/// Files that are made in one or two seconds.
const MADE: [(&str, MakeVectors); 14] = [
    ("mpt.json", make_mpt::mpt),
    ("mpt-archive.json", make_mpt::archive),
    ("eip1186.json", make_mpt::eip1186),
    ("answers.json", make_mpt::answers),
    ("lvmt.json", make_lvmt::lvmt),
    ("cole.json", make_cole::cole),
    ("cole-trees.json", make_cole::cole_trees),
    ("prefix.json", make_mpt::prefix),
    ("duptree.json", make_duptree::duptree),
    ("lmpt.json", make_lmpt::lmpt),
    ("bavl.json", make_bavl::bavl),
    ("pbt.json", make_pbt::pbt),
    ("pbt-hashed.json", make_pbt::hashed),
    ("hashed.json", make_hashed::hashed),
];

/// Files that take longer, and are only read.
const KEPT: [&str; 3] = ["lvmt-16.json", "lvmt-forged.json", "cole-forged.json"];

fn writes() -> bool {
    std::env::var_os("RETRIE_WRITE_VECTORS").is_some()
}

#[test]
fn backends_make_the_very_proofs_of_the_vectors() {
    for (name, make) in MADE {
        let text = make().to_text();
        if writes() {
            std::fs::write(VectorFile::path(name), &text).unwrap();
        }
        let kept = std::fs::read_to_string(VectorFile::path(name)).unwrap();
        let differs = text.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
        assert_eq!(differs, None, "{name}");
        assert_eq!(text.len(), kept.len(), "{name}");
    }
}

#[test]
fn every_vector_gets_its_verdict() {
    for name in MADE.map(|(name, _)| name).into_iter().chain(KEPT) {
        let file = VectorFile::read(name);
        let verifier = file.verifier();
        for case in &file.cases {
            assert_eq!(file.resolve(case).run(&verifier), case.expect, "{name}: {}", case.name);
        }
        assert!(file.cases.len() > 5, "{name}");
    }
}

#[test]
#[ignore = "makes tables of 400 MB; writes lvmt-16.json with RETRIE_WRITE_VECTORS=1"]
fn full_height() {
    let text = make_lvmt::full_height().to_text();
    if writes() {
        std::fs::write(VectorFile::path("lvmt-16.json"), &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(VectorFile::path("lvmt-16.json")).unwrap());
}

/// `RETRIE_RECORD_PROOFS=FILE cargo test -p retrie-storage-lvmt --lib verify::tests::forged`, then
/// `RETRIE_RECORD_PROOFS=FILE cargo test -p retrie-light-client --test it vectors:: -- --ignored recorded_of_lvmt`.
#[test]
#[ignore = "needs a record; writes lvmt-forged.json"]
fn recorded_of_lvmt() {
    write_recorded("lvmt-forged.json", recorded::lvmt);
}

/// The same with `PROPTEST_CASES=40 .. -p retrie-storage-cole --lib verify`, and `recorded_of_cole`.
#[test]
#[ignore = "needs a record; writes cole-forged.json"]
fn recorded_of_cole() {
    write_recorded("cole-forged.json", recorded::cole);
}

fn write_recorded(name: &str, choose: fn(&str) -> VectorFile) {
    let record = std::env::var_os("RETRIE_RECORD_PROOFS").expect("RETRIE_RECORD_PROOFS=FILE");
    let file = choose(&std::fs::read_to_string(record).unwrap());
    std::fs::write(VectorFile::path(name), file.to_text()).unwrap();
}
