//! Powers of tau from a ceremony: the file format of snarkjs, and the checks of such a file.
//! [`derive`](super::derive) makes the tables from the powers.
//!
//! A file is `ptau`, a version (1), a number of sections, then the sections: type u32, length u64,
//! contents; all little-endian. Three sections matter. Files of phase 1 have them, and prepared
//! files too:
//! | section | contents |
//! |---|---|
//! | 1 | bytes of a coordinate u32 (32), modulus q, power p u32, power of the ceremony u32 |
//! | 2 | \[tau^i\] of G1 for i in 0..2^(p+1) - 1: x, y |
//! | 3 | \[tau^i\] of G2 for i in 0..2^p: x.c0, x.c1, y.c0, y.c1 |
//!
//! Coordinates are little-endian and in Montgomery form.

use super::{
    LvmtParams, ParamsError, PtauFault, SetupPhase, SetupProgress, VerifierParams,
    tables::ProgressMeter, verifier::coefficient,
};
use crate::{
    amt::MAX_HEIGHT,
    hash,
    point::{G1Point, montgomery},
};
use alloy_primitives::B256;
use ark_bn254::{Bn254, Fq, Fq2, Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use ark_ec::{AffineRepr, CurveGroup, VariableBaseMSM, pairing::Pairing};
use ark_ff::{BigInteger, PrimeField, Zero};
use rayon::prelude::*;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

const G1_LEN: u64 = 64;
const G2_LEN: u64 = 128;
/// Bounds; snarkjs has at most 15 sections and 28 powers.
const MAX_SECTIONS: u32 = 64;
const MAX_POWER: u32 = 40;

impl LvmtParams {
    /// Parameters of height 1 to 16 from the powers of a ceremony. At height 16 this takes minutes
    /// on all cores with quotients, seconds without.
    ///
    /// The function reads 2^h points of G1 and h + 1 points of G2. It checks that they are points
    /// of the groups and powers of one tau.
    ///
    /// # Errors
    /// The height is out of range, the file cannot be read or used, or `progress` said to stop.
    pub fn from_ptau(
        path: &Path,
        height: u8,
        with_quotients: bool,
        progress: SetupProgress<'_>,
    ) -> Result<Self, ParamsError> {
        if !(1..=MAX_HEIGHT).contains(&height) {
            return Err(ParamsError::Height(height));
        }
        let powers = TauPowers::read(path, height, progress)?;
        Self::derive(powers.verifier, &powers.g1, with_quotients, progress)
    }
}

/// Checked powers of one tau.
struct TauPowers {
    /// \[tau^i\] for i in 0..2^h.
    g1: Vec<G1Affine>,
    verifier: VerifierParams,
}

impl TauPowers {
    fn read(path: &Path, height: u8, progress: SetupProgress<'_>) -> Result<Self, ParamsError> {
        let fault = |fault| ParamsError::Ptau { path: path.into(), fault };
        let mut file = PtauFile::open(path)?;
        if file.power < u32::from(height) {
            return Err(fault(PtauFault::TooSmall { power: file.power, height }));
        }
        let meter = ProgressMeter::new(progress, SetupPhase::Powers, 2 << height);
        let bytes = file.read(2, 0, G1_LEN << height)?;
        let g1 = bytes.par_chunks_exact(G1_LEN as usize).enumerate().map(|(i, bytes)| {
            g1(bytes).ok_or_else(|| fault(PtauFault::Point { section: 2, index: i as u64 }))
        });
        let g1: Vec<G1Affine> = g1.collect::<Result<_, _>>()?;
        meter.add(g1.len())?;

        let mut transcript = vec![hash::parts(&[&bytes])];
        let mut g2 = Vec::new();
        for index in std::iter::once(0).chain((0..height).map(|k| 1 << k)) {
            let bytes = file.read(3, index * G2_LEN, G2_LEN)?;
            let point =
                g2_of(&bytes).ok_or_else(|| fault(PtauFault::Point { section: 3, index }))?;
            transcript.push(hash::parts(&[&bytes]));
            g2.push(point);
        }
        if g1[0] != G1Affine::generator() {
            return Err(fault(PtauFault::Generator(2)));
        }
        if g2.remove(0) != G2Affine::generator() {
            return Err(fault(PtauFault::Generator(3)));
        }
        // tau^n = 1 if and only if tau^(n/2) = 1 or -1.
        let middle = g1[g1.len() / 2];
        if middle == g1[0] || middle == -g1[0] {
            return Err(fault(PtauFault::Degenerate));
        }
        let verifier = VerifierParams::new(g2).ok_or(ParamsError::Height(height))?;
        // The seed hashes all points: so the points cannot be chosen to fit the coefficients.
        let seed = hash::parts(&transcript.iter().map(|hash| &hash[..]).collect::<Vec<_>>());
        Self::check(&g1, &verifier, &seed).map_err(fault)?;
        meter.add(g1.len())?;
        Ok(Self { g1, verifier })
    }

    /// Checks that every power in G1 is tau times the one before, and that the powers in G2 have
    /// the same exponents as those in G1: by random combinations of these equations, one pairing
    /// for each side.
    fn check(g1: &[G1Affine], verifier: &VerifierParams, seed: &B256) -> Result<(), PtauFault> {
        let (lower, upper) = (&g1[..g1.len() - 1], &g1[1..]);
        let coefficients: Vec<_> =
            (0..g1.len()).into_par_iter().map(|i| Fr::from(coefficient(seed, i))).collect();
        let combine = |points: &[G1Affine]| {
            G1Projective::msm_unchecked(points, &coefficients[..points.len()]).into_affine()
        };
        let (lower, upper) = rayon::join(|| combine(lower), || combine(upper));
        if !verifier.is_tau_times(lower, upper) {
            return Err(PtauFault::PowersG1);
        }
        let same: Vec<G1Affine> = (0..verifier.height()).map(|k| g1[1 << k]).collect();
        let combined = G2Projective::msm_unchecked(verifier.tau_g2(), &coefficients[..same.len()]);
        let pairs = ([combine(&same), -g1[0]], [G2Affine::generator(), combined.into_affine()]);
        if !Bn254::multi_pairing(pairs.0, pairs.1).is_zero() {
            return Err(PtauFault::PowersG2);
        }
        Ok(())
    }
}

/// An open file. Its layout fits its length.
struct PtauFile<'a> {
    path: &'a Path,
    file: File,
    power: u32,
    /// Where sections 2 and 3 begin.
    starts: [u64; 2],
}

impl<'a> PtauFile<'a> {
    fn open(path: &'a Path) -> Result<Self, ParamsError> {
        let fault = |fault| ParamsError::Ptau { path: path.into(), fault };
        let io = |source| ParamsError::Io { doing: "reading", path: path.into(), source };
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut header = [0; 12];
        read_or(&mut file, &mut header, fault(PtauFault::Magic), io)?;
        let [magic, version, sections] = words(&header);
        if magic != u32::from_le_bytes(*b"ptau") {
            return Err(fault(PtauFault::Magic));
        }
        if version != 1 {
            return Err(fault(PtauFault::Version(version)));
        }

        // Start and length of sections 1, 2, 3.
        let mut found: [Option<(u64, u64)>; 3] = [None; 3];
        let mut at = header.len() as u64;
        for _ in 0..sections.min(MAX_SECTIONS) {
            let mut head = [0; 12];
            file.seek(SeekFrom::Start(at)).map_err(io)?;
            read_or(&mut file, &mut head, fault(PtauFault::Truncated), io)?;
            let [kind, low, high] = words(&head);
            let len = u64::from(high) << 32 | u64::from(low);
            let start = at + head.len() as u64;
            let end = start.checked_add(len).filter(|end| *end <= length);
            at = end.ok_or_else(|| fault(PtauFault::Section(kind)))?;
            if (1..=3).contains(&kind) && found[kind as usize - 1].replace((start, len)).is_some() {
                return Err(fault(PtauFault::Section(kind)));
            }
        }
        let section =
            |kind: u32| found[kind as usize - 1].ok_or_else(|| fault(PtauFault::Section(kind)));

        let (start, len) = section(1)?;
        if len != 44 {
            return Err(fault(PtauFault::SectionLength(1)));
        }
        let mut contents = [0; 44];
        file.seek(SeekFrom::Start(start)).map_err(io)?;
        file.read_exact(&mut contents).map_err(io)?;
        let [coordinate_len] = words(&contents);
        let [power] = words(&contents[36..]);
        if coordinate_len != 32 || contents[4..36] != Fq::MODULUS.to_bytes_le() {
            return Err(fault(PtauFault::Curve));
        }
        let (start_g1, len_g1) = section(2)?;
        let (start_g2, len_g2) = section(3)?;
        if power > MAX_POWER || len_g1 != ((2 << power) - 1) * G1_LEN {
            return Err(fault(PtauFault::SectionLength(2)));
        }
        if len_g2 != G2_LEN << power {
            return Err(fault(PtauFault::SectionLength(3)));
        }
        Ok(Self { path, file, power, starts: [start_g1, start_g2] })
    }

    /// `len` bytes of section 2 or 3 from `offset` on. They must be within the section.
    fn read(&mut self, section: u32, offset: u64, len: u64) -> Result<Vec<u8>, ParamsError> {
        let mut bytes = vec![0; len as usize];
        let start = self.starts[section as usize - 2] + offset;
        self.file
            .seek(SeekFrom::Start(start))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|source| ParamsError::Io {
                doing: "reading",
                path: self.path.into(),
                source,
            })?;
        Ok(bytes)
    }
}

/// Fills `bytes`. `short` is the error if the file ends before.
fn read_or(
    file: &mut File,
    bytes: &mut [u8],
    short: ParamsError,
    io: impl Fn(io::Error) -> ParamsError,
) -> Result<(), ParamsError> {
    file.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => short,
        _ => io(error),
    })
}

/// The first N numbers of `bytes`, which must have that many.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| u32::from_le_bytes(bytes.as_chunks().0[i]))
}

/// A point of G1, not infinity.
fn g1(bytes: &[u8]) -> Option<G1Affine> {
    let point = G1Point::from_xy(montgomery(&bytes[..32])?, montgomery(&bytes[32..])?);
    point.is_on_curve().then(|| point.into())
}

/// A point of G2, not infinity.
fn g2_of(bytes: &[u8]) -> Option<G2Affine> {
    let coordinates = bytes.chunks_exact(32).map(montgomery).collect::<Option<Vec<_>>>()?;
    let [x0, x1, y0, y1] = coordinates[..] else { return None };
    let point = G2Affine::new_unchecked(Fq2::new(x0, x1), Fq2::new(y0, y1));
    let valid = point.is_on_curve() && point.is_in_correct_subgroup_assuming_on_curve();
    (valid && !point.is_zero()).then_some(point)
}
