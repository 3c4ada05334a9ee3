//! What `retrie proof verify` is told to trust: a root, a checkpoint, a block, or nothing.

use alloy_primitives::{B256, Bytes, hex, keccak256};
use eyre::{Context, bail};
use retrie_light_client::{LightClientError, TrustedBlock, TrustedRoot};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// What is trusted: a root, a checkpoint or a header. Without any of these the proof is checked
/// against the root in its own file. That verifies nothing, and is an error.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TrustedArgs {
    /// Trust this root, whatever its block.
    #[arg(long, value_name = "ROOT", conflicts_with_all = ["checkpoint", "header"])]
    root: Option<B256>,
    /// Trust this root of this block: for roots that are in no header.
    #[arg(long, value_name = "NUMBER:ROOT", value_parser = parse_checkpoint, conflicts_with = "header")]
    checkpoint: Option<(u64, B256)>,
    /// Trust the `stateRoot` of the block with this hash. Its header is taken from the file of
    /// `retrie proof get`, or from --header. A call and logs come with their headers; beside a hash a
    /// call may also have a --root or a --checkpoint.
    #[arg(long, value_name = "HASH")]
    block_hash: Option<B256>,
    /// Trust the `stateRoot` of this header: its RLP, binary or hexadecimal. With --block-hash its
    /// hash is checked.
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
}

/// A trusted block of a call, and what it was said to be.
pub(super) struct TrustedCall {
    pub(super) block: TrustedBlock,
    /// The number that --checkpoint names.
    number: Option<u64>,
    /// Where the trust comes from.
    pub(super) origin: String,
}

impl TrustedCall {
    /// Checks the number of the block that was proven.
    pub(super) fn check_number(&self, shown: u64) -> Result<(), LightClientError> {
        match self.number.filter(|number| *number != shown) {
            None => Ok(()),
            Some(number) => {
                let (trusted, proof) = (number.to_string(), shown.to_string());
                Err(LightClientError::OtherBlock { trusted, proof })
            }
        }
    }
}

impl TrustedArgs {
    /// The trusted root, and a text about its source. `enclosed` is the header that came with the
    /// proof in `file`.
    pub(super) fn root(
        &self,
        enclosed: Option<Bytes>,
        file: &str,
    ) -> eyre::Result<Option<(TrustedRoot, String)>> {
        if self.block_hash.is_some() && self.has_root() {
            bail!("give --block-hash, or a root: only a call is checked against both");
        }
        if let Some(root) = self.root {
            return Ok(Some((TrustedRoot::Root(root), self.origin_of_root())));
        }
        if let Some((number, root)) = self.checkpoint {
            return Ok(Some((TrustedRoot::Checkpoint { number, root }, self.origin_of_root())));
        }
        let (rlp, source) = match (&self.header, enclosed, self.block_hash) {
            (Some(path), ..) => (read_header(path)?, path.display().to_string()),
            (None, Some(rlp), Some(_)) => (rlp, file.to_owned()),
            (None, None, Some(_)) => {
                bail!("the proof comes without the header of its block: give it by --header FILE")
            }
            (None, _, None) => return Ok(None),
        };
        let (hash, origin) = match self.block_hash {
            Some(hash) => (
                hash,
                format!(
                    "the block hash was given on the command line (--block-hash); the header of \
                     that hash, and the root in it, come from {source}"
                ),
            ),
            None => (
                keccak256(&rlp),
                format!(
                    "the header, and the root in it, were taken from {source} as they are \
                     (--header): no --block-hash says what its hash must be"
                ),
            ),
        };
        Ok(Some((TrustedRoot::Header { hash, rlp }, origin)))
    }

    /// The trusted block of a call, with its root if no header has it.
    pub(super) fn call(&self) -> eyre::Result<Option<TrustedCall>> {
        let Some((hash, mut origin)) = self.block()? else {
            if self.has_root() {
                bail!(
                    "a call also depends on the header of its block: give --block-hash HASH, the \
                     hash that you trust, beside the root"
                );
            }
            return Ok(None);
        };
        if self.has_root() {
            origin = format!("{}; {origin}", self.origin_of_root());
        }
        let root = self.root.or_else(|| self.checkpoint.map(|(_, root)| root));
        let number = self.checkpoint.map(|(number, _)| number);
        Ok(Some(TrustedCall { block: TrustedBlock { hash, root }, number, origin }))
    }

    /// The hash of the last block of a range of logs, and a text about its source.
    pub(super) fn last_block(&self) -> eyre::Result<Option<(B256, String)>> {
        if self.has_root() {
            bail!(
                "logs are shown by headers, not by a state root: give --block-hash HASH, that of the \
                 last block of the range"
            );
        }
        self.block()
    }

    /// The trusted hash of a block whose header came with an answer, and a text about its source.
    fn block(&self) -> eyre::Result<Option<(B256, String)>> {
        let given = "the block hash was given on the command line (--block-hash)";
        let Some(path) = &self.header else {
            return Ok(self.block_hash.map(|hash| (hash, given.to_owned())));
        };
        let (got, name) = (keccak256(read_header(path)?), path.display());
        match self.block_hash {
            Some(hash) if hash != got => {
                bail!("{name}: the header has hash {got}, --block-hash is {hash}")
            }
            Some(hash) => Ok(Some((hash, given.to_owned()))),
            None => {
                let origin = format!(
                    "the block hash is that of the header in {name}, which was taken as it is (--header)"
                );
                Ok(Some((got, origin)))
            }
        }
    }

    const fn has_root(&self) -> bool {
        self.root.is_some() || self.checkpoint.is_some()
    }

    fn origin_of_root(&self) -> String {
        match self.checkpoint {
            Some((number, _)) => {
                format!("the root of block {number} was given on the command line (--checkpoint)")
            }
            None => "the root was given on the command line (--root)".to_owned(),
        }
    }
}

/// The proof is complete, but what it is checked against has no trusted source.
#[derive(Debug)]
pub(super) struct UntrustedSource {
    pub(super) file: String,
    /// What comes from the file itself.
    pub(super) what: String,
    /// What the user should give.
    pub(super) remedy: &'static str,
}

impl fmt::Display for UntrustedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, what, remedy } = self;
        write!(
            f,
            "nothing is verified: {file} is consistent, but its {what} comes from the file itself, \
             and the node that made the file can make up both. Give a hash or root that you trust, \
             from a source other than this node: {remedy}"
        )
    }
}

impl std::error::Error for UntrustedSource {}

/// RLP of a header, binary or hexadecimal.
fn read_header(path: &Path) -> eyre::Result<Bytes> {
    let bytes = fs::read(path).wrap_err_with(|| format!("reading {}", path.display()))?;
    let bytes = match bytes.trim_ascii().strip_prefix(b"0x") {
        Some(digits) => hex::decode(digits).wrap_err_with(|| path.display().to_string())?,
        None => bytes,
    };
    Ok(bytes.into())
}

fn parse_checkpoint(text: &str) -> Result<(u64, B256), String> {
    let (number, root) = text.split_once(':').ok_or("it is NUMBER:ROOT")?;
    let number = number.parse().map_err(|error| format!("block number: {error}"))?;
    Ok((number, root.parse().map_err(|error| format!("root: {error}"))?))
}
