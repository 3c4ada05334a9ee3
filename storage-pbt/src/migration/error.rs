//! Why a state cannot be migrated: one variant for each fault.

use super::{file::FilePlace, leaf::TreeKey};
use alloy_primitives::{Address, B256};
use retrie_state::StateError;

/// What is wrong with the files of a migration, or with the state that is to be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    // -- the bytes of a file --------------------------------------------------------------------
    /// The file cannot be read or written.
    #[error("{place}: {source}")]
    Io {
        /// Where.
        place: FilePlace,
        /// The cause.
        source: std::io::Error,
    },
    /// The file ends within a record, or before its end mark.
    #[error("{place}: the file ends within the record that begins here")]
    Truncated {
        /// The record.
        place: FilePlace,
    },
    /// Bytes follow the end.
    #[error("{place}: bytes follow the end")]
    TrailingBytes {
        /// The first one.
        place: FilePlace,
    },
    /// A record comes before one that it must follow.
    #[error("{place}: {key} is not in ascending order")]
    Order {
        /// The record.
        place: FilePlace,
        /// Its key, address or slot.
        key: String,
    },
    /// A record comes twice.
    #[error("{place}: {key} comes twice")]
    Duplicate {
        /// The second one.
        place: FilePlace,
        /// Its key, address or slot.
        key: String,
    },
    /// A record is no RLP list of a key and a value, or not in its shortest form.
    #[error("{place}: {what}")]
    NotRlp {
        /// The record.
        place: FilePlace,
        /// What is wrong.
        what: &'static str,
    },
    /// A record has a tag that is not defined.
    #[error("{place}: there is no tag {tag}")]
    UnknownTag {
        /// The record.
        place: FilePlace,
        /// The tag.
        tag: u8,
    },
    /// A record has a tag that may not come here.
    #[error("{place}: a record with tag {tag} cannot come here")]
    TagOrder {
        /// The record.
        place: FilePlace,
        /// The tag.
        tag: u8,
    },
    /// A key is in a zone that EIP-8297 reserves.
    #[error("{place}: zone {zone:#04x} is reserved")]
    ReservedZone {
        /// The record.
        place: FilePlace,
        /// The first byte of the key.
        zone: u8,
    },
    /// A key does not have the length of keys in its zone.
    #[error("{place}: a key of zone {zone:#04x} has {len} bytes, and must have {expected}")]
    KeyLength {
        /// The record.
        place: FilePlace,
        /// The first byte of the key; 0 if the key is empty.
        zone: u8,
        /// Its length in bytes.
        len: usize,
        /// The length of keys in this zone.
        expected: usize,
    },
    /// A key is at a sub-index of an account header that EIP-8297 does not allocate.
    #[error("{place}: {key} is at a sub-index of a header that has no meaning")]
    SubIndex {
        /// The record.
        place: FilePlace,
        /// The key.
        key: TreeKey,
    },
    /// A leaf is zero, which means that it is absent.
    #[error("{place}: {key} is zero, so it must not be there")]
    ZeroValue {
        /// The record.
        place: FilePlace,
        /// The key.
        key: TreeKey,
    },
    /// A number begins with a zero byte.
    #[error("{place}: {what} begins with a zero byte")]
    LeadingZero {
        /// The record.
        place: FilePlace,
        /// Which number.
        what: &'static str,
    },
    /// A number has too many bytes.
    #[error("{place}: {what} has {len} bytes, and at most {max} are allowed")]
    NumberTooLong {
        /// The record.
        place: FilePlace,
        /// Which number.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The most bytes that it may have.
        max: usize,
    },
    /// The file has another number of leaves than it says.
    #[error("the snapshot says that it has {claimed} leaves, and it has {found}")]
    LeafCount {
        /// The number at its front.
        claimed: u64,
        /// The number of its leaves.
        found: u64,
    },
    /// An account without nonce, balance and code, which typed layouts do not have (EIP-7523).
    #[error("the account with path {account} is empty (EIP-161), which this layout cannot express")]
    EmptyAccount {
        /// The account: H of its name.
        account: B256,
    },
    /// A group of one leaf has the tag of longer groups.
    #[error("{place}: a group of one leaf has its own tag, and no number of leaves")]
    GroupForm {
        /// The record.
        place: FilePlace,
    },
    /// A storage has no group.
    #[error("{place}: the storage of the account with path {account} has no groups")]
    EmptyStorage {
        /// The record.
        place: FilePlace,
        /// The account: H of its name.
        account: B256,
    },
    /// The file has another digest than the caller was told.
    #[error("the {file} has the digest {found}, and {expected} is expected")]
    Digest {
        /// The file.
        file: super::MigrationFile,
        /// The digest that it should have.
        expected: B256,
        /// keccak-256 of its bytes.
        found: B256,
    },

    // -- accounts -------------------------------------------------------------------------------
    /// A header has basic data, but neither a code hash nor a delegation.
    #[error("the header with path {account} has neither a code hash nor a delegation")]
    NoCodeLeaf {
        /// The account: H of its name.
        account: B256,
    },
    /// A header has a code hash and a delegation.
    #[error("the header with path {account} has a code hash and a delegation")]
    TwoCodeLeaves {
        /// The account: H of its name.
        account: B256,
    },
    /// A header has slots and no account.
    #[error("the header with path {account} has slots, but no account")]
    NoAccount {
        /// The account: H of its name.
        account: B256,
    },
    /// Basic data have a version that EIP-8297 does not define.
    #[error("the basic data of the account with path {account} have version {version}")]
    Version {
        /// The account: H of its name.
        account: B256,
        /// The version.
        version: u8,
    },
    /// The reserved bytes of basic data are not zero.
    #[error("the basic data of the account with path {account} use reserved bytes")]
    ReservedBytes {
        /// The account: H of its name.
        account: B256,
    },
    /// A delegation leaf is not `ef0100`, an address, and nine zero bytes.
    #[error("the delegation of the account with path {account} is none of EIP-7702")]
    BadDelegation {
        /// The account: H of its name.
        account: B256,
    },
    /// The size of a code is zero and its hash is not that of no code, or the other way round; or the
    /// size of a delegation is not 23.
    #[error(
        "the account with path {account} says that its code has {size} bytes, which its code \
             hash or delegation contradicts"
    )]
    CodeSize {
        /// The account: H of its name.
        account: B256,
        /// The size in bytes.
        size: u32,
    },

    // -- codes ----------------------------------------------------------------------------------
    /// Two accounts with the same code give it different sizes.
    #[error("accounts give code {code} the sizes {one} and {other}")]
    CodeSizes {
        /// keccak-256 of the code.
        code: B256,
        /// A size in bytes.
        one: u32,
        /// Another one.
        other: u32,
    },
    /// A code is longer than any that can be.
    #[error(
        "an account says that code {code} has {size} bytes, and at most {} are possible",
        super::code::MAX_CODE_LEN
    )]
    CodeTooLong {
        /// keccak-256 of the code.
        code: B256,
        /// Its size in bytes.
        size: u32,
    },
    /// A delegation (EIP-7702) is kept as code.
    #[error("code {code} is a delegation, which must be in the header and has no chunks")]
    IndicatorAsCode {
        /// keccak-256 of the indicator.
        code: B256,
    },
    /// A chunk belongs to no code that an account has.
    #[error("{key} is a chunk of code that no account has")]
    UnreferencedCode {
        /// The leaf.
        key: TreeKey,
    },
    /// A chunk lies behind the end of its code.
    #[error("code {code} has {size} bytes, and there is a chunk {chunk}")]
    SurplusChunk {
        /// keccak-256 of the code.
        code: B256,
        /// The number of the chunk, from 0 on.
        chunk: u32,
        /// The size of the code in bytes.
        size: u32,
    },
    /// A chunk is not the one that the code has there: the byte in front, or bytes behind the end of
    /// the code, are wrong.
    #[error("chunk {chunk} of code {code} is not the one that this code has")]
    WrongChunk {
        /// keccak-256 of the code.
        code: B256,
        /// The number of the chunk, from 0 on.
        chunk: u32,
    },
    /// The chunks of a code make a code with another hash.
    #[error("the chunks of code {code} make a code with keccak-256 {found}")]
    CodeHash {
        /// keccak-256 of the code, as accounts have it.
        code: B256,
        /// keccak-256 of the chunks.
        found: B256,
    },

    // -- both trees -----------------------------------------------------------------------------
    /// The leaves have another root than the snapshot says.
    #[error("the leaves have the root {found}, and the snapshot says {claimed}")]
    PbtRoot {
        /// The root in the file.
        claimed: B256,
        /// The root of its leaves.
        found: B256,
    },
    /// The state has another root than the header says: it is the state of another block, or a wrong
    /// one.
    #[error(
        "the state has the state root {found}, and the header says {expected}: it is not the \
             state of this block"
    )]
    StateRoot {
        /// The root of the header.
        expected: B256,
        /// The root of the state.
        found: B256,
    },
    /// A leaf of an account or slot has no preimage.
    #[error("the preimages lack the account or slot of {key}")]
    MissingPreimage {
        /// The leaf.
        key: TreeKey,
    },
    /// The preimages have an account that the snapshot has not.
    #[error("the preimages have account {address}, and the snapshot has not")]
    SurplusAccount {
        /// The account.
        address: Address,
    },
    /// The preimages have a slot that the snapshot has not.
    #[error("the preimages have slot {slot} of account {address}, and the snapshot has not")]
    SurplusSlot {
        /// The account.
        address: Address,
        /// The slot.
        slot: B256,
    },

    // -- a state that is to be written ----------------------------------------------------------
    /// The state names accounts by hashes, and the files need addresses.
    #[error("the state has the hashes of keys alone, and a partitioned tree is made of plain keys")]
    HashedKeys,
    /// A slot has no account.
    #[error(
        "the state has slots of the account whose address has keccak-256 {account}, and not \
             the account"
    )]
    SlotsWithoutAccount {
        /// keccak-256 of the address.
        account: B256,
    },
    /// A balance has more than 128 bits.
    #[error("the balance of account {address} has more than 128 bits, which no leaf can hold")]
    Balance {
        /// The account.
        address: Address,
    },
    /// A code that an account has is not there.
    #[error("code {code} of account {address} is missing")]
    MissingCode {
        /// The account.
        address: Address,
        /// keccak-256 of the code.
        code: B256,
    },
    /// An account has more slots than the preimage file can count.
    #[error("account {address} has more than 4294967295 slots, which no preimage file can hold")]
    TooManySlots {
        /// The account.
        address: Address,
    },

    // -- the work -------------------------------------------------------------------------------
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
    /// Sorting failed, or the state cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
}
