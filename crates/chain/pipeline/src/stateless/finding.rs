//! What a lint finds: codes that do not change, and a report.

use alloy_primitives::B256;
use serde::Serialize;
use std::fmt;

/// A kind of difference from the canonical witness. Its name is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingCode {
    /// `state`, `codes` or `headers` is not there.
    MemberMissing,
    /// A member that no witness has.
    MemberUnknown,
    /// A list is written as an object of values by hash, or is null.
    MemberForm,
    /// An entry is not bytes, or a key has neither 20 nor 32 bytes.
    EntryMalformed,
    /// Trie nodes are not in the order of their bytes.
    StateOrder,
    /// A trie node is there twice.
    StateDuplicate,
    /// An entry is no trie node, or not one that its place in the state allows.
    StateMalformed,
    /// The state root does not lead to a node.
    StateUnlinked,
    /// Neither execution nor the root after it needs a node.
    StateUnused,
    /// A node that is needed is not there.
    StateMissing,
    /// Codes are not in the order of their bytes.
    CodesOrder,
    /// A code is there twice.
    CodesDuplicate,
    /// The empty code is there.
    CodesEmpty,
    /// A code that the block itself creates, and that was not read before.
    CodesCreated,
    /// Execution does not read a code.
    CodesUnused,
    /// A code that is read is not there.
    CodesMissing,
    /// `keys` is there and empty.
    KeysEmpty,
    /// Keys are not in the order of their bytes.
    KeysOrder,
    /// A key is there twice.
    KeysDuplicate,
    /// The block neither reads nor writes a key.
    KeysUnused,
    /// A key that the block reads or writes is not there, though `keys` is.
    KeysMissing,
    /// A header is a JSON object.
    HeadersForm,
    /// Headers are not in ascending order of their numbers.
    HeadersOrder,
    /// A header is there twice.
    HeadersDuplicate,
    /// An entry is no header.
    HeadersMalformed,
    /// A header is not that of an ancestor, or one between is missing.
    HeadersUnlinked,
    /// A header is older than all that the block needs.
    HeadersUnused,
    /// The header of the parent, or of an ancestor that BLOCKHASH reads, is not there.
    HeadersMissing,
    /// The block cannot be executed for another reason.
    ExecutionFailed,
    /// Execution gives something else than the header says.
    OutcomeDiffers,
    /// The state root after the block is not that of its header.
    RootDiffers,
}

impl fmt::Display for FindingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One difference from the canonical witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WitnessFinding {
    /// Its kind.
    pub code: FindingCode,
    /// Position of the entry in its list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<usize>,
    /// What it is, for people.
    pub what: String,
}

impl fmt::Display for WitnessFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.what)
    }
}

/// Numbers of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LintCounts {
    /// Trie nodes.
    pub state: usize,
    /// Codes.
    pub codes: usize,
    /// Headers.
    pub headers: usize,
}

/// The result of a lint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LintReport {
    /// Number of the block.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// Entries of the witness.
    pub given: LintCounts,
    /// Entries that were needed, each once.
    pub needed: LintCounts,
    /// Whether the block was executed to its end, and the root after it computed. If not, nobody can
    /// say which entries are unused.
    pub complete: bool,
    /// All differences, list by list.
    pub findings: Vec<WitnessFinding>,
}

/// Collects findings.
#[derive(Debug, Default)]
pub(super) struct FindingList(pub(super) Vec<WitnessFinding>);

impl FindingList {
    /// Adds a finding about a list or the witness as a whole.
    pub(super) fn add(&mut self, code: FindingCode, what: impl Into<String>) {
        self.0.push(WitnessFinding { code, entry: None, what: what.into() });
    }

    /// Adds a finding about the entry `at` of the member `list`.
    pub(super) fn at(&mut self, code: FindingCode, list: &str, at: usize, what: impl fmt::Display) {
        let what = format!("{list}[{at}] {what}");
        self.0.push(WitnessFinding { code, entry: Some(at), what });
    }
}
