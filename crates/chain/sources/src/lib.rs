//! Sources of blocks: files, object stores, mirrors and nodes; and writing blocks to files.
//!
//! Most modules are one-way readers of a file: bytes in, decoded blocks out, with one block in
//! memory. The file is on disk, in an object store or on a web server: a [`SourceLocation`]. Two
//! modules fetch from nodes and mirrors. This crate applies no chain rule; it checks what the
//! container itself promises (hashes, links, accumulators). The consensus crate checks the rules.
//!
//! ```text
//!  chain.rlp, chain.rlp.gz ── rlp::RlpReader ────┐
//!  mainnet-00000-….era1 ───── era1::Era1Reader ──┤
//!  mainnet-02700-….ere ────── ere::EreReader ────┼──> BlockSource ──> SourceBlock, in file order
//!  folder of these ───────────────────────────────┘
//!  123.json.gz, folder ────── bundle::list_bundles ──> BundleFile::load ──> Bundle
//!  s3://…, gs://…, https://… ─ objects::StoreRegistry ──> SourceLocation, for all of the above
//!  Block ──────────────────── export::BlockWriter ──> chain.rlp, chain.rlp.gz
//!  Block, receipts ────────── ere::EreWriter ──> mainnet-02700-….ere
//!  mirror of era1 or ere ──── download::EraMirror ──> mainnet-00000-….era1, ….ere
//!  a node's JSON-RPC ──────── rpc::RpcClient ──> Block (a fetch::BlockFetcher), accounts, slots
//!  witness.json(.gz) ──────── witness::WitnessAnswer, witness::read_block
//!  state.jsonl(.gz) ───────── state_dump::StateDump ──> DumpedAccount, in file order
//! ```
//!
//! # Vocabulary
//!
//! * **Item**: one RLP list of a concatenated block stream, that is, one block. Its *offset* counts
//!   bytes of the *decompressed* stream.
//! * **Entry**: one type-length-value record of an era1 or ere file (the e2store format). Its *offset*
//!   counts bytes of the file.
//! * **Accumulator**: the SSZ root over the hashes and total difficulties of the blocks from before the
//!   merge in an era1 or ere file.
//! * **Bundle**: one real block together with the state that it touches, as JSON. A *witness*
//!   bundle holds trie nodes and can be checked down to the state root; a *prestate* bundle holds
//!   plain accounts and slots.
//! * **Member**: one named field of a bundle.
//!
//! # Assumptions
//!
//! * Files are not modified while they are read.
//! * A file is untrusted: its lengths are checked against [`MAX_ITEM_BYTES`] and against its real
//!   size before memory is reserved. Every failure is a [`SourceError`] that names the file and the
//!   place in it. A reader that has failed yields nothing more.
//! * A server is trusted no more than a file: [`download`] and [`rpc`] say what they check. Their
//!   errors name the address (of an RPC endpoint only the host, as its path may be a key). Objects
//!   of stores are compared with their listing, and with `SHA256SUMS` beside them.
//! * Checks against hashes inside the same file find damage, not forgery. A chain is the real one
//!   only by its genesis and its rules.

pub mod bundle;
pub mod download;
pub mod era1;
pub mod ere;
pub mod rpc;
pub mod witness;

mod check;
mod e2store;
mod era_name;
mod error;
mod export;
mod fetch;
mod http;
mod input;
mod objects;
mod origin;
mod preimages;
mod rlp;
mod source;
mod state_dump;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use alloy_eips::BlockHashOrNumber;
pub use bundle::{
    Bundle, BundleFile, BundleFolder, BundleKind, PreAccount, PreState, PrestateBundle,
    WitnessBundle, list_bundles,
};
pub use download::{DownloadError, DownloadProgress, DownloadedFile, EraMirror, EraSummary};
pub use era_name::{EraFileName, EraFormat, EreProfile};
pub use era1::{Era1Reader, Era1Summary, EraBlock, verify_era1};
pub use ere::{EreReader, EreSummary, EreWriter, ExportedFile, SlimReceipt, verify_ere};
pub use error::{SourceError, SourceErrorKind, SourcePlace};
pub use export::{AtomicFile, BlockWriter, ExportSummary};
pub use fetch::{BlockFetcher, BlockTag, FetchError};
pub use http::{BlockingClient, HttpFault, HttpOptions};
pub use input::MAX_ITEM_BYTES;
pub use objects::{
    ObjectError, ObjectFolder, SourceLocation, StoreEnvironment, StoreRegistry, StoredObject,
};
pub use origin::{BlockOrigin, SourceBlock};
pub use preimages::{FilePreimage, PreimageFile, PreimageWriter};
pub use rlp::RlpReader;
pub use rpc::{RpcClient, RpcError};
pub use source::{BlockFile, BlockFileKind, BlockSource, SourceKind, detect, open};
pub use state_dump::{
    DumpedAccount, DumpedName, HeaderItem, StateDump, StateDumpWriter, read_headers,
};
