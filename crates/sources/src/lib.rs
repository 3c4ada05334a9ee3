//! Where blocks come from, and how they leave again.
//!
//! Most modules are one-way readers over a file: bytes in, decoded blocks out, nothing kept in memory
//! but the block at hand. What they read is on disk, in an object store or on a web server: a [`Location`].
//! Two modules fetch from nodes and mirrors. No chain rule is applied beyond what the container itself
//! promises (hashes, links, accumulators); that is the business of the consensus crate.
//!
//! ```text
//!  chain.rlp, chain.rlp.gz ── rlp::RlpReader ────┐
//!  mainnet-00000-….era1 ───── era1::Era1Reader ──┼──> BlockSource ──> SourceBlock, in file order
//!  folder of these ───────────────────────────────┘
//!  123.json.gz, folder ────── bundle::list_bundles ──> BundleFile::load ──> Bundle
//!  s3://…, gs://…, https://… ─ objects::Stores ──> Location, which all of the above take
//!  Block ──────────────────── export::BlockWriter ──> chain.rlp, chain.rlp.gz
//!  mirror of era1 files ───── download::Era1Mirror ──> mainnet-00000-….era1
//!  a node's JSON-RPC ──────── rpc::RpcClient ──> Block (a fetch::BlockFetcher), accounts, slots
//!  state.jsonl(.gz) ───────── state_dump::StateDump ──> DumpedAccount, in file order
//! ```
//!
//! # Vocabulary
//!
//! * **item**: one RLP list of a concatenated block stream, that is, one block. Its *offset* counts
//!   bytes of the *decompressed* stream.
//! * **entry**: one type-length-value record of an era1 file (the e2store format). Its *offset*
//!   counts bytes of the file.
//! * **accumulator**: the SSZ root over the block hashes and total difficulties of an era1 file.
//! * **bundle**: one real block together with the state it touches, as JSON. A *witness* bundle
//!   holds trie nodes and can be checked down to the state root; a *prestate* bundle holds plain
//!   accounts and slots.
//! * **member**: one named field of a bundle.
//!
//! # Assumptions
//!
//! * Files are not modified while they are read.
//! * A file is untrusted: its lengths are checked against [`MAX_ITEM_BYTES`] and against the bytes
//!   that are really there before memory is reserved, and every failure is a [`SourceError`] that
//!   names the file and the place in it. A reader that has failed yields nothing more.
//! * A server is trusted no more than a file: [`download`] and [`rpc`] say what they check. Their
//!   errors name the address (and an RPC endpoint's host only, as its path may be a key). Objects of
//!   stores are compared with their listing, and with `SHA256SUMS` beside them ([`objects`]).
//! * Checks against hashes inside the same file find damage, not forgery. What makes a chain the
//!   real one is its genesis and its rules.

pub mod bundle;
pub mod download;
pub mod era1;
pub mod export;
pub mod fetch;
pub mod objects;
pub mod rlp;
pub mod rpc;
pub mod state_dump;

mod check;
mod error;
mod http;
mod input;
mod origin;
mod source;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use bundle::{
    Bundle, BundleFile, BundleFolder, BundleKind, PreAccount, PreState, PrestateBundle,
    WitnessBundle, list_bundles,
};
pub use download::{DownloadError, Downloaded, Era1Mirror, Transfer};
pub use era1::{Era1Reader, Era1Summary, EraBlock, verify_era1};
pub use error::{Place, SourceError, SourceErrorKind};
pub use export::{BlockWriter, ExportSummary};
pub use fetch::{BlockFetcher, BlockTag, FetchError};
pub use http::{Http, HttpFault, HttpOptions};
pub use input::MAX_ITEM_BYTES;
pub use objects::{Environment, Location, Object, ObjectError, Stores};
pub use origin::{Origin, SourceBlock};
pub use rlp::RlpReader;
pub use rpc::{RpcClient, RpcError};
pub use source::{BlockFile, BlockFileKind, BlockSource, SourceKind, detect, open};
pub use state_dump::{DumpedAccount, HeaderItem, StateDump, StateDumpWriter, read_headers};
