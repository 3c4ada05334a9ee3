//! The origin of blocks: positions in files, and the files of a folder.

use crate::error::SourceError;
use retrie_chainspec::primitives::Block;
use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A block and its origin.
#[derive(Clone, Debug)]
pub struct SourceBlock {
    /// The block.
    pub block: Block,
    /// Length of the block's RLP in bytes.
    pub encoded_len: u64,
    /// File and offset.
    pub origin: BlockOrigin,
}

/// The position of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockOrigin {
    /// The file.
    pub file: Arc<Path>,
    /// RLP: first byte of the block in the decompressed stream. era1 and ere: first byte of its
    /// header entry in the file.
    pub offset: u64,
}

/// The visible files of a folder in name order; subfolders are left out, links are followed.
pub(crate) fn folder_entries(folder: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let fail = |e| SourceError::io(folder, "list the folder", e);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if !file_name(&path).starts_with('.') && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a file has the extension of a block file or a bundle.
pub(crate) fn has_known_extension(path: &Path) -> bool {
    let name = file_name(path);
    [".rlp", ".rlp.gz", ".era1", ".ere", ".json", ".json.gz"].iter().any(|end| name.ends_with(end))
}

/// The last component of a path, in lower case, for recognising extensions.
pub(crate) fn file_name(path: &Path) -> Cow<'_, str> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        name
    }
}
