//! What can be wrong with public parameters.

use std::{io, path::PathBuf};

/// Why there are no parameters. Names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ParamsError {
    /// Heights are 1 to 16.
    #[error("AMTs have no height {0}: choose 1 to 16")]
    Height(u8),
    /// The file system failed.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// What came of it.
        source: io::Error,
    },
    /// A parameter file of ours is not as it was written.
    #[error("{}: {fault}; make it anew with `retrie params lvmt`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: FileFault,
    },
    /// A powers-of-tau file cannot be used.
    #[error("{}: {fault}", path.display())]
    Ptau {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: PtauFault,
    },
    /// The progress callback said to stop.
    #[error("stopped before the parameters were made; run the command again")]
    Stopped,
}

/// What is wrong with a parameter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    /// It does not begin with the magic.
    #[error("this is no LVMT parameter file")]
    Magic,
    /// It was written by a later program.
    #[error("version {0} of the file is not known")]
    Version(u32),
    /// It is shorter or longer than it says.
    #[error("the file has {have} bytes and should have {want}")]
    Length {
        /// Bytes there are.
        have: u64,
        /// Bytes there should be.
        want: u64,
    },
    /// Checksum or contents of the header are wrong.
    #[error("the header is damaged")]
    Header,
    /// Checksum of a table, or a coordinate beyond the modulus.
    #[error("the table of {0} is damaged")]
    Table(&'static str),
    /// The table belongs to another tau.
    #[error("the table of {0} does not belong to the verifier's parameters")]
    Foreign(&'static str),
    /// Tables are little-endian.
    #[error("parameter files need a little-endian machine")]
    Endian,
}

/// What is wrong with a powers-of-tau file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtauFault {
    /// It does not begin with `ptau`.
    #[error("this is no powers-of-tau file of snarkjs")]
    Magic,
    /// Not version 1.
    #[error("version {0} of the file is not known: only 1 is")]
    Version(u32),
    /// It ends before its last section.
    #[error("the file is cut off: fetch it again")]
    Truncated,
    /// A section is missing, there twice, or reaches beyond the file.
    #[error("section {0} is missing, repeated or cut off: fetch the file again")]
    Section(u32),
    /// A section has another length than its power demands.
    #[error("section {0} has a wrong length: fetch the file again")]
    SectionLength(u32),
    /// The field is not that of BN254.
    #[error("the curve is not BN254")]
    Curve,
    /// There are too few powers.
    #[error("it has 2^{power} powers of tau, height {height} needs 2^{height}: take a larger file")]
    TooSmall {
        /// What it has.
        power: u32,
        /// What is asked for.
        height: u8,
    },
    /// A coordinate is not below the modulus, or the point is off the curve or infinity.
    #[error("power {index} in section {section} is no point of the group")]
    Point {
        /// 2 for G1, 3 for G2.
        section: u32,
        /// Which power.
        index: u64,
    },
    /// The zeroth power must be the generator.
    #[error("section {0} does not begin with the generator")]
    Generator(u32),
    /// tau is a root of unity: everybody can open anything.
    #[error("its tau is a root of unity: the ceremony is worthless")]
    Degenerate,
    /// Powers of G1 are not those of one tau.
    #[error("the powers in section 2 are not those of one tau")]
    PowersG1,
    /// Powers of G2 are not those of the same tau.
    #[error("the powers in section 3 are not those of the same tau")]
    PowersG2,
}
