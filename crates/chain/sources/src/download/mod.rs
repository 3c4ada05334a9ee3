//! era1 and ere files from a public mirror or an object store. Downloads are resumable, and a file gets its
//! name only after it was checked.
//!
//! ```text
//!  checksums.txt, index page --> EraMirror: name and SHA-256 by epoch
//!  GET, Range ------------------> NAME.part --checks--> NAME
//! ```
//!
//! While a file is fetched it is called `NAME.part`; a later run resumes it. It gets its name (by
//! one rename, synced) only after these checks:
//!
//! * its SHA-256 is the one in the mirror's checksum file, if the mirror has one;
//! * everything that [`verify_era1`] or [`verify_ere`] checks: every block's body and receipts against
//!   its header, the chain of hashes, the accumulator;
//! * the accumulator (era1) or the hash of the last block (ere) begins as the file name says, nothing
//!   is left out that the name promises, the first block is the epoch's, epoch 0 begins with the
//!   chain's genesis, and every epoch but the mirror's last is full.
//!
//! A `.part` that fails a check is deleted; if it was resumed, the file is fetched once more from
//! its first byte. **All names come from the mirror, so a mirror can serve a forged chain that
//! passes.** The import applies the chain's rules; against forgery below the merge, compare the
//! accumulators with a published list.

mod error;
mod fetch;
mod index;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use alloy_primitives::{B256, hex};
use retrie_chainspec::ChainSpec;

pub use error::{DownloadError, DownloadErrorKind};

use crate::{
    era_name::{EraFileName, EraFormat},
    era1::{Era1Reader, Era1Summary, MAX_BLOCKS, verify_era1},
    ere::{EreReader, EreSummary, verify_ere},
    error::SourceError,
    export::{sha256_of, sync_folder},
    http::{BlockingClient, HttpFault, success},
    objects::{MANIFEST, StoredObject},
};
use fetch::PartFile;
use index::{ChecksumFile, names_in};

/// Size limit of an index or checksum file, in bytes.
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// The public mirror that is used by default (from the list of eth-clients/history-endpoints).
fn default_mirror(format: EraFormat, chain: &str) -> Option<&'static str> {
    match (format, chain) {
        (EraFormat::Era1, "mainnet") => Some("https://data.ethpandaops.io/era1/mainnet/"),
        (EraFormat::Era1, "sepolia") => Some("https://data.ethpandaops.io/era1/sepolia/"),
        _ => None,
    }
}

/// A folder with era1 or ere files of one chain, on a server or in an object store.
#[derive(Debug)]
pub struct EraMirror {
    remote: MirrorLocation,
    format: EraFormat,
    spec: Arc<ChainSpec>,
    names: BTreeMap<u64, EraFileName>,
    checksums: BTreeMap<u64, B256>,
}

/// Progress of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadProgress {
    /// Bytes are received.
    Fetching {
        /// Bytes received so far.
        bytes: u64,
        /// Bytes of the whole file, if known.
        total: Option<u64>,
    },
    /// The whole file is being checked.
    Checking {
        /// Its length in bytes.
        bytes: u64,
    },
}

/// A complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DownloadedFile {
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it existed before and was intact.
    pub existed: bool,
    /// Whether the mirror has its SHA-256.
    pub has_checksum: bool,
    /// The result of the checks.
    pub summary: EraSummary,
}

/// What an intact file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EraSummary {
    /// Number of the first block.
    pub first_block: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Parent hash of the first block.
    pub parent_hash: B256,
    /// Hash of the last block.
    pub last_hash: B256,
    /// The accumulator root of the blocks from before the merge, if they are there and it could be
    /// computed.
    pub accumulator: Option<B256>,
    /// Whether it has receipts.
    pub has_receipts: bool,
    /// Whether it has proofs of the headers.
    pub has_proofs: bool,
}

impl From<Era1Summary> for EraSummary {
    fn from(file: Era1Summary) -> Self {
        Self {
            first_block: file.first_block,
            block_count: file.block_count,
            parent_hash: file.parent_hash,
            last_hash: file.last_hash,
            accumulator: Some(file.accumulator),
            has_receipts: true,
            has_proofs: false,
        }
    }
}

impl From<EreSummary> for EraSummary {
    fn from(file: EreSummary) -> Self {
        Self {
            first_block: file.first_block,
            block_count: file.block_count,
            parent_hash: file.parent_hash,
            last_hash: file.last_hash,
            accumulator: file.accumulator,
            has_receipts: file.has_receipts,
            has_proofs: file.has_proofs,
        }
    }
}

/// Location of the files.
#[derive(Debug)]
enum MirrorLocation {
    /// Below this URL, which ends with a slash.
    Server(BlockingClient, String),
    /// In this folder of a store.
    Store(StoredObject),
}

impl MirrorLocation {
    /// The URL of a file. Also used in messages.
    fn url(&self, name: &str) -> String {
        match self {
            Self::Server(_, base) => format!("{base}{name}"),
            Self::Store(folder) => folder.child(name).name().display().to_string(),
        }
    }

    /// A text file; `None` if it does not exist.
    fn read_text(&self, name: &str) -> Result<Option<String>, DownloadError> {
        let bytes = match self {
            Self::Server(http, _) => return read_text(http, &self.url(name)),
            Self::Store(folder) => folder.child(name).read_small(MAX_INDEX_BYTES),
        };
        let bytes = bytes.map_err(|error| DownloadError::new(&self.url(name), None, error))?;
        Ok(bytes.map(|(bytes, _)| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

impl EraMirror {
    /// Reads the mirror's listing of the chain. `url` is a folder or its index page; without it the
    /// chain's default mirror is used.
    ///
    /// # Errors
    /// If it cannot be reached or lists no file of the chain.
    pub fn open(
        format: EraFormat,
        spec: Arc<ChainSpec>,
        url: Option<&str>,
        http: BlockingClient,
    ) -> Result<Self, DownloadError> {
        let chain = spec.name().to_owned();
        let Some(url) = url.or_else(|| default_mirror(format, &chain)) else {
            let kind = DownloadErrorKind::NoMirror { format, chain };
            return Err(DownloadError::new(format.extension(), None, kind));
        };
        let base = folder_of(url);
        Self::read(format, spec, url, MirrorLocation::Server(http.clone(), base), || {
            Ok(read_text(&http, url)?.unwrap_or_default())
        })
    }

    /// Reads the listing of a folder in an object store. For a URL of a web server use
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// If it cannot be listed, or holds no file of the chain.
    pub fn open_store(
        format: EraFormat,
        spec: Arc<ChainSpec>,
        folder: &StoredObject,
    ) -> Result<Self, DownloadError> {
        let folder = folder.as_folder();
        let url = folder.name().display().to_string();
        let names = folder.entries().map_err(|error| DownloadError::new(&url, None, error))?;
        let names: Vec<_> = names.iter().flatten().map(StoredObject::file_name).collect();
        let page = names.join("\n");
        Self::read(format, spec, &url, MirrorLocation::Store(folder), || Ok(page))
    }

    /// `page` names the files if no list of checksums does.
    fn read(
        format: EraFormat,
        spec: Arc<ChainSpec>,
        url: &str,
        remote: MirrorLocation,
        page: impl FnOnce() -> Result<String, DownloadError>,
    ) -> Result<Self, DownloadError> {
        let chain = spec.name().to_owned();
        let mut sums = ChecksumFile::default();
        for name in ["checksums.txt", "checksums_sha256.txt", MANIFEST] {
            let text = remote.read_text(name)?;
            if let Some(found) = text.and_then(|text| ChecksumFile::parse(&text)) {
                sums = found;
                break;
            }
        }
        let fail = |kind| DownloadError::new(url, None, kind);
        let two = |names| fail(DownloadErrorKind::TwoFiles(names));
        let list: Vec<_> = sums.named.iter().map(|(name, _)| name.as_str()).collect();
        let mut names = names_in(&list.join("\n"), format, &chain).map_err(two)?;
        if names.is_empty() {
            names = names_in(&page()?, format, &chain).map_err(two)?;
        }
        if names.is_empty() {
            return Err(fail(DownloadErrorKind::NoFiles { format, chain }));
        }
        let checksums = if sums.bare.is_empty() {
            let named = sums.named.iter().filter_map(|(name, hash)| {
                let name = EraFileName::parse(name)?;
                (names.get(&name.epoch) == Some(&name)).then_some((name.epoch, *hash))
            });
            named.collect()
        } else if sums.bare.len() == names.len() {
            names.keys().copied().zip(sums.bare).collect()
        } else {
            // The mirror lacks some of the files for which its list was made.
            (0..).zip(sums.bare).collect()
        };
        Ok(Self { remote, format, spec, names, checksums })
    }

    /// The file of an epoch.
    ///
    /// # Errors
    /// If the mirror has none.
    pub fn name(&self, epoch: u64) -> Result<&EraFileName, DownloadError> {
        self.names.get(&epoch).ok_or_else(|| {
            let (first, last) = (self.names.keys().next(), self.names.keys().next_back());
            let kind = DownloadErrorKind::NoEpoch {
                epoch,
                first: first.copied().unwrap_or_default(),
                last: last.copied().unwrap_or_default(),
            };
            DownloadError::new(&self.remote.url(""), None, kind)
        })
    }

    /// Fetches the file of `epoch` into `folder`, which must exist, unless the file exists there
    /// and is intact. `previous` is the hash of the last block of the epoch before, if it is known.
    ///
    /// # Errors
    /// [`DownloadError`] names address and file. After an error no new file has this name, and an
    /// existing one is unchanged.
    pub fn download(
        &self,
        epoch: u64,
        folder: &Path,
        previous: Option<B256>,
        progress: &mut dyn FnMut(DownloadProgress),
    ) -> Result<DownloadedFile, DownloadError> {
        let name = self.name(epoch)?;
        let url = self.remote.url(&name.to_string());
        let path = folder.join(name.to_string());
        let part = folder.join(format!("{name}.part"));
        self.obtain(name, &url, &path, &part, progress)
            .and_then(|file| match previous {
                Some(expected) if expected != file.summary.parent_hash => {
                    let got = file.summary.parent_hash;
                    Err(DownloadErrorKind::Unlinked { expected, got })
                }
                _ => Ok(file),
            })
            .map_err(|kind| DownloadError::new(&url, Some(&path), kind))
    }

    fn obtain(
        &self,
        name: &EraFileName,
        url: &str,
        path: &Path,
        part: &Path,
        progress: &mut dyn FnMut(DownloadProgress),
    ) -> Result<DownloadedFile, DownloadErrorKind> {
        let whole = |bytes, was_there, summary| DownloadedFile {
            path: path.to_owned(),
            bytes,
            existed: was_there,
            has_checksum: self.checksums.contains_key(&name.epoch),
            summary,
        };
        if let Ok(meta) = path.metadata() {
            progress(DownloadProgress::Checking { bytes: meta.len() });
            match self.check(name, path) {
                Ok(summary) => return Ok(whole(meta.len(), true, summary)),
                Err(io @ DownloadErrorKind::Io { .. }) => return Err(io),
                // Fetched again, and replaced once the new file is checked.
                Err(_) => {}
            }
        }
        let mut file = PartFile::open(part)?;
        let mut resumed = file.len() > 0;
        let summary = loop {
            let mut report = |bytes, total| progress(DownloadProgress::Fetching { bytes, total });
            let fetched = match &self.remote {
                MirrorLocation::Server(http, _) => file.fetch(http, url, &mut report),
                MirrorLocation::Store(folder) => {
                    file.fetch_object(&folder.child(&name.to_string()), &mut report)
                }
            };
            if fetched.is_err() && file.len() == 0 {
                remove(part)?;
            }
            fetched?;
            progress(DownloadProgress::Checking { bytes: file.len() });
            match self.check(name, part) {
                Ok(summary) => break summary,
                Err(io @ DownloadErrorKind::Io { .. }) => return Err(io),
                // An existing `.part` may be of another file, or damaged by a crash.
                Err(_) if resumed => {
                    resumed = false;
                    file.clear()?;
                }
                Err(wrong) => {
                    remove(part)?;
                    return Err(wrong);
                }
            }
        };
        let io = |action| move |error| DownloadErrorKind::Io { action, error };
        std::fs::rename(part, path).map_err(io("rename the finished file into place"))?;
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        sync_folder(folder).map_err(io("sync the folder to disk"))?;
        Ok(whole(file.len(), false, summary))
    }

    /// All checks of a file called `name`.
    fn check(&self, name: &EraFileName, file: &Path) -> Result<EraSummary, DownloadErrorKind> {
        if let Some(&expected) = self.checksums.get(&name.epoch) {
            let io = |error| DownloadErrorKind::Io { action: "read the file back", error };
            let got = sha256_of(file).map_err(io)?;
            if got != expected {
                return Err(DownloadErrorKind::Checksum { expected, got });
            }
        }
        let foreign = |what| Err(DownloadErrorKind::Foreign { what });
        let summary = verify(self.format, file).map_err(DownloadErrorKind::Damaged)?;
        let (what, digest) = match self.format {
            EraFormat::Era1 => ("accumulator root", summary.accumulator.unwrap_or_default()),
            EraFormat::Ere => ("last block's hash", summary.last_hash),
        };
        if digest[..4] != name.digest {
            return foreign(format!("its {what} begins with {}", hex::encode(&digest[..4])));
        }
        let lacks_proofs = self.format == EraFormat::Ere && !summary.has_proofs;
        for (what, is_lacking, is_said) in [
            ("receipts", !summary.has_receipts, name.profile.no_receipts),
            ("proofs", lacks_proofs, name.profile.no_proofs),
        ] {
            if is_lacking && !is_said {
                return foreign(format!("it has no {what}, which its name promises"));
            }
        }
        let first = name.epoch.saturating_mul(MAX_BLOCKS);
        if summary.first_block != first {
            let got = summary.first_block;
            return foreign(format!("its first block is {got}, that of the epoch is {first}"));
        }
        let is_last = self.names.keys().next_back() == Some(&name.epoch);
        if summary.block_count != MAX_BLOCKS && !is_last {
            return foreign(format!("it has {} blocks, not 8192", summary.block_count));
        }
        if first == 0 && first_hash(self.format, file) != Some(self.spec.genesis_hash()) {
            return foreign(format!("its block 0 is not the genesis of {}", self.spec.name()));
        }
        Ok(summary)
    }
}

fn verify(format: EraFormat, file: &Path) -> Result<EraSummary, SourceError> {
    match format {
        EraFormat::Era1 => verify_era1(file).map(EraSummary::from),
        EraFormat::Ere => verify_ere(file).map(EraSummary::from),
    }
}

/// Hash of the first block of an intact file.
fn first_hash(format: EraFormat, file: &Path) -> Option<B256> {
    match format {
        EraFormat::Era1 => Era1Reader::open(file).ok()?.next()?.ok().map(|block| block.hash),
        EraFormat::Ere => EreReader::open(file).ok()?.next()?.ok().map(|block| block.hash),
    }
}

/// The folder of an index page, or the folder itself. Ends with a slash.
fn folder_of(url: &str) -> String {
    let path = url.find("://").map_or(0, |at| at + 3);
    match url[path..].rsplit_once('/') {
        Some((_, "")) => url.to_owned(),
        Some((_, page)) if page.contains('.') => url[..url.len() - page.len()].to_owned(),
        _ => format!("{url}/"),
    }
}

/// A text file; `None` if the server does not have it.
fn read_text(http: &BlockingClient, url: &str) -> Result<Option<String>, DownloadError> {
    let text = http.retry(|| {
        http.check_stop()?;
        http.read(success(http.get(url, &[])?)?, MAX_INDEX_BYTES)
    });
    match text {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        // Object stores answer with "denied" for missing files.
        Err(fault) if fault.is_not_found() => Ok(None),
        Err(HttpFault::Status { code: 403, .. }) => Ok(None),
        Err(fault) => Err(DownloadError::new(url, None, fault)),
    }
}

fn remove(part: &Path) -> Result<(), DownloadErrorKind> {
    let io = |error| DownloadErrorKind::Io { action: "remove the .part file", error };
    std::fs::remove_file(part).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::folder_of;

    #[test]
    fn index_pages_and_folders_name_the_same_folder() {
        for (url, folder) in [
            ("http://a.b/era1/", "http://a.b/era1/"),
            ("http://a.b/era1", "http://a.b/era1/"),
            ("http://a.b/era1/index.html", "http://a.b/era1/"),
            ("http://a.b", "http://a.b/"),
            ("http://127.0.0.1:80", "http://127.0.0.1:80/"),
        ] {
            assert_eq!(folder_of(url), folder);
        }
    }
}
