//! Writing ere files.

use std::{
    fs::File,
    io::{self, BufWriter, Seek, Write},
    path::{Path, PathBuf},
};

use alloy_primitives::{B256, U256};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::Block;
use sha2::{Digest, Sha256};
use snap::write::FrameEncoder;

use super::{
    index::EreComponent,
    proof::HeaderProof,
    receipts::{SlimReceipt, envelopes},
    verify::verify_ere,
};
use crate::{
    check::{self, same_hash, same_number},
    e2store::{ENTRY_HEADER, MAX_BLOCKS, entry_type},
    era_name::{EraFileName, EraFormat, EreProfile},
    era1::{AccumulatorTree, HeaderRecord},
    error::{SourceError, SourceErrorKind, SourcePlace},
    export::{AtomicFile, sha256_of},
    input::MAX_ITEM_BYTES,
};

/// Writes one ere file, block by block, into a folder. The file appears under its name only when it is
/// complete, as its name has the hash of its last block.
///
/// Until then the components lie in unnamed temporary files of the folder, because all headers come
/// before all bodies. A file whose blocks are all from before the merge gets proofs; any other one has
/// the profile `noproofs`, since proofs of later blocks need the beacon chain.
#[derive(Debug)]
pub struct EreWriter {
    folder: PathBuf,
    chain: String,
    first_block: u64,
    headers: SectionSpool,
    bodies: SectionSpool,
    /// `None` if receipts are left out.
    receipts: Option<SectionSpool>,
    /// Of the blocks from before the merge.
    records: Vec<HeaderRecord>,
    last: Option<LastBlock>,
    item: Vec<u8>,
}

/// What the next block is compared with.
#[derive(Clone, Copy, Debug)]
struct LastBlock {
    number: u64,
    hash: B256,
    is_merged: bool,
}

/// A written file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFile {
    /// Its path.
    pub path: PathBuf,
    /// Number of its blocks.
    pub blocks: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// SHA-256 of its bytes.
    pub sha256: B256,
}

impl EreWriter {
    /// The name of the file with the blocks from `first_block` to the one with this hash.
    pub fn file_name(
        chain: &str,
        first_block: u64,
        last_hash: B256,
        profile: EreProfile,
    ) -> EraFileName {
        let [a, b, c, d, ..] = last_hash.0;
        EraFileName {
            format: EraFormat::Ere,
            chain: chain.to_owned(),
            epoch: first_block / MAX_BLOCKS,
            digest: [a, b, c, d],
            profile,
        }
    }

    /// The file of this name in `folder`, if it is there, intact, and has this number of blocks.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn existing(
        folder: &Path,
        name: &EraFileName,
        blocks: u64,
    ) -> Result<Option<ExportedFile>, SourceError> {
        let path = folder.join(name.to_string());
        if !path.exists() {
            return Ok(None);
        }
        let is_intact = match verify_ere(&path) {
            Ok(file) => {
                file.last_hash.starts_with(&name.digest)
                    && file.first_block == name.epoch.saturating_mul(MAX_BLOCKS)
                    && (file.block_count, file.has_receipts, file.has_proofs)
                        == (blocks, !name.profile.no_receipts, !name.profile.no_proofs)
            }
            Err(error) if error.is_io() => return Err(error),
            Err(_) => false,
        };
        if !is_intact {
            return Ok(None);
        }
        let read = |error| SourceError::io(&path, "read the file back", error);
        let sha256 = sha256_of(&path).map_err(read)?;
        let bytes = path.metadata().map_err(read)?.len();
        Ok(Some(ExportedFile { path, blocks, bytes, sha256 }))
    }

    /// Starts a file in `folder`, which must exist.
    ///
    /// # Errors
    /// If no file can be created there, or `first_block` is not a multiple of 8192.
    pub fn create(
        folder: &Path,
        chain: &str,
        first_block: u64,
        with_receipts: bool,
    ) -> Result<Self, SourceError> {
        if !first_block.is_multiple_of(MAX_BLOCKS) {
            let kind = SourceErrorKind::Format("an ere file begins with a block that 8192 divides");
            return Err(SourceError::new(folder, SourcePlace::Block(first_block), kind));
        }
        let spool = || SectionSpool::create(folder);
        Ok(Self {
            folder: folder.to_owned(),
            chain: chain.to_owned(),
            first_block,
            headers: spool()?,
            bodies: spool()?,
            receipts: with_receipts.then(spool).transpose()?,
            records: Vec::new(),
            last: None,
            item: Vec::new(),
        })
    }

    /// Appends a block. `receipts` are ignored if the file has none. `total_difficulty` is that of a
    /// block from before the merge; it is ignored for later ones.
    ///
    /// # Errors
    /// If the block does not follow the one before, its receipts are missing or are not those of its
    /// header, or the disk fails. The writer cannot be used any more.
    pub fn write(
        &mut self,
        block: &Block,
        receipts: Option<Vec<SlimReceipt>>,
        total_difficulty: Option<U256>,
    ) -> Result<(), SourceError> {
        let hash = block.header.hash_slow();
        let number = block.header.number;
        let fail = |folder: &Path, kind| SourceError::new(folder, SourcePlace::Block(number), kind);
        self.check(block, hash, total_difficulty).map_err(|kind| fail(&self.folder, kind))?;
        let io = |this: &Self, error| {
            SourceError::io(&this.folder, "write a temporary file in the folder", error)
        };
        self.item.clear();
        block.header.encode(&mut self.item);
        self.headers.push(&self.item).map_err(|error| io(self, error))?;
        self.item.clear();
        block.body.encode(&mut self.item);
        self.bodies.push(&self.item).map_err(|error| io(self, error))?;
        if let Some(spool) = &mut self.receipts {
            let missing = SourceErrorKind::Format("its receipts are missing");
            let receipts = receipts.ok_or_else(|| fail(&self.folder, missing))?;
            self.item.clear();
            receipts.encode(&mut self.item);
            envelopes(receipts)
                .and_then(|receipts| check::receipts_root(&block.header, &receipts))
                .map_err(|kind| fail(&self.folder, kind))?;
            spool.push(&self.item).map_err(|error| {
                SourceError::io(&self.folder, "write a temporary file in the folder", error)
            })?;
        }
        self.last = Some(LastBlock { number, hash, is_merged: block.header.difficulty.is_zero() });
        Ok(())
    }

    /// Compares a block with the one before, and records it if it is from before the merge.
    fn check(
        &mut self,
        block: &Block,
        hash: B256,
        total_difficulty: Option<U256>,
    ) -> Result<(), SourceErrorKind> {
        let header = &block.header;
        let next = self.last.map_or(self.first_block, |last| last.number.saturating_add(1));
        same_number("block number", next, header.number)?;
        if next - self.first_block >= MAX_BLOCKS {
            return Err(SourceErrorKind::Format("an ere file has at most 8192 blocks"));
        }
        if let Some(last) = self.last {
            same_hash("parent hash", last.hash, header.parent_hash)?;
        }
        if header.difficulty.is_zero() {
            return Ok(());
        }
        if self.last.is_some_and(|last| last.is_merged) {
            return Err(SourceErrorKind::Format("a block with difficulty after the merge"));
        }
        let total_difficulty = total_difficulty.ok_or(SourceErrorKind::Format(
            "a block from before the merge needs its total difficulty",
        ))?;
        let parent = self.records.last().map(|record| record.total_difficulty);
        check::next_total_difficulty(parent, header, total_difficulty)?;
        self.records.push(HeaderRecord { block_hash: hash, total_difficulty });
        Ok(())
    }

    /// Makes the file durable and gives it its name. An existing file of this name is replaced.
    ///
    /// # Errors
    /// If no block was written, or the disk fails. There is then no new file.
    pub fn finish(self) -> Result<ExportedFile, SourceError> {
        let Self { folder, chain, first_block, headers, bodies, receipts, records, last, .. } =
            self;
        let Some(last) = last else {
            return Err(SourceError::new(&folder, SourcePlace::File, SourceErrorKind::NoBlocks));
        };
        let profile = EreProfile { no_receipts: receipts.is_none(), no_proofs: last.is_merged };
        let path =
            folder.join(Self::file_name(&chain, first_block, last.hash, profile).to_string());
        let blocks = last.number - first_block + 1;
        let target = AtomicFile::create(&path)?;
        let mut out =
            EntryWriter { target, hasher: Sha256::new(), position: 0, offsets: Vec::new() };
        let io = |error| SourceError::io(&path, "write the file", error);
        out.entry(entry_type::VERSION, &[]).map_err(io)?;
        out.section(EreComponent::Header, headers).map_err(io)?;
        out.section(EreComponent::Body, bodies).map_err(io)?;
        if let Some(receipts) = receipts {
            out.section(EreComponent::Receipts, receipts).map_err(io)?;
        }
        if let Some(tree) = AccumulatorTree::new(&records).filter(|_| !records.is_empty()) {
            if !last.is_merged {
                let proofs = (0..records.len()).filter_map(|position| tree.proof(position));
                out.entries(
                    EreComponent::Proof,
                    proofs.map(|branch| snappy(&HeaderProof::of_accumulator(&branch).encode())),
                )
                .map_err(io)?;
            }
            // Blocks after the merge repeat the last one.
            let repeated = records.last().into_iter().cycle();
            let each = records.iter().chain(repeated).take(blocks as usize);
            let each = each.map(|record| Ok(record.total_difficulty.to_le_bytes::<32>().to_vec()));
            out.entries(EreComponent::TotalDifficulty, each).map_err(io)?;
            out.entry(entry_type::ACCUMULATOR, tree.root().as_slice()).map_err(io)?;
        }
        out.index(first_block, blocks).map_err(io)?;
        let EntryWriter { target, hasher, position, .. } = out;
        target.finish(&path)?;
        let sha256 = B256::from_slice(&hasher.finalize());
        Ok(ExportedFile { path, blocks, bytes: position, sha256 })
    }
}

/// Compresses in snappy framed format.
fn snappy(data: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = FrameEncoder::new(Vec::new());
    encoder.write_all(data)?;
    encoder.into_inner().map_err(|error| io::Error::other(error.to_string()))
}

/// Data of the entries of one component, compressed, one behind the other.
#[derive(Debug)]
struct SectionSpool {
    file: BufWriter<File>,
    /// Bytes of each.
    lengths: Vec<u32>,
}

impl SectionSpool {
    fn create(folder: &Path) -> Result<Self, SourceError> {
        let file = tempfile::tempfile_in(folder)
            .map_err(|e| SourceError::io(folder, "create a temporary file in the folder", e))?;
        Ok(Self { file: BufWriter::with_capacity(1 << 20, file), lengths: Vec::new() })
    }

    fn push(&mut self, item: &[u8]) -> io::Result<()> {
        if item.len() as u64 > MAX_ITEM_BYTES {
            return Err(io::Error::other("a component of a block is larger than any reader takes"));
        }
        let packed = snappy(item)?;
        let length = u32::try_from(packed.len()).map_err(io::Error::other)?;
        self.lengths.push(length);
        self.file.write_all(&packed)
    }
}

/// Writes entries, and keeps their offsets.
struct EntryWriter {
    target: AtomicFile,
    hasher: Sha256,
    position: u64,
    /// Offsets of each section, with its component.
    offsets: Vec<(EreComponent, Vec<u64>)>,
}

impl Write for EntryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.target.write(bytes)?;
        let (taken, _) = bytes.split_at(written);
        self.hasher.update(taken);
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.target.flush()
    }
}

impl EntryWriter {
    fn header(&mut self, kind: u16, length: u32) -> io::Result<()> {
        let mut header = [0; ENTRY_HEADER as usize];
        header[..2].copy_from_slice(&kind.to_le_bytes());
        header[2..6].copy_from_slice(&length.to_le_bytes());
        self.write_all(&header)
    }

    fn entry(&mut self, kind: u16, data: &[u8]) -> io::Result<()> {
        self.header(kind, u32::try_from(data.len()).map_err(io::Error::other)?)?;
        self.write_all(data)
    }

    fn entries(
        &mut self,
        component: EreComponent,
        entries: impl Iterator<Item = io::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        let mut offsets = Vec::new();
        for data in entries {
            offsets.push(self.position);
            self.entry(component.entry_type(), &data?)?;
        }
        self.offsets.push((component, offsets));
        Ok(())
    }

    /// Copies a section from its temporary file.
    fn section(&mut self, component: EreComponent, spool: SectionSpool) -> io::Result<()> {
        let SectionSpool { file, lengths } = spool;
        let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        let mut file = io::BufReader::with_capacity(1 << 20, file);
        let mut offsets = Vec::with_capacity(lengths.len());
        for length in lengths {
            offsets.push(self.position);
            self.header(component.entry_type(), length)?;
            let mut data = io::Read::take(&mut file, length.into());
            if io::copy(&mut data, self)? != u64::from(length) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.offsets.push((component, offsets));
        Ok(())
    }

    fn index(&mut self, first_block: u64, blocks: u64) -> io::Result<()> {
        // Sections lie in another order than their offsets.
        self.offsets.sort_unstable_by_key(|(component, _)| *component as usize);
        let start = self.position;
        let mut words = vec![first_block];
        for position in 0..blocks as usize {
            let of_block =
                self.offsets.iter().filter_map(|(_, offsets)| offsets.get(position).copied());
            words.extend(of_block.map(|offset| offset.wrapping_sub(start)));
        }
        words.extend([self.offsets.len() as u64, blocks]);
        let data: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        self.entry(entry_type::DYNAMIC_BLOCK_INDEX, &data)
    }
}
