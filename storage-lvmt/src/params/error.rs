//! Errors of public parameters.

use std::{io, path::PathBuf};

/// Why there are no parameters. The texts name the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ParamsError {
    /// Heights are 1 to 16.
    #[error("AMTs have no height {0}: choose 1 to 16")]
    Height(u8),
    /// The file system failed.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What the program was doing.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// A parameter file of retrie is not as it was written.
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
    /// A later version of the program wrote it.
    #[error("version {0} of the file is not known")]
    Version(u32),
    /// Its length is not the one that its header says.
    #[error("the file has {have} bytes and should have {want}")]
    Length {
        /// Bytes of the file.
        have: u64,
        /// Bytes according to the header.
        want: u64,
    },
    /// The checksum or the contents of the header are wrong.
    #[error("the header is damaged")]
    Header,
    /// The checksum of a table is wrong, or a coordinate is not below the modulus.
    #[error("the table of {0} is damaged")]
    Table(&'static str),
    /// The table belongs to another tau than the verifier's part.
    #[error("the table of {0} does not belong to the verifier's parameters")]
    Foreign(&'static str),
    /// The machine is big-endian; tables are little-endian.
    #[error("parameter files need a little-endian machine")]
    Endian,
}

/// What is wrong with a powers-of-tau file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtauFault {
    /// It does not begin with `ptau`.
    #[error("this is no powers-of-tau file of snarkjs")]
    Magic,
    /// The version is not 1.
    #[error("version {0} of the file is not known: only 1 is")]
    Version(u32),
    /// The file ends before its last section.
    #[error("the file is cut off: fetch it again")]
    Truncated,
    /// A section is missing, comes twice, or ends after the end of the file.
    #[error("section {0} is missing, repeated or cut off: fetch the file again")]
    Section(u32),
    /// The length of a section does not fit the number of powers.
    #[error("section {0} has a wrong length: fetch the file again")]
    SectionLength(u32),
    /// The field is not the one of BN254.
    #[error("the curve is not BN254")]
    Curve,
    /// The file has too few powers.
    #[error("it has 2^{power} powers of tau, height {height} needs 2^{height}: take a larger file")]
    TooSmall {
        /// The file has 2^power powers.
        power: u32,
        /// The requested height.
        height: u8,
    },
    /// A coordinate is not below the modulus, or the point is infinity or not on the curve.
    #[error("power {index} in section {section} is no point of the group")]
    Point {
        /// 2 for G1, 3 for G2.
        section: u32,
        /// The exponent of tau.
        index: u64,
    },
    /// The zeroth power is not the generator.
    #[error("section {0} does not begin with the generator")]
    Generator(u32),
    /// tau is a root of unity: so it is public, and any opening can be forged.
    #[error("its tau is a root of unity: the ceremony is worthless")]
    Degenerate,
    /// The powers in G1 are not the powers of one tau.
    #[error("the powers in section 2 are not those of one tau")]
    PowersG1,
    /// The powers in G2 are not the powers of the same tau.
    #[error("the powers in section 3 are not those of the same tau")]
    PowersG2,
}
