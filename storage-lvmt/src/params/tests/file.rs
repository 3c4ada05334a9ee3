//! Parameter files: written, read back, and damaged in every way.

use super::{assert_same, of_tau};
use crate::params::{FileFault, LvmtParams, ParamsError, tables::PointTable};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state_testkit::sample;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn path_in(folder: &TempDir) -> PathBuf {
    folder.path().join("lvmt.params")
}

fn fault(path: &Path) -> FileFault {
    match LvmtParams::load(path) {
        Err(ParamsError::File { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

/// Corrects the header's own checksum.
fn reseal(bytes: &mut [u8]) {
    let sum = crc32fast::hash(&bytes[..4092]);
    bytes[4092..4096].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn what_is_written_is_read_back() {
    let folder = TempDir::new().unwrap();
    let path = path_in(&folder);
    for height in [1, 2, 5] {
        for with_quotients in [false, true] {
            let params = of_tau(height, 4711, with_quotients);
            // The file of the round before is replaced.
            params.write(&path).unwrap();
            let loaded = LvmtParams::load(&path).unwrap();
            assert_same(&loaded, &params);
            assert_eq!(loaded.has_quotients(), with_quotients);
            let verifier = LvmtParams::load_verifier(&path).unwrap();
            assert_eq!(verifier.to_bytes(), params.verifier().to_bytes());
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn the_file_is_laid_out_as_documented() {
    let folder = TempDir::new().unwrap();
    let path = path_in(&folder);
    let params = of_tau(2, 4711, true);
    params.write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 4096 + 4 * 6 * 64 + 4 * 6 * 2 * 64);
    assert_eq!(bytes[..16], *b"retrLVMT\x01\0\0\0\x02\0\0\0");
    assert_eq!(bytes[16..24], (bytes.len() as u64).to_le_bytes());
    let (increments, quotients) = bytes[4096..].split_at(4 * 6 * 64);
    assert_eq!(bytes[24..28], crc32fast::hash(increments).to_le_bytes());
    assert_eq!(bytes[28..32], crc32fast::hash(quotients).to_le_bytes());
    assert_eq!(bytes[32..64], params.digest()[..]);
    assert_eq!(bytes[64..321], params.verifier().to_bytes());
    assert!(bytes[321..4092].iter().all(|byte| *byte == 0));
    // Limbs in Montgomery form, little-endian.
    let limbs = |point: crate::G1Point| {
        [point.x(), point.y()].map(|c| c.0.0.map(u64::to_le_bytes)).as_flattened().concat()
    };
    for entry in 0..4 {
        for slot in 0..6 {
            let at = (entry * 6 + slot) * 64;
            assert_eq!(increments[at..at + 64], limbs(*params.increment(entry as u32, slot)));
            for depth in 0..2 {
                let at = ((entry * 6 + slot) * 2 + depth) * 64;
                let point = *params.quotient_increment(depth, entry as u32, slot);
                assert_eq!(quotients[at..at + 64], limbs(point));
            }
        }
    }
}

#[test]
fn every_changed_byte_and_every_length_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = path_in(&folder);
    of_tau(2, 4711, true).write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(LvmtParams::load(&path), Err(ParamsError::File { .. })));
        // Without the tables only the header counts.
        let verifier = LvmtParams::load_verifier(&path);
        assert!(verifier.is_err() || bytes.len() >= 4096);
    };
    for at in (0..bytes.len())
        .filter(|at| (*at < 512 || *at > 4000 || at % 211 == 0) && sample::takes(*at, 4))
    {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        refused(&damaged);
    }
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..sample::or_all(40, 150) {
        let mut damaged = bytes.clone();
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..damaged.len());
            damaged[at] = damaged[at].wrapping_add(rng.random_range(1..=255));
        }
        damaged.truncate(rng.random_range(0..2 * damaged.len()));
        if damaged != bytes {
            refused(&damaged);
        }
    }
    for len in
        (0..bytes.len()).step_by(sample::or_all(251, 61)).chain([4095, 4096, bytes.len() - 1])
    {
        refused(&bytes[..len]);
    }
    refused(&[&bytes[..], &[0]].concat());
    refused(&[&bytes[..], &bytes[..]].concat());
}

#[test]
fn faults_are_told_apart() {
    let folder = TempDir::new().unwrap();
    let path = path_in(&folder);
    let params = of_tau(3, 4711, true);
    params.write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let spoilt = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        reseal(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        fault(&path)
    };
    assert_eq!(spoilt(0, b'R'), FileFault::Magic);
    assert_eq!(spoilt(8, 2), FileFault::Version(2));
    assert_eq!(spoilt(12, 6), FileFault::Header, "a flag that does not exist");
    assert_eq!(spoilt(12, 3), FileFault::Header, "called insecure, but it is not");
    assert_eq!(spoilt(12, 0), FileFault::Header, "another length follows from the flags");
    assert_eq!(spoilt(32, !bytes[32]), FileFault::Header, "the digest");
    assert_eq!(spoilt(64, 0), FileFault::Header, "no height");
    assert_eq!(spoilt(64, 255), FileFault::Header, "a height beyond all");
    assert_eq!(spoilt(100, !bytes[100]), FileFault::Header, "a point off the curve");
    assert_eq!(spoilt(4000, 1), FileFault::Header, "padding");
    assert_eq!(spoilt(4096, !bytes[4096]), FileFault::Table("commitments"));
    let last = bytes.len() - 1;
    assert_eq!(spoilt(last, !bytes[last]), FileFault::Table("quotients"));
    std::fs::write(&path, &bytes[..last]).unwrap();
    let (have, want) = (last as u64, bytes.len() as u64);
    assert_eq!(fault(&path), FileFault::Length { have, want });
    assert!(matches!(LvmtParams::load(folder.path()), Err(ParamsError::Io { .. })));
    assert!(matches!(LvmtParams::load(&path.join("none")), Err(ParamsError::Io { .. })));
    assert!(matches!(params.write(&path.join("none")), Err(ParamsError::Io { .. })));
}

#[test]
fn insecure_parameters_cannot_be_passed_off_as_others() {
    let folder = TempDir::new().unwrap();
    let path = path_in(&folder);
    let params = LvmtParams::insecure_dev(2, false, super::QUIET).unwrap();
    params.write(&path).unwrap();
    assert!(LvmtParams::load(&path).unwrap().is_insecure());
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[12], 1);
    bytes[12] = 0;
    reseal(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(fault(&path), FileFault::Header);
}

#[test]
fn tables_of_another_tau_are_foreign_although_all_checksums_are_right() {
    let folder = TempDir::new().unwrap();
    let path = path_in(&folder);
    let height = 3;
    let (params, other) = (of_tau(height, 4711, true), of_tau(height, 4712, true));
    let (increments, quotients) = params.tables();
    let (increments, quotients) = (increments.to_vec(), quotients.unwrap().to_vec());
    let (other_increments, other_quotients) = other.tables();
    let loaded = |increments: &[crate::G1Point], quotients: &[crate::G1Point]| {
        let [increments, quotients] =
            [increments, quotients].map(|t| PointTable::Owned(t.to_vec()));
        let verifier = params.verifier().clone();
        LvmtParams::from_tables(verifier, increments, Some(quotients)).write(&path).unwrap();
        LvmtParams::load(&path)
    };
    assert!(loaded(&increments, &quotients).is_ok());
    let foreign = |result: Result<LvmtParams, ParamsError>, name: &str| match result {
        Err(ParamsError::File { fault: FileFault::Foreign(table), .. }) => assert_eq!(table, name),
        other => panic!("{other:?}"),
    };
    let table = |result: Result<LvmtParams, ParamsError>, name: &str| match result {
        Err(ParamsError::File { fault: FileFault::Table(table), .. }) => assert_eq!(table, name),
        other => panic!("{other:?}"),
    };
    foreign(loaded(other_increments, &quotients), "commitments");
    foreign(loaded(&increments, other_quotients.unwrap()), "quotients");
    // Two entries swapped: the sum is the same. And a slot that is not 2^40 times the slot before
    // it.
    for (a, b) in [(0, 6), (1, 2), (47, 41)] {
        let mut swapped = increments.clone();
        swapped.swap(a, b);
        foreign(loaded(&swapped, &quotients), "commitments");
    }
    for (a, b) in [(0, 1), (0, 3), (142, 143)] {
        let mut swapped = quotients.clone();
        swapped.swap(a, b);
        foreign(loaded(&increments, &swapped), "quotients");
    }
    let generator = crate::amt::model::point(1u64.into());
    let off = crate::G1Point::from_xy(generator.x(), generator.x());
    // At any place; and above all (x, 0), which no doubling can handle.
    let flat = crate::G1Point::from_xy(generator.x(), ark_bn254::Fq::from(0u64));
    for point in [off, flat] {
        for at in (0..increments.len()).step_by(5) {
            let mut spoilt = increments.clone();
            spoilt[at] = point;
            table(loaded(&spoilt, &quotients), "commitments");
        }
        for at in (0..quotients.len()).step_by(17) {
            let mut spoilt = quotients.clone();
            spoilt[at] = point;
            table(loaded(&increments, &spoilt), "quotients");
        }
    }
    table(loaded(&vec![flat; increments.len()], &quotients), "commitments");
}
