//! The blocks of a snapshot, with their receipts: [`ExportedBlocks`] gives them to an export, and
//! [`SnapshotBlocks`] has those that mirrors gave.
//!
//! Object `blocks/K` has the blocks whose numbers divided by 16 are `K`, oldest first: each one's RLP,
//! then the list of its receipts as peers send them, with blooms. All exports cut alike, so one mirror
//! goes on where another fails.
//!
//! The last block's hash is trusted. It proves the blocks below, newest first, and the roots in each
//! header its body and receipts.

use super::{SnapshotError, SnapshotManifest, SnapshotMirror};
use alloy_consensus::{
    Header, TxReceipt,
    proofs::{
        calculate_ommers_root, calculate_receipt_root, calculate_transaction_root,
        calculate_withdrawals_root,
    },
};
use alloy_primitives::{B256, Bloom, U256, keccak256};
use alloy_rlp::{Decodable, Encodable};
use retrie_chainspec::primitives::{Block, Receipt};
use retrie_sources::{ObjectFolder, SourceError};
use retrie_state::StateError;
use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Blocks of one object.
const BLOCKS_AT_ONCE: u64 = 16;
/// Longest object with blocks that is read, in bytes.
const MAX_OBJECT: u64 = 512 << 20;
/// Pauses after failures to read an object.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];
/// Folder of the objects, in a snapshot and in the folder of a sync.
const FOLDER: &str = "blocks";

type ReceiptWithBloom = alloy_consensus::ReceiptWithBloom<Receipt>;

/// Reads the canonical block of a number, and its receipts.
pub type BlockLookup<'a> = dyn Fn(u64) -> Result<(Block, Vec<Receipt>), StateError> + Sync + 'a;

/// Blocks that are exported: from `first` up to the block of the state.
#[expect(missing_debug_implementations, reason = "it has a function")]
#[derive(Clone, Copy)]
pub struct ExportedBlocks<'a> {
    /// Number of the first block, at least 1.
    pub first: u64,
    /// Reads a block.
    pub read: &'a BlockLookup<'a>,
}

fn object_name(object: u64) -> String {
    format!("{FOLDER}/{object:08}")
}

/// The objects of the blocks `first` to `last`.
fn objects(first: u64, last: u64) -> std::ops::RangeInclusive<u64> {
    first / BLOCKS_AT_ONCE..=last / BLOCKS_AT_ONCE
}

/// Writes the blocks up to `last` into a snapshot.
pub(super) fn write_blocks(
    source: ExportedBlocks<'_>,
    last: u64,
    folder: &ObjectFolder,
    stop: &AtomicBool,
) -> Result<(), SnapshotError> {
    for object in objects(source.first, last) {
        let (lowest, highest) = (object * BLOCKS_AT_ONCE, (object + 1) * BLOCKS_AT_ONCE - 1);
        let mut content = Vec::new();
        for number in lowest.max(source.first)..=highest.min(last) {
            if stop.load(Ordering::Relaxed) {
                return Err(SnapshotError::Stopped);
            }
            let (block, receipts) = (source.read)(number)?;
            let receipts: Vec<_> = receipts.into_iter().map(TxReceipt::into_with_bloom).collect();
            // Before Byzantium, receipts have state roots, which are not kept.
            if calculate_receipt_root(&receipts) != block.header.receipts_root {
                return Err(SnapshotError::UnprovenReceipts { number });
            }
            block.encode(&mut content);
            receipts.encode(&mut content);
        }
        folder.write(&object_name(object), content)?;
    }
    Ok(())
}

/// Removes the objects with the blocks of an earlier snapshot that the new one does not have.
pub(super) fn remove_surplus_blocks(
    folder: &ObjectFolder,
    before: &SnapshotManifest,
    now: &SnapshotManifest,
) -> Result<(), SnapshotError> {
    let of = |one: &SnapshotManifest| one.first_block.map(|first| objects(first, one.block_number));
    let kept = of(now);
    for object in of(before).into_iter().flatten() {
        if !kept.as_ref().is_some_and(|kept| kept.contains(&object)) {
            folder.remove(&object_name(object))?;
        }
    }
    Ok(())
}

/// What is needed of the blocks of one object, which the hash of the last one has proven.
struct ProvenBlocks {
    /// Hash of the block below the first one.
    parent: B256,
    /// Sum of their difficulties.
    difficulty: U256,
}

impl ProvenBlocks {
    /// Checks an object whose last block must have the hash `last`, and reach down to block `first`.
    fn check(content: &[u8], first: u64, last: B256) -> Result<Self, String> {
        let blocks = decode(content)?;
        let (mut wanted, mut difficulty, mut proven) = (last, U256::ZERO, None);
        // Those below `first`, of a mirror that begins earlier, are read back with the others.
        for (block, receipts) in blocks.iter().rev() {
            check(block, receipts, wanted)?;
            wanted = block.header.parent_hash;
            difficulty = difficulty.saturating_add(block.header.difficulty);
            if block.header.number == first {
                proven = Some(Self { parent: wanted, difficulty });
            }
        }
        proven.ok_or_else(|| format!("block {first} is not in it"))
    }
}

fn decode(content: &[u8]) -> Result<Vec<(Block, Vec<ReceiptWithBloom>)>, String> {
    let (mut rest, mut blocks) = (content, Vec::new());
    while !rest.is_empty() {
        if blocks.len() as u64 == BLOCKS_AT_ONCE {
            return Err(format!("it has more than {BLOCKS_AT_ONCE} blocks"));
        }
        let at = content.len() - rest.len();
        let failed = |what, error| format!("{what} at byte {at} is not valid RLP: {error}");
        let block = Block::decode(&mut rest).map_err(|error| failed("the block", error))?;
        let receipts =
            Decodable::decode(&mut rest).map_err(|error| failed("the list of receipts", error))?;
        blocks.push((block, receipts));
    }
    Ok(blocks)
}

/// Checks a block and its receipts by the block's hash.
fn check(block: &Block, receipts: &[ReceiptWithBloom], hash: B256) -> Result<(), String> {
    let Block { header, body } = block;
    let number = header.number;
    let got = keccak256(alloy_rlp::encode(header));
    if got != hash {
        return Err(format!("block {number} has the hash {got}, not {hash}"));
    }
    let wrong = |what: &str| Err(format!("{what} of block {number} ({hash}) are not its header's"));
    if calculate_transaction_root(&body.transactions) != header.transactions_root {
        return wrong("the transactions");
    }
    if calculate_ommers_root(&body.ommers) != header.ommers_hash {
        return wrong("the ommers");
    }
    let withdrawals = body.withdrawals.as_ref().map(|all| calculate_withdrawals_root(all));
    if withdrawals != header.withdrawals_root {
        return wrong("the withdrawals");
    }
    // The root proves the blooms; but only receipts whose logs have these blooms are stored.
    let has_bloom = |one: &ReceiptWithBloom| one.receipt.bloom() == one.logs_bloom;
    let bloom = receipts.iter().fold(Bloom::ZERO, |bloom, one| bloom | one.logs_bloom);
    if receipts.len() != body.transactions.len()
        || calculate_receipt_root(receipts) != header.receipts_root
        || bloom != header.logs_bloom
        || !receipts.iter().all(has_bloom)
    {
        return wrong("the receipts");
    }
    Ok(())
}

/// Reads an object. A failure to read may pass, unlike a missing or wrong object.
fn read_patiently(folder: &ObjectFolder, name: &str) -> Result<Option<Vec<u8>>, SourceError> {
    for pause in PAUSES {
        match folder.read(name, MAX_OBJECT) {
            Err(_) => thread::sleep(pause),
            read => return read,
        }
    }
    folder.read(name, MAX_OBJECT)
}

/// Proven blocks with their receipts, in files of the datadir.
#[derive(Debug)]
pub struct SnapshotBlocks {
    folder: ObjectFolder,
    first: u64,
    last: u64,
    difficulty: U256,
}

impl SnapshotBlocks {
    /// Fetches the blocks that end with `last` from these mirrors, down to the first one that any of
    /// them names. Objects that are below the folder `scratch` already, from an earlier call, are not
    /// fetched again. `tell` gets the number of the lowest block so far and of the first.
    ///
    /// A mirror with a wrong or missing object is not asked again. If none is left, the blocks end
    /// above that object, with a warning: a node can do without them. `None` if there are none.
    ///
    /// # Errors
    /// [`SnapshotError::Stopped`]; [`SnapshotError::Source`] if a file cannot be written.
    pub fn fetch(
        mirrors: &[Arc<SnapshotMirror>],
        last: &Header,
        scratch: &Path,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Self>, SnapshotError> {
        let of_mirror = |mirror: &Arc<SnapshotMirror>| mirror.manifest().first_block;
        let Some(first) = mirrors.iter().filter_map(of_mirror).min() else { return Ok(None) };
        let folder = ObjectFolder::new(retrie_sources::SourceLocation::from(scratch));
        let mut mirrors: Vec<_> =
            mirrors.iter().filter(|mirror| of_mirror(mirror).is_some()).collect();
        let mut wanted = last.hash_slow();
        let mut fetched =
            Self { folder, first: last.number + 1, last: last.number, difficulty: U256::ZERO };
        for object in objects(first.max(1), last.number).rev() {
            if stop.load(Ordering::Relaxed) {
                return Err(SnapshotError::Stopped);
            }
            let lowest = (object * BLOCKS_AT_ONCE).max(first).max(1);
            let Some(proven) = fetched.fetch_object(object, lowest, wanted, &mut mirrors)? else {
                tracing::warn!(
                    "no mirror has the blocks {lowest} to {}: older blocks will be missing",
                    fetched.first - 1
                );
                break;
            };
            (wanted, fetched.first) = (proven.parent, lowest);
            fetched.difficulty = fetched.difficulty.saturating_add(proven.difficulty);
            tell(lowest, first);
        }
        Ok((fetched.first <= fetched.last).then_some(fetched))
    }

    /// One object, from the files or else from a mirror.
    fn fetch_object(
        &self,
        object: u64,
        lowest: u64,
        last: B256,
        mirrors: &mut Vec<&Arc<SnapshotMirror>>,
    ) -> Result<Option<ProvenBlocks>, SnapshotError> {
        let name = object_name(object);
        if let Some(content) = self.folder.read(&name, MAX_OBJECT)?
            && let Ok(proven) = ProvenBlocks::check(&content, lowest, last)
        {
            return Ok(Some(proven));
        }
        while let Some(mirror) = mirrors.first() {
            let content = read_patiently(mirror.folder(), &name);
            let proven = content.map_err(|error| error.to_string()).and_then(|content| {
                let content = content.ok_or("there is no such object")?;
                Ok((ProvenBlocks::check(&content, lowest, last)?, content))
            });
            match proven {
                Ok((proven, content)) => {
                    self.folder.write(&name, content)?;
                    return Ok(Some(proven));
                }
                Err(reason) => {
                    let file = mirror.folder().name_of(&name);
                    tracing::warn!("left out: {}: {reason}", file.display());
                    mirrors.remove(0);
                }
            }
        }
        Ok(None)
    }

    /// Number of the first block.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Sum of the blocks' difficulties.
    pub const fn difficulty(&self) -> U256 {
        self.difficulty
    }

    /// The blocks with their receipts, oldest first. They were checked when they were fetched.
    pub fn iter(&self) -> impl Iterator<Item = io::Result<(Block, Vec<Receipt>)>> {
        let numbers = self.first..=self.last;
        objects(self.first, self.last).flat_map(move |object| {
            let name = object_name(object);
            let read = self.folder.read(&name, MAX_OBJECT).map_err(io::Error::other);
            let blocks = read.and_then(|content| {
                let content = content.ok_or(io::ErrorKind::NotFound)?;
                decode(&content).map_err(io::Error::other)
            });
            let (blocks, failed) = match blocks {
                Ok(blocks) => (blocks, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            let numbers = numbers.clone();
            let strip = |(block, receipts): (Block, Vec<ReceiptWithBloom>)| {
                Ok((block, receipts.into_iter().map(|receipt| receipt.receipt).collect()))
            };
            let wanted =
                blocks.into_iter().filter(move |(b, _)| numbers.contains(&b.header.number));
            wanted.map(strip).chain(failed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::manifest::tests::example, *};
    use alloy_consensus::{SignableTransaction, TxLegacy, TxType};
    use alloy_primitives::{Address, Log, Signature, TxKind};
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use retrie_chainspec::primitives::{BlockBody, Transaction};
    use std::{fs, path::PathBuf};

    type BlockWithReceipts = (Block, Vec<Receipt>);

    /// A chain of blocks 1 to `count`, of which every third one is empty.
    fn chain(count: u64) -> Vec<BlockWithReceipts> {
        let mut blocks: Vec<BlockWithReceipts> = Vec::new();
        for number in 1..=count {
            let mut body = BlockBody::default();
            let mut receipts = Vec::new();
            for n in 0..number % 3 {
                let to = TxKind::Call(Address::repeat_byte(n as u8));
                let unsigned = TxLegacy { nonce: number, to, ..TxLegacy::default() };
                let signature = Signature::new(U256::from(n + 1), U256::from(7), false);
                body.transactions.push(Transaction::from(unsigned.into_signed(signature)));
                let data = vec![number as u8; 9].into();
                let log = Log::new_unchecked(Address::repeat_byte(5), vec![B256::ZERO], data);
                receipts.push(Receipt {
                    tx_type: TxType::Legacy,
                    success: true,
                    cumulative_gas_used: 21_000 * (n + 1),
                    logs: vec![log],
                });
            }
            let blooms: Vec<_> = receipts.iter().map(TxReceipt::with_bloom_ref).collect();
            let header = Header {
                number,
                parent_hash: blocks.last().map_or(B256::ZERO, |(last, _)| last.header.hash_slow()),
                transactions_root: calculate_transaction_root(&body.transactions),
                receipts_root: calculate_receipt_root(&blooms),
                logs_bloom: blooms.iter().fold(Bloom::ZERO, |bloom, one| bloom | one.logs_bloom),
                difficulty: U256::from(number),
                ..Header::default()
            };
            blocks.push((Block { header, body }, receipts));
        }
        blocks
    }

    fn write(blocks: &[BlockWithReceipts], first: u64, to: &Path) -> Arc<SnapshotMirror> {
        let folder = ObjectFolder::new(to.into());
        let read = |number: u64| Ok(blocks[number as usize - 1].clone());
        let (source, last) = (ExportedBlocks { first, read: &read }, blocks.len() as u64);
        write_blocks(source, last, &folder, &AtomicBool::new(false)).unwrap();
        let mut manifest = example();
        (manifest.block_number, manifest.first_block) = (last, Some(first));
        Arc::new(SnapshotMirror::new(folder, manifest, to))
    }

    fn fetch(
        mirrors: &[Arc<SnapshotMirror>],
        blocks: &[BlockWithReceipts],
        to: &Path,
    ) -> Option<SnapshotBlocks> {
        let (last, stop) = (&blocks.last().unwrap().0.header, AtomicBool::new(false));
        SnapshotBlocks::fetch(mirrors, last, to, &stop, &mut |_, _| {}).unwrap()
    }

    fn check_all(fetched: &SnapshotBlocks, blocks: &[BlockWithReceipts], first: u64) {
        assert_eq!(fetched.first(), first);
        let got: Vec<_> = fetched.iter().map(Result::unwrap).collect();
        assert!(got == blocks[first as usize - 1..]);
        let sum = blocks[first as usize - 1..].iter().map(|(block, _)| block.header.difficulty);
        assert_eq!(fetched.difficulty(), sum.sum::<U256>());
    }

    #[test]
    fn blocks_come_as_they_were_written_from_the_mirror_that_goes_furthest() {
        let blocks = chain(50);
        for first in [1, 2, 15, 16, 17, 33, 50] {
            let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
            let [near, far, to] = folders.each_ref().map(|folder| folder.path());
            let mirrors = [write(&blocks, first.max(20), near), write(&blocks, first, far)];
            check_all(&fetch(&mirrors, &blocks, to).unwrap(), &blocks, first);
            // What is there is not fetched again.
            fs::remove_dir_all(far).unwrap();
            check_all(&fetch(&mirrors[1..], &blocks, to).unwrap(), &blocks, first);
        }
    }

    #[test]
    fn no_flipped_bit_is_accepted() {
        let blocks = chain(20);
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mirror = write(&blocks, 1, from.path());
        let file: PathBuf = from.path().join(object_name(1));
        let (content, mut random) = (fs::read(&file).unwrap(), StdRng::seed_from_u64(1));
        for _ in 0..500 {
            let mut mutated = content.clone();
            let at = random.random_range(0..mutated.len());
            match random.random_range(0..3) {
                0 => mutated[at] ^= 1 << random.random_range(0..8),
                1 => mutated.truncate(at),
                _ => mutated.insert(at, random.random()),
            }
            fs::write(&file, &mutated).unwrap();
            assert!(fetch(std::slice::from_ref(&mirror), &blocks, to.path()).is_none());
        }
        // Nor is a block before those that are needed, even if its number is one of theirs.
        let extra = [alloy_rlp::encode(&blocks[17].0), alloy_rlp::encode(&blocks[17].1)].concat();
        fs::write(&file, [extra, content.clone()].concat()).unwrap();
        assert!(fetch(std::slice::from_ref(&mirror), &blocks, to.path()).is_none());
        // The blocks end above the first object that no mirror has.
        fs::write(&file, &content).unwrap();
        fs::remove_file(from.path().join(object_name(0))).unwrap();
        check_all(&fetch(&[mirror], &blocks, to.path()).unwrap(), &blocks, 16);
    }

    #[test]
    fn receipts_that_no_header_proves_are_not_exported() {
        let mut blocks = chain(5);
        blocks[3].1[0].success = false;
        let to = tempfile::tempdir().unwrap();
        let folder = ObjectFolder::new(to.path().into());
        let read = |number: u64| Ok(blocks[number as usize - 1].clone());
        let source = ExportedBlocks { first: 2, read: &read };
        let error = write_blocks(source, 5, &folder, &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, SnapshotError::UnprovenReceipts { number: 4 }), "{error}");
    }
}
