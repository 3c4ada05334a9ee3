//! What a block reads besides the state: codes and ancestor hashes; and the cache of codes.

use alloy_primitives::{B256, Bytes, map::HashMap};
use core::{fmt, hash::BuildHasher};
use quick_cache::{Weighter, sync::Cache};
use retrie_log_tables::TableSpan;
use retrie_state::{StateError, StateReader};
use revm::bytecode::Bytecode;

/// Reads contract codes, which are stored outside the state, by their keccak-256. All threads that
/// execute a block share it.
pub trait CodeReader: Sync {
    /// The code with this hash, `None` if it is not stored.
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError>;
}

/// Reads the hashes of the ancestors of the executed block. All threads that execute the block
/// share it.
pub trait BlockHashes: Sync {
    /// Hash of the ancestor `number`, `None` if it is not known.
    ///
    /// The EVM asks only for the 256 ancestors before the block (BLOCKHASH, yellow paper 9.4), and
    /// never for its parent, whose hash is in the header.
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError>;

    /// Root of the index table (EIP-8304) of some ancestors of the executed block, `None` if it cannot
    /// be computed: their receipts are not known.
    ///
    /// Only asked for on chains with index tables.
    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        let _ = span;
        Ok(None)
    }
}

impl<T: CodeReader + ?Sized> CodeReader for &T {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        (**self).code(hash)
    }
}

impl<T: BlockHashes + ?Sized> BlockHashes for &T {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        (**self).block_hash(number)
    }

    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        (**self).table_root(span)
    }
}

impl<S: BuildHasher + Sync> CodeReader for HashMap<B256, Bytes, S> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(self.get(hash).cloned())
    }
}

impl<S: BuildHasher + Sync> BlockHashes for HashMap<u64, B256, S> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        Ok(self.get(&number).copied())
    }
}

/// No codes: for chains of plain transfers.
impl CodeReader for () {
    fn code(&self, _: &B256) -> Result<Option<Bytes>, StateError> {
        Ok(None)
    }
}

/// No ancestors: for chains whose contracts never use BLOCKHASH.
impl BlockHashes for () {
    fn block_hash(&self, _: u64) -> Result<Option<B256>, StateError> {
        Ok(None)
    }
}

/// Everything the execution of one block reads from.
#[derive(Clone, Copy)]
pub struct ExecutionInput<'a> {
    /// State of the parent block.
    pub state: &'a dyn StateReader,
    /// Codes of all contracts in that state.
    pub codes: &'a dyn CodeReader,
    /// Hashes of ancestors.
    pub hashes: &'a dyn BlockHashes,
    /// Analysed codes of earlier blocks, if the caller keeps them.
    pub code_cache: Option<&'a CodeCache>,
}

impl<'a> ExecutionInput<'a> {
    /// Input without a code cache.
    pub const fn new(
        state: &'a dyn StateReader,
        codes: &'a dyn CodeReader,
        hashes: &'a dyn BlockHashes,
    ) -> Self {
        Self { state, codes, hashes, code_cache: None }
    }

    /// The same input with a cache of analysed codes.
    pub const fn with_code_cache(self, cache: &'a CodeCache) -> Self {
        Self { code_cache: Some(cache), ..self }
    }
}

impl fmt::Debug for ExecutionInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionInput")
            .field("code_cache", &self.code_cache)
            .finish_non_exhaustive()
    }
}

/// Bounded cache from code hash to analysed code (jump destinations found, padding added).
///
/// Entries are addressed by their content, so they are valid for every state and every fork, and
/// the cache may be shared between threads, chains and backends.
pub struct CodeCache {
    codes: Cache<B256, Bytecode, CodeWeighter>,
}

/// Bytes of an entry besides the code: key, allocation headers, jump table of a small code.
const ENTRY_OVERHEAD: u64 = 160;

#[derive(Clone, Copy, Debug)]
struct CodeWeighter;

impl Weighter<B256, Bytecode> for CodeWeighter {
    fn weight(&self, _: &B256, code: &Bytecode) -> u64 {
        // One bit of jump table per byte of code.
        let length = code.len() as u64;
        length + length / 8 + ENTRY_OVERHEAD
    }
}

impl CodeCache {
    /// A cache of at most about `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        const TYPICAL_CODE: u64 = 6 * 1024;
        let items = (bytes / TYPICAL_CODE).clamp(16, 1 << 20) as usize;
        Self { codes: Cache::with_weighter(items, bytes, CodeWeighter) }
    }

    /// Whether the code with this hash is cached.
    pub fn contains(&self, hash: &B256) -> bool {
        self.codes.contains_key(hash)
    }

    pub(crate) fn get(&self, hash: &B256) -> Option<Bytecode> {
        self.codes.get(hash)
    }

    pub(crate) fn insert(&self, hash: B256, code: Bytecode) {
        self.codes.insert(hash, code);
    }

    /// Number of cached codes.
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }
}

impl Default for CodeCache {
    /// 64 MiB: more than the codes that a few hundred busy mainnet blocks call.
    fn default() -> Self {
        Self::new(64 << 20)
    }
}

impl fmt::Debug for CodeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeCache")
            .field("len", &self.codes.len())
            .field("bytes", &self.codes.weight())
            .finish()
    }
}
