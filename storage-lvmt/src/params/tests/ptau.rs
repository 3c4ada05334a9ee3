//! Ceremonies with a known tau, in the file format of snarkjs.

use super::{QUIET, assert_same, of_tau};
use crate::params::{LvmtParams, ParamsError, PtauFault};
use ark_bn254::{Fq, Fr, G1Affine, G2Affine};
use ark_ec::{AffineRepr, CurveGroup};
use ark_ff::{BigInteger, FftField, Field, PrimeField};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::path::PathBuf;
use tempfile::TempDir;

const POWER: u32 = 4;
const TAU: u64 = 987_654_321;

/// The parts of a file; tests damage them one by one.
struct TestCeremony {
    magic: [u8; 4],
    version: u32,
    prime: Vec<u8>,
    power: u32,
    g1: Vec<G1Affine>,
    g2: Vec<G2Affine>,
    /// Sections after the third one, such as those of phase 2.
    more: Vec<(u32, Vec<u8>)>,
}

impl TestCeremony {
    fn new(tau: Fr) -> Self {
        let powers = |count: usize| (0..count).map(move |i| tau.pow([i as u64]));
        Self {
            magic: *b"ptau",
            version: 1,
            prime: Fq::MODULUS.to_bytes_le(),
            power: POWER,
            g1: powers((2 << POWER) - 1)
                .map(|power| (G1Affine::generator() * power).into_affine())
                .collect(),
            g2: powers(1 << POWER)
                .map(|power| (G2Affine::generator() * power).into_affine())
                .collect(),
            more: vec![(4, vec![1; 64]), (12, vec![2; 100]), (7, vec![])],
        }
    }

    fn sections(&self) -> Vec<(u32, Vec<u8>)> {
        let mut header = 32u32.to_le_bytes().to_vec();
        header.extend(&self.prime);
        header.extend(self.power.to_le_bytes());
        header.extend(POWER.to_le_bytes());
        let g1 = self.g1.iter().flat_map(|point| [point.x, point.y]);
        let g2 = self.g2.iter().flat_map(|p| [p.x.c0, p.x.c1, p.y.c0, p.y.c1]);
        // Field elements are in Montgomery form in memory.
        let bytes = |coordinate: Fq| coordinate.0.to_bytes_le();
        let g1 = g1.flat_map(bytes).collect();
        let mut sections = vec![(1, header), (2, g1), (3, g2.flat_map(bytes).collect())];
        sections.extend(self.more.clone());
        sections
    }

    fn bytes(&self) -> Vec<u8> {
        self.file(&self.sections())
    }

    fn file(&self, sections: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((sections.len() as u32).to_le_bytes());
        for (kind, contents) in sections {
            bytes.extend(kind.to_le_bytes());
            bytes.extend((contents.len() as u64).to_le_bytes());
            bytes.extend(contents);
        }
        bytes
    }
}

struct TestFolder(TempDir);

impl TestFolder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn write(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join("powers.ptau");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn derive(&self, bytes: &[u8]) -> Result<LvmtParams, ParamsError> {
        LvmtParams::from_ptau(&self.write(bytes), POWER as u8, false, QUIET)
    }

    fn fault(&self, bytes: &[u8]) -> PtauFault {
        match self.derive(bytes) {
            Err(ParamsError::Ptau { path, fault }) => {
                assert!(path.ends_with("powers.ptau"));
                fault
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_ceremony_gives_the_tables_of_its_tau() {
    let folder = TestFolder::new();
    for tau in [TAU, 3, u64::MAX] {
        let path = folder.write(&TestCeremony::new(Fr::from(tau)).bytes());
        for height in 1..=POWER as u8 {
            for with_quotients in [false, true] {
                let derived = LvmtParams::from_ptau(&path, height, with_quotients, QUIET).unwrap();
                assert_same(&derived, &of_tau(height, tau, with_quotients));
            }
        }
    }
}

#[test]
fn sections_may_come_in_any_order() {
    let ceremony = TestCeremony::new(Fr::from(TAU));
    let mut sections = ceremony.sections();
    sections.reverse();
    let derived = TestFolder::new().derive(&ceremony.file(&sections)).unwrap();
    assert_same(&derived, &of_tau(POWER as u8, TAU, false));
}

#[test]
fn every_check_has_its_error() {
    let folder = TestFolder::new();
    let fault = |spoil: &dyn Fn(&mut TestCeremony)| {
        let mut ceremony = TestCeremony::new(Fr::from(TAU));
        spoil(&mut ceremony);
        folder.fault(&ceremony.bytes())
    };
    let point = |factor: u64| (G1Affine::generator() * Fr::from(factor)).into_affine();
    let point2 = |factor: u64| (G2Affine::generator() * Fr::from(factor)).into_affine();

    assert_eq!(folder.fault(b""), PtauFault::Magic);
    assert_eq!(fault(&|c| c.magic = *b"zkey"), PtauFault::Magic);
    assert_eq!(fault(&|c| c.version = 2), PtauFault::Version(2));
    assert_eq!(fault(&|c| c.prime[0] ^= 1), PtauFault::Curve);
    assert_eq!(fault(&|c| c.power = 5), PtauFault::SectionLength(2));
    assert_eq!(fault(&|c| c.power = u32::MAX), PtauFault::SectionLength(2));
    assert_eq!(fault(&|c| c.g1.truncate(16)), PtauFault::SectionLength(2));
    assert_eq!(fault(&|c| c.g2.truncate(8)), PtauFault::SectionLength(3));
    assert_eq!(fault(&|c| c.more.push((2, vec![]))), PtauFault::Section(2));
    assert_eq!(
        fault(&|c| c.g1[7].y = -c.g1[7].y + Fq::ONE),
        PtauFault::Point { section: 2, index: 7 }
    );
    assert_eq!(fault(&|c| c.g1[3].x.0 = Fq::MODULUS), PtauFault::Point { section: 2, index: 3 });
    assert_eq!(
        fault(&|c| c.g1[1] = G1Affine::identity()),
        PtauFault::Point { section: 2, index: 1 },
        "tau is zero"
    );
    assert_eq!(fault(&|c| c.g2[4].x.c0 += Fq::ONE), PtauFault::Point { section: 3, index: 4 });
    assert_eq!(
        fault(&|c| c.g2[8] = G2Affine::identity()),
        PtauFault::Point { section: 3, index: 8 }
    );
    assert_eq!(fault(&|c| c.g1[0] = point(2)), PtauFault::Generator(2));
    assert_eq!(fault(&|c| c.g2[0] = point2(2)), PtauFault::Generator(3));
    for index in 1..16 {
        let fault = fault(&|c| c.g1[index] = point(index as u64 + 77));
        assert_eq!(fault, PtauFault::PowersG1, "{index}");
    }
    assert_eq!(fault(&|c| c.g2[1] = point2(77)), PtauFault::PowersG1, "another tau in G2");
    for index in [2, 4, 8] {
        assert_eq!(fault(&|c| c.g2[index] = point2(77)), PtauFault::PowersG2, "{index}");
    }
    // A ceremony without a contribution: tau is one. And other roots of unity.
    let root = Fr::get_root_of_unity(16).unwrap();
    for tau in [Fr::ONE, -Fr::ONE, root, root.square()] {
        assert_eq!(folder.fault(&TestCeremony::new(tau).bytes()), PtauFault::Degenerate);
    }
    let path = folder.write(&TestCeremony::new(Fr::from(TAU)).bytes());
    let result = LvmtParams::from_ptau(&path, 5, false, QUIET);
    assert!(matches!(
        result,
        Err(ParamsError::Ptau { fault: PtauFault::TooSmall { power: POWER, height: 5 }, .. })
    ));
    let missing = LvmtParams::from_ptau(&path.with_extension("none"), 4, false, QUIET);
    assert!(matches!(missing, Err(ParamsError::Io { .. })));
    assert!(matches!(LvmtParams::from_ptau(&path, 0, false, QUIET), Err(ParamsError::Height(0))));
}

#[test]
fn sections_missing_cut_off_or_longer_than_the_file_are_errors() {
    let folder = TestFolder::new();
    let ceremony = TestCeremony::new(Fr::from(TAU));
    let sections = ceremony.sections();
    for missing in 1..=3 {
        let rest: Vec<_> = sections.iter().filter(|s| s.0 != missing).cloned().collect();
        assert_eq!(folder.fault(&ceremony.file(&rest)), PtauFault::Section(missing));
    }
    let bytes = ceremony.bytes();
    for len in (0..bytes.len()).filter(|len| *len < 100 || len % 7 == 0) {
        assert!(folder.derive(&bytes[..len]).is_err(), "{len} bytes");
    }
    assert_eq!(folder.fault(&bytes[..bytes.len() - 1]), PtauFault::Truncated);
    // A length beyond the file, and beyond all numbers.
    for huge in [u64::MAX, u64::MAX - 30, bytes.len() as u64] {
        let mut bytes = bytes.clone();
        bytes[16..24].copy_from_slice(&huge.to_le_bytes());
        assert_eq!(folder.fault(&bytes), PtauFault::Section(1));
    }
}

#[test]
fn random_damage_is_found_or_harmless() {
    let folder = TestFolder::new();
    let ceremony = TestCeremony::new(Fr::from(TAU));
    let bytes = ceremony.bytes();
    let right = of_tau(POWER as u8, TAU, false);
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..200 {
        let mut damaged = bytes.clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..damaged.len());
            damaged[at] ^= 1 << rng.random_range(0..8);
        }
        if let Ok(params) = folder.derive(&damaged) {
            // The damage hit parts that are not needed: higher powers, sections of phase 2.
            assert_same(&params, &right);
        }
    }
}
