//! Parameter files: written once, then mapped into memory. `docs/formats/lvmt-params.md` has the
//! bytes.
//!
//! A checksum detects damage, but not a file that was changed on purpose. A wrong table makes wrong
//! commitments, which every other node detects. Still, loading compares the tables with the
//! verifier's parameters in the same file, whose digest users can compare: one identity over a
//! whole table, and pairings on a sample.

use super::{
    EntryOpening, FileFault, LvmtParams, ParamsError, VerifierParams,
    tables::PointTable,
    verifier::{coefficient, combine},
};
use crate::{
    amt::{MAX_HEIGHT, SLOTS, VERSION_BITS, domain_point},
    hash,
    point::{G1Point, PointAdder},
};
use alloy_primitives::B256;
use ark_bn254::{G1Affine, G1Projective};
use ark_ec::{AffineRepr, CurveGroup};
use ark_ff::{AdditiveGroup, Field};
use memmap2::Mmap;
use rayon::prelude::*;
use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
    sync::Arc,
};
use zerocopy::IntoBytes;

const MAGIC: &[u8; 8] = b"retrLVMT";
const VERSION: u32 = 1;
/// Bytes of the header: a page.
const HEADER: usize = 4096;
const INSECURE: u8 = 1;
const QUOTIENTS: u8 = 2;
const COMMITMENTS: &str = "commitments";
const QUOTIENTS_TABLE: &str = "quotients";
/// Entries whose points are checked by pairings.
const SAMPLE: usize = 16;

impl LvmtParams {
    /// Writes a parameter file; it appears under its name only when it is whole and on disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ParamsError> {
        refuse_big_endian(path)?;
        let io = |source| ParamsError::Io { doing: "writing", path: path.into(), source };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (increments, quotients) = self.tables();
        let tables = [increments.as_bytes(), quotients.map_or(&[][..], |table| table.as_bytes())];
        let flags = [(self.is_insecure(), INSECURE), (quotients.is_some(), QUOTIENTS)];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        let header = ParamsHeader {
            flags,
            verifier: self.verifier().clone(),
            checksums: tables.map(checksum),
        };
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let mut file = builder.tempfile_in(folder).map_err(io)?;
        file.write_all(&header.encode()).map_err(io)?;
        for table in tables {
            file.write_all(table).map_err(io)?;
        }
        file.as_file().sync_all().map_err(io)?;
        file.persist(path).map_err(|error| io(error.error))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
    }

    /// Maps a parameter file and checks it: the checksums, and that the tables belong to the
    /// verifier's parameters. The caller compares the [digest](Self::digest) with a trusted one.
    ///
    /// # Errors
    /// The file cannot be read, or is not as it was written.
    pub fn load(path: &Path) -> Result<Self, ParamsError> {
        refuse_big_endian(path)?;
        let fault = |fault| ParamsError::File { path: path.into(), fault };
        let io = |source| ParamsError::Io { doing: "reading", path: path.into(), source };
        let mut file = File::open(path).map_err(io)?;
        let header = ParamsHeader::read(&mut file, path)?;
        // SAFETY: parameter files are never changed in place, only replaced as a whole by renaming.
        // If another process changes the bytes all the same, any bytes are valid points for the
        // type system.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(io)?);
        let (have, want) = (map.len() as u64, header.file_len());
        if have != want {
            return Err(fault(FileFault::Length { have, want }));
        }
        let height = header.verifier.height();
        let increments_end = HEADER + header.table_len(1);
        let table = |range| PointTable::Mapped(map.clone(), range);
        let increments = table(HEADER..increments_end);
        let quotients = (header.flags & QUOTIENTS != 0).then(|| table(increments_end..map.len()));
        for (table, name, sum) in [
            (Some(&increments), COMMITMENTS, header.checksums[0]),
            (quotients.as_ref(), QUOTIENTS_TABLE, header.checksums[1]),
        ] {
            let points = table.map_or(&[][..], PointTable::points);
            let is_point = |point: &G1Point| {
                point.is_reduced() && (point.is_infinity() || point.is_on_curve())
            };
            if checksum(points.as_bytes()) != sum || !points.par_iter().all(is_point) {
                return Err(fault(FileFault::Table(name)));
            }
        }
        let seed = hash::parts(&[b"retrie lvmt sample 1", &header.encode()]);
        let params = Self::from_tables(header.verifier, increments, quotients);
        if params.is_insecure() != (header.flags & INSECURE != 0) {
            return Err(fault(FileFault::Header));
        }
        let sample = sample(&seed, height);
        if !params.increments_belong(&sample, &seed) {
            return Err(fault(FileFault::Foreign(COMMITMENTS)));
        }
        if params.has_quotients() && !params.quotients_belong(&sample, &seed) {
            return Err(fault(FileFault::Foreign(QUOTIENTS_TABLE)));
        }
        Ok(params)
    }

    /// The verifier's parameters in a parameter file. Reads only the header.
    ///
    /// # Errors
    /// The file cannot be read, or its header is not as it was written.
    pub fn load_verifier(path: &Path) -> Result<VerifierParams, ParamsError> {
        let io = |source| ParamsError::Io { doing: "reading", path: path.into(), source };
        Ok(ParamsHeader::read(&mut File::open(path).map_err(io)?, path)?.verifier)
    }

    /// Checks the increments. I_e(tau) is c / (tau / x_e - 1) with the same c for all entries, and
    /// the sum over all entries is one. The sum covers the whole table; the rest is checked on a
    /// sample.
    fn increments_belong(&self, sample: &[u32], seed: &B256) -> bool {
        let mut terms =
            (0..1u32 << self.height()).map(|entry| (0, *self.increment(entry, 0))).collect();
        let mut sum = [G1Point::INFINITY];
        PointAdder::default().sum(&mut sum, &mut terms);
        if sum[0] != G1Affine::generator().into() {
            return false;
        }
        for entry in sample {
            let mut point = G1Projective::from(G1Affine::from(*self.increment(*entry, 0)));
            for slot in 0..SLOTS {
                let in_table = self.increment(*entry, slot);
                if !in_table.is_on_curve() || point != G1Affine::from(*in_table) {
                    return false;
                }
                for _ in 0..VERSION_BITS {
                    point.double_in_place();
                }
            }
        }
        // For two entries e and f: (I_e / x_e - I_f / x_f) tau = I_e - I_f.
        let (mut with_tau, mut without) = (Vec::new(), Vec::new());
        let term = |entry: u32| {
            let point = G1Affine::from(*self.increment(entry, 0));
            let x = domain_point(self.height(), entry);
            (point * x.inverse().expect("roots of unity are not zero"), point)
        };
        for pair in sample.windows(2) {
            let ((e_by_x, e), (f_by_x, f)) = (term(pair[0]), term(pair[1]));
            with_tau.push(e_by_x - f_by_x);
            without.push(e - f);
        }
        let coefficients: Vec<u128> = (0..with_tau.len()).map(|i| coefficient(seed, i)).collect();
        let [with_tau, without] = [with_tau, without].map(|points| {
            combine(&G1Projective::normalize_batch(&points), &coefficients).into_affine()
        });
        self.verifier().is_tau_times(with_tau, without)
    }

    /// Checks the quotients on a sample: for a vector with a single version of one, the tables
    /// contain commitment and quotients, and these must be a valid opening.
    fn quotients_belong(&self, sample: &[u32], seed: &B256) -> bool {
        let slots = sample.iter().flat_map(|entry| (0..SLOTS).map(move |slot| (*entry, slot)));
        let openings: Vec<_> = slots
            .map(|(entry, slot)| {
                let mut versions = [0; SLOTS];
                versions[slot] = 1;
                let quotients = self.quotient_increments(entry, slot);
                EntryOpening {
                    commitment: *self.increment(entry, slot),
                    entry,
                    versions,
                    quotients,
                }
            })
            .collect();
        let mut points = openings.iter().flat_map(|opening| opening.quotients);
        // A point outside of the group has no place in a pairing.
        points.all(|point| point.is_infinity() || point.is_on_curve())
            && self.verifier().check_openings(&openings, &seed.0)
    }
}

/// The header of a parameter file: its first page.
struct ParamsHeader {
    flags: u8,
    verifier: VerifierParams,
    /// CRC-32 of the tables of increments and of quotients.
    checksums: [u32; 2],
}

impl ParamsHeader {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([self.flags, 0, 0, 0]);
        bytes.extend(self.file_len().to_le_bytes());
        bytes.extend(self.checksums.iter().flat_map(|sum| sum.to_le_bytes()));
        bytes.extend(self.verifier.digest());
        bytes.extend(self.verifier.to_bytes());
        bytes.resize(HEADER - 4, 0);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    fn read(file: &mut File, path: &Path) -> Result<Self, ParamsError> {
        let fault = |fault| ParamsError::File { path: path.into(), fault };
        let io = |source| ParamsError::Io { doing: "reading", path: path.into(), source };
        let mut bytes = Vec::with_capacity(HEADER);
        Read::take(file, HEADER as u64).read_to_end(&mut bytes).map_err(io)?;
        if !bytes.starts_with(MAGIC) {
            return Err(fault(FileFault::Magic));
        }
        if bytes.len() < HEADER {
            let (have, want) = (bytes.len() as u64, HEADER as u64);
            return Err(fault(FileFault::Length { have, want }));
        }
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if number(8) != VERSION {
            return Err(fault(FileFault::Version(number(8))));
        }
        let height = usize::from(bytes[64]);
        if crc32fast::hash(&bytes[..HEADER - 4]) != number(HEADER - 4)
            || !(1..=usize::from(MAX_HEIGHT)).contains(&height)
        {
            return Err(fault(FileFault::Header));
        }
        let header = VerifierParams::from_bytes(&bytes[64..65 + height * 128])
            .map(|verifier| Self {
                flags: bytes[12],
                verifier,
                checksums: [number(24), number(28)],
            })
            // A header has one encoding.
            .filter(|header| {
                header.flags & !(INSECURE | QUOTIENTS) == 0 && header.encode() == bytes
            });
        header.ok_or_else(|| fault(FileFault::Header))
    }

    /// Bytes of a table with `points` points for each slot.
    fn table_len(&self, points: usize) -> usize {
        (SLOTS * points * size_of::<G1Point>()) << self.verifier.height()
    }

    fn file_len(&self) -> u64 {
        let quotients = usize::from(self.flags & QUOTIENTS != 0);
        let per_slot = 1 + quotients * usize::from(self.verifier.height());
        (HEADER + self.table_len(per_slot)) as u64
    }
}

/// CRC-32 (IEEE), on all cores.
fn checksum(bytes: &[u8]) -> u32 {
    let parts: Vec<_> = bytes
        .par_chunks(1 << 20)
        .map(|bytes| {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(bytes);
            hasher
        })
        .collect();
    let mut whole = crc32fast::Hasher::new();
    parts.iter().for_each(|part| whole.combine(part));
    whole.finalize()
}

/// The first and the last entry, and some that depend on the whole header.
fn sample(seed: &B256, height: u8) -> Vec<u32> {
    let last = (1 << height) - 1;
    let random = (0..SAMPLE).map(|i| coefficient(seed, i) as u32 & last);
    [0, last].into_iter().chain(random).collect()
}

fn refuse_big_endian(path: &Path) -> Result<(), ParamsError> {
    if cfg!(target_endian = "big") {
        return Err(ParamsError::File { path: path.into(), fault: FileFault::Endian });
    }
    Ok(())
}
