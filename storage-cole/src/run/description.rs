//! The description of a run, which is known before its files are open.

use super::{
    file::{MAX_PAGES, PAGE, PAYLOAD, io_error, is_whole},
    filter,
    index::MAX_LAYERS,
    merkle::TreeShape,
    version_file,
};
use crate::hash::SourceHeader;
use retrie_state::{StateError, open_with_retry, wire::WireReader};
use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};

const MAGIC: &[u8; 8] = b"cole run";
const VERSION: u16 = 1;
/// The largest number of pairs of a run. So sums and products of positions do not overflow.
const MAX_PAIRS: u64 = 1 << 56;
const MAX_STEM: usize = 64;
/// Set in the byte of the fanout if the run has version trees.
const HAS_TREES: u8 = 0x80;

/// Describes a run: the header that the digest of its source covers, and all that is needed to open
/// its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunDescription {
    /// Prefix of the names of its files.
    pub(crate) stem: String,
    /// What the root says about it.
    pub(crate) source: SourceHeader,
    /// The number of distinct keys.
    pub(crate) keys: u64,
    /// Fanout of its trees.
    pub(crate) fanout: u8,
    /// Pages of the value file. The first page holds the description.
    pub(crate) value_pages: u64,
    /// Pages of each layer of the index, from the bottom up.
    pub(crate) index_pages: Vec<u64>,
    /// The version trees, if it has any.
    pub(crate) versions: Option<VersionExtent>,
}

/// What a run with version trees stores of its pairs, all of which the header counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionExtent {
    /// The number of pairs that are stored: not pruned.
    pub(crate) pairs: u64,
    /// The number of keys with several versions.
    pub(crate) trees: u64,
    /// Bytes of their trees.
    pub(crate) bytes: u64,
}

impl RunDescription {
    /// The names of the files: values, index, Merkle trees, filter, version trees if it has any.
    pub(crate) fn file_names(&self) -> Vec<String> {
        file_names(&self.stem, self.versions.is_some())
    }

    /// The number of pages of each file, in the order of the names.
    pub(super) fn pages(&self) -> Vec<u64> {
        let index = self.index_pages.iter().sum();
        let merkle = self.filter_tree().pages();
        let filter = filter::pages(self.source.filter_blocks);
        let mut pages = vec![self.value_pages, index, merkle, filter];
        pages.extend(self.versions.map(|versions| version_file::pages(versions.bytes)));
        pages
    }

    /// The number of pairs in the value file.
    pub(super) fn stored_pairs(&self) -> u64 {
        self.versions.map_or(self.source.pairs, |versions| versions.pairs)
    }

    /// The shape of the tree over the pairs, or with version trees over the keys.
    pub(super) fn tree(&self) -> TreeShape {
        let leaves = if self.versions.is_some() { self.keys } else { self.source.pairs };
        TreeShape::new(leaves, self.fanout, 0)
    }

    /// The shape of the tree over the filter.
    pub(super) fn filter_tree(&self) -> TreeShape {
        TreeShape::new(self.source.filter_blocks, self.fanout, self.tree().end())
    }

    /// Appends the encoding (`docs/formats/cole.md`, Description of a run).
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let source = &self.source;
        out.push(self.stem.len() as u8);
        out.extend_from_slice(self.stem.as_bytes());
        for number in [source.pairs, source.first_block, source.last_block] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&source.top[..]);
        out.extend_from_slice(&source.filter_blocks.to_be_bytes());
        out.extend_from_slice(&source.filter_top[..]);
        out.extend_from_slice(&self.keys.to_be_bytes());
        out.push(self.fanout | if self.versions.is_some() { HAS_TREES } else { 0 });
        out.extend_from_slice(&self.value_pages.to_be_bytes());
        out.push(self.index_pages.len() as u8);
        for pages in &self.index_pages {
            out.extend_from_slice(&pages.to_be_bytes());
        }
        for number in self.versions.iter().flat_map(|of| [of.pairs, of.trees, of.bytes]) {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }

    /// Decodes the bytes of [`encode`](Self::encode) from the front; `None` if they describe no
    /// run.
    pub(crate) fn decode(bytes: &mut WireReader<'_>) -> Option<Self> {
        let stem = usize::from(bytes.u8().ok()?);
        let stem = std::str::from_utf8(bytes.take(stem).ok()?).ok()?.to_owned();
        let source = SourceHeader {
            pairs: bytes.u64().ok()?,
            first_block: bytes.u64().ok()?,
            last_block: bytes.u64().ok()?,
            top: bytes.hash().ok()?,
            filter_blocks: bytes.u64().ok()?,
            filter_top: bytes.hash().ok()?,
        };
        let (keys, tagged) = (bytes.u64().ok()?, bytes.u8().ok()?);
        let (fanout, has_trees) = (tagged & !HAS_TREES, tagged & HAS_TREES != 0);
        let (value_pages, layers) = (bytes.u64().ok()?, bytes.u8().ok()?);
        let index_pages = (0..layers).map(|_| bytes.u64().ok()).collect::<Option<Vec<_>>>()?;
        let versions = match has_trees {
            false => None,
            true => Some(VersionExtent {
                pairs: bytes.u64().ok()?,
                trees: bytes.u64().ok()?,
                bytes: bytes.u64().ok()?,
            }),
        };
        let info = Self { stem, source, keys, fanout, value_pages, index_pages, versions };
        info.is_possible().then_some(info)
    }

    /// Whether the numbers are consistent.
    fn is_possible(&self) -> bool {
        let Self { source, index_pages, .. } = self;
        is_stem(&self.stem)
            && (1..=MAX_PAIRS).contains(&source.pairs)
            && source.first_block <= source.last_block
            && (1..=source.pairs).contains(&self.stored_pairs())
            && (1..=self.stored_pairs()).contains(&self.keys)
            && self.versions.is_none_or(|of| of.trees <= self.keys && of.bytes <= MAX_PAIRS)
            && source.filter_blocks == filter::blocks(self.keys)
            && (2..=64).contains(&self.fanout)
            && (2..=MAX_PAGES).contains(&self.value_pages)
            && index_pages.len() <= MAX_LAYERS
            && index_pages.iter().all(|pages| (1..=MAX_PAGES).contains(pages))
            && index_pages.last() == Some(&1)
    }

    /// The first page of the value file.
    pub(super) fn to_page(&self) -> Vec<u8> {
        let mut page = MAGIC.to_vec();
        page.extend_from_slice(&VERSION.to_be_bytes());
        self.encode(&mut page);
        page
    }

    /// The description of the finished run `stem` in `dir`. `None` if there is no value file: it is
    /// the last file that gets its name.
    pub(crate) fn read(dir: &Path, stem: &str) -> Result<Option<Self>, StateError> {
        let [name, ..] = base_names(stem);
        let path = dir.join(&name);
        let mut page = Vec::with_capacity(PAGE);
        match open_with_retry(|| File::open(&path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("opening", &path, error)),
            Ok(file) => {
                let read = file.take(PAGE as u64).read_to_end(&mut page);
                read.map_err(|error| io_error("reading", &path, error))?;
            }
        }
        let wrong = |what: String| Err(StateError::corrupt(&*name, format!("page 0: {what}")));
        if !page.starts_with(MAGIC) {
            return wrong("it does not describe a run of cole".into());
        }
        if !is_whole(0, &page) {
            return wrong("its checksum is wrong".into());
        }
        let version = u16::from_be_bytes([page[8], page[9]]);
        if version != VERSION {
            return wrong(format!("its format has version {version}, not {VERSION}"));
        }
        match Self::decode(&mut WireReader::new(&page[10..PAYLOAD])) {
            Some(info) if info.stem == stem => Ok(Some(info)),
            Some(info) => wrong(format!("it describes run {}", info.stem)),
            None => wrong("its description cannot be read".into()),
        }
    }
}

pub(super) fn is_stem(stem: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=MAX_STEM).contains(&stem.len()) && stem.bytes().all(plain)
}

/// The names of the files of run `stem`.
pub(crate) fn file_names(stem: &str, has_trees: bool) -> Vec<String> {
    let mut names = base_names(stem).to_vec();
    names.extend(has_trees.then(|| version_name(stem)));
    names
}

/// The names of the files that every run has: values, index, Merkle trees, filter.
pub(super) fn base_names(stem: &str) -> [String; 4] {
    ["values", "index", "merkle", "filter"].map(|end| format!("{stem}.{end}"))
}

/// The name of the file of version trees.
pub(super) fn version_name(stem: &str) -> String {
    format!("{stem}.versions")
}
