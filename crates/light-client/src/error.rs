//! Why an answer was refused.

use alloc::string::String;
use alloy_primitives::B256;
use retrie_state::{KeyForm, ProofError, StateKey};

/// Why an answer or a proof was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LightClientError {
    /// This crate has no verifier for such proofs.
    #[error(
        "there is no verifier for proofs of backend {backend}, version {version}, hash function \
         {hash}: ask another node, or take a newer light client"
    )]
    UnknownKind {
        /// Backend named by the proof.
        backend: String,
        /// Its version.
        version: u32,
        /// Its hash function.
        hash: String,
    },
    /// The proof was made with parameters that are not pinned.
    #[error(
        "the proof is made under the {backend} parameters {digest}, which are not among those \
         pinned: give the verifier's parameters of this digest if you trust them"
    )]
    UnknownParams {
        /// Backend named by the proof.
        backend: String,
        /// Digest of the parameters.
        digest: B256,
    },
    /// The proof is of a store whose keys have another form than those of the trusted root.
    #[error(
        "the proof is of a store of {} keys, the trusted root of one of {} keys",
        proof.name(),
        trusted.name()
    )]
    OtherKeys {
        /// The form that the caller trusts.
        trusted: KeyForm,
        /// The form that the proof names.
        proof: KeyForm,
    },
    /// The bytes are not the trusted header, or no header at all.
    #[error("the header of block hash {hash} is refused: {fault}")]
    Header {
        /// The trusted hash.
        hash: B256,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// The proof names another block than the trusted one.
    #[error("the proof is of block {proof}, the trusted root of block {trusted}")]
    OtherBlock {
        /// The trusted block, number or hash.
        trusted: String,
        /// The block that the proof names.
        proof: String,
    },
    /// The proof claims to show a block later than the block whose root it leads to.
    #[error("a proof under the root of block {proven} says nothing of the later block {asked}")]
    LaterBlock {
        /// The later block.
        asked: u64,
        /// The block whose root the proof leads to.
        proven: u64,
    },
    /// The proof leads to another root than the trusted one.
    #[error(
        "the proof leads to root {proof}, but the trusted root is {trusted}; if the backend's roots \
         are not in the headers of the chain, pin a checkpoint instead of a header"
    )]
    OtherRoot {
        /// The trusted root.
        trusted: B256,
        /// The root that the proof names.
        proof: B256,
    },
    /// The verifier of the backend rejects the proof.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The proof is valid, but shows another value than the answer states.
    #[error("the answer states another value of {key} than its proof shows")]
    Claim {
        /// The key.
        key: StateKey,
    },
    /// The proof is valid, but the value it shows is not an encoded account or slot.
    #[error("the proven value of {key} is not in the canonical encoding")]
    Value {
        /// The key.
        key: StateKey,
    },
    /// A call cannot be executed on what its answer shows.
    #[error("the call cannot be executed on what the answer proves: {why}")]
    Call {
        /// Why, with the key that is missing.
        why: String,
    },
    /// A call ends otherwise than its answer states.
    #[error("the answer states another {what} of the call than its execution has")]
    CallOutcome {
        /// What differs.
        what: &'static str,
    },
    /// This crate has no verifier for such an answer of `state_getLogs`.
    #[error(
        "there is no verifier for answers of state_getLogs of version {version}: ask another node, or \
         take a newer light client"
    )]
    LogsVersion {
        /// The version that it names.
        version: u32,
    },
    /// An answer of `state_getLogs` is of other blocks than the filter's.
    #[error("the answer is of {shown}, the filter asks for {asked}")]
    OtherRange {
        /// The blocks of the filter.
        asked: String,
        /// The blocks of the answer.
        shown: String,
    },
    /// An answer of `state_getLogs` does not show the logs of a block, or states others.
    #[error("the logs of block {block} are refused: {fault}")]
    Logs {
        /// Number of the block.
        block: u64,
        /// What is wrong.
        fault: LogsFault,
    },
    /// An index table of an answer of `state_getLogs` is refused.
    #[cfg(feature = "logs")]
    #[error("the index table of {size} blocks from block {first} on is refused: {fault}")]
    Table {
        /// Its first block.
        first: u64,
        /// Number of its blocks.
        size: u64,
        /// What is wrong.
        fault: TableFault,
    },
    /// The code does not have the account's code hash.
    #[error("the code has hash {got}, the account names {expected}")]
    Code {
        /// Code hash of the account.
        expected: B256,
        /// Hash of the given code.
        got: B256,
    },
}

impl LightClientError {
    /// The class of the error in one word. All verifiers of these formats use the same classes, see
    /// `docs/formats/proofs.md`.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::UnknownKind { .. }
            | Self::UnknownParams { .. }
            | Self::OtherKeys { .. }
            | Self::LogsVersion { .. }
            | Self::Proof(ProofError::WrongKind { .. }) => "kind",
            Self::Header { .. } => "header",
            Self::OtherBlock { .. } | Self::LaterBlock { .. } | Self::OtherRange { .. } => "block",
            Self::OtherRoot { .. } | Self::Proof(ProofError::RootMismatch) => "root",
            Self::Proof(ProofError::Missing { .. }) => "missing",
            Self::Proof(ProofError::Unused) => "unused",
            // `Malformed`, and variants that may be added.
            Self::Proof(_) => "malformed",
            Self::Call { .. } => "call",
            Self::Claim { .. } | Self::CallOutcome { .. } => "claim",
            Self::Value { .. } => "value",
            Self::Code { .. } => "code",
            Self::Logs { fault, .. } => fault.class(),
            #[cfg(feature = "logs")]
            Self::Table { fault, .. } => fault.class(),
        }
    }
}

/// What is wrong with what an answer of `state_getLogs` has of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogsFault {
    /// There are no receipts, though the bloom of the header matches.
    #[error("the bloom of its header matches the filter, but its receipts are left out")]
    MissingReceipts,
    /// There are receipts, though the bloom of the header does not match.
    #[error("the bloom of its header does not match the filter, but there are receipts")]
    SurplusReceipts,
    /// The receipts are no RLP of receipts as EIP-7642 has them.
    #[error("its receipts are no list of receipts as EIP-7642 has them")]
    MalformedReceipts,
    /// The receipts are others than those of the header.
    #[error("its receipts have root {0}, its header names another one")]
    ReceiptsRoot(B256),
    /// A node of the trie of receipts is left out.
    #[error("the node {0} of the trie of its receipts is left out")]
    MissingNode(B256),
    /// A node of the trie of receipts is not needed.
    #[error("a node of the trie of its receipts is not needed")]
    SurplusNode,
    /// There is no receipt of a transaction that an index table names.
    #[error("there is no receipt of its transaction {0}, which an index table names")]
    NoReceipt(u32),
    /// No index table shows a transaction that has a matching log.
    #[error("no index table shows its transaction {0}, which has a matching log")]
    MissingTransaction(u32),
    /// No index table shows that the block of a header is this one.
    #[error("no index table shows that it has the header of hash {0}")]
    OtherBlock(B256),
    /// The slots that are shown are not those of the index tables.
    #[error(
        "the answer must show the roots of its index tables in the index contract, or the caller must \
         give them"
    )]
    OtherState,
    /// The answer states other logs than the receipts have.
    #[error("the answer states other logs than its receipts have")]
    StatedLogs,
}

impl LogsFault {
    const fn class(self) -> &'static str {
        match self {
            Self::MissingReceipts
            | Self::MissingNode(_)
            | Self::MissingTransaction(_)
            | Self::OtherState => "missing",
            Self::SurplusReceipts | Self::SurplusNode => "unused",
            Self::MalformedReceipts | Self::NoReceipt(_) => "malformed",
            Self::ReceiptsRoot(_) => "root",
            Self::OtherBlock(_) => "header",
            Self::StatedLogs => "claim",
        }
    }
}

/// What is wrong with an index table of an answer of `state_getLogs`.
#[cfg(feature = "logs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableFault {
    /// There is no such table, or its bytes are no entries and nodes.
    #[error("there is no such table, or its bytes are no entries in order")]
    Malformed,
    /// Its nodes do not fit its entries.
    #[error(transparent)]
    Proof(retrie_log_tables::TableProofError),
    /// Its entries lead to another root.
    #[error("its entries lead to root {0}, which is not the trusted one")]
    Root(B256),
    /// The trusted state does not have its root.
    #[error("the index contract does not have its root, or the caller gave none")]
    NotStored,
    /// No table has a block of the range.
    #[error("it is missing, or a table before it")]
    Gap,
    /// It shows all entries of no condition of the filter.
    #[error("it does not show all entries of any condition of the filter")]
    Incomplete,
    /// It is not needed, or an entry of it.
    #[error("it has entries that are not needed")]
    Surplus,
}

#[cfg(feature = "logs")]
impl TableFault {
    const fn class(self) -> &'static str {
        use retrie_log_tables::TableProofError;

        match self {
            Self::Malformed | Self::Proof(TableProofError::Disorder) => "malformed",
            Self::Root(_) => "root",
            Self::Proof(TableProofError::MissingNode)
            | Self::NotStored
            | Self::Gap
            | Self::Incomplete => "missing",
            Self::Proof(TableProofError::SurplusNode) | Self::Surplus => "unused",
        }
    }
}

/// What is wrong with the bytes of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The bytes have another keccak-256 than the trusted hash.
    #[error("its bytes have hash {0}")]
    OtherHash(B256),
    /// The bytes are not the RLP of a header.
    #[error("its bytes are no RLP of a header")]
    Malformed,
    /// The header of a parent has a number that is not one less than its child's.
    #[error("its number {0} is not one less than that of the block whose parent it is")]
    OtherNumber(u64),
}
