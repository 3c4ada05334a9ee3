//! What can be wrong with a chain's description.

use std::path::PathBuf;

/// Why a chain specification could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainSpecError {
    /// The name is neither a known network nor a readable file name.
    #[error(
        "unknown chain {name:?}: expected mainnet, sepolia, holesky, hoodi, dev or the path of a \
         genesis JSON file"
    )]
    UnknownChain {
        /// The name that was given.
        name: String,
    },
    /// The genesis file could not be read.
    #[error("cannot read genesis file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system answered.
        source: std::io::Error,
    },
    /// An error inside a genesis file, with the file's name.
    #[error("genesis file {}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: Box<Self>,
    },
    /// The text is no JSON, or not an object where one is needed.
    #[error("{field} is not a JSON object: {reason}")]
    NotAnObject {
        /// Dotted path of the value; `genesis` for the whole file.
        field: String,
        /// The parser's message, with line and column.
        reason: String,
    },
    /// A required field is absent.
    #[error("field {field} is missing: {reason}")]
    MissingField {
        /// Dotted path of the field.
        field: String,
        /// Why it is needed.
        reason: String,
    },
    /// A field has a value that is not allowed.
    #[error("field {field} is {value}, expected {expected}")]
    BadField {
        /// Dotted path of the field.
        field: String,
        /// The value found, shortened.
        value: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// A field this client does not know, where ignoring it would change the chain's rules.
    #[error("field {field} is unknown: correct its spelling or remove it")]
    UnknownField {
        /// Dotted path of the field.
        field: String,
    },
    /// A fork is scheduled before a fork it builds upon.
    #[error("config.{later} = {later_at} lies before config.{earlier} = {earlier_at}")]
    ForkOrder {
        /// Field of the fork that comes first in the protocol.
        earlier: &'static str,
        /// Its activation block or time (seconds).
        earlier_at: u64,
        /// Field of the fork that builds upon it.
        later: &'static str,
        /// Its activation block or time (seconds).
        later_at: u64,
    },
    /// The chain needs rules this client does not implement.
    #[error("field {field} asks for {what}, which is not supported: {hint}")]
    Unsupported {
        /// Dotted path of the field.
        field: String,
        /// The feature.
        what: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// The chain was built from parts for which genesis files have no fields.
    #[error("chain {chain} cannot be written as a genesis file: {what}")]
    Inexpressible {
        /// Name of the chain.
        chain: String,
        /// What cannot be written.
        what: String,
    },
}

/// Why a packed genesis allocation could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The zlib stream is damaged.
    #[error("packed allocation: zlib stream is damaged: {0}")]
    Zlib(String),
    /// Wrong magic or version.
    #[error("packed allocation: starts with {got:02x?}, expected magic \"RGEN\" and version 1")]
    Header {
        /// The first bytes found.
        got: Vec<u8>,
    },
    /// The data ends early, at this offset of the inflated stream.
    #[error("packed allocation: ends early at byte {offset}")]
    Truncated {
        /// Offset in the inflated stream, in bytes.
        offset: usize,
    },
    /// A length, flag or order rule is violated at this offset of the inflated stream.
    #[error("packed allocation: {what} at byte {offset}")]
    Malformed {
        /// Which rule.
        what: &'static str,
        /// Offset in the inflated stream, in bytes.
        offset: usize,
    },
}
