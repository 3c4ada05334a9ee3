//! [`LiveView`]: a consistent snapshot of the chain, for reading.

use crate::{
    live::{ChainSnapshot, LiveChain},
    live_table::LiveTable,
};
use alloy_consensus::transaction::Recovered;
use alloy_primitives::{Address, B256, Bytes, U256, map::HashSet};
use retrie_chainspec::primitives::{
    BlockBody, Header, Receipt, RecoveredBlock, SealedHeader, Transaction,
};
use retrie_db::{ChainRead, KeyPreimage, LogQuery, ReadTxn, StoredTransaction, add_to_table};
use retrie_log_tables::{TableBuilder, TableSpan};
use retrie_pipeline::{BlockWithReceipts, ExecutedBlock, PipelineError, RootKind, StatePatch};
use retrie_state::{AccountKey, BlockRef};
use std::{fmt, ops::RangeInclusive, sync::Arc};

/// Number of blocks at the head. The view makes index tables that end there when a caller asks for
/// them, because the indexer may not have stored them yet.
const MADE_TABLES: u64 = 64;

/// A snapshot of the chain: its blocks in memory and the durable chain below them.
#[derive(Clone)]
pub struct LiveView {
    live: LiveChain,
    snapshot: Arc<ChainSnapshot>,
    read: Arc<ReadTxn>,
}

impl fmt::Debug for LiveView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("head", &self.snapshot.head).finish_non_exhaustive()
    }
}

impl LiveView {
    pub(crate) fn new(live: LiveChain, moment: Arc<ChainSnapshot>, read: ReadTxn) -> Self {
        Self { live, snapshot: moment, read: Arc::new(read) }
    }

    /// The live chain that this is a view of.
    pub const fn live(&self) -> &LiveChain {
        &self.live
    }

    /// Sequence number of this view's snapshot, counted since the start of the process.
    pub fn sequence(&self) -> u64 {
        self.snapshot.sequence
    }

    /// Header of the head.
    pub fn head(&self) -> &SealedHeader {
        &self.snapshot.head
    }

    /// The block that the consensus client calls safe, if it has named one.
    pub fn safe(&self) -> Option<BlockRef> {
        self.snapshot.safe
    }

    /// The block that the consensus client calls finalized, if it has named one.
    pub fn finalized(&self) -> Option<BlockRef> {
        self.snapshot.finalized
    }

    /// The durable part of the chain.
    pub fn durable(&self) -> &ReadTxn {
        &self.read
    }

    /// Hash of the canonical block `number`.
    ///
    /// # Errors
    /// If the database fails; this holds for all methods below.
    pub fn canonical_hash(&self, number: u64) -> Result<Option<B256>, PipelineError> {
        if number > self.snapshot.head.number {
            return Ok(None);
        }
        if let Some(block) = self.block_in_memory(number) {
            return Ok(Some(block.block().hash()));
        }
        Ok(self.read.canonical_hash(number)?)
    }

    /// Whether the block is canonical.
    pub fn is_canonical(&self, hash: &B256) -> Result<bool, PipelineError> {
        // The database cannot decide it, since it may have changed since this snapshot.
        match self.block_number(hash)? {
            Some(number) => Ok(self.canonical_hash(number)? == Some(*hash)),
            None => Ok(false),
        }
    }

    /// Number of a known block.
    pub fn block_number(&self, hash: &B256) -> Result<Option<u64>, PipelineError> {
        match self.snapshot.blocks.get(hash) {
            Some(block) => Ok(Some(block.block().number)),
            None => Ok(self.read.block_number(hash)?),
        }
    }

    /// Header of a known block, canonical or not.
    pub fn header(&self, hash: &B256) -> Result<Option<SealedHeader>, PipelineError> {
        if *hash == self.snapshot.head.hash() {
            return Ok(Some(self.snapshot.head.clone()));
        }
        if let Some(block) = self.snapshot.blocks.get(hash) {
            return Ok(Some(block.block().clone_sealed_header()));
        }
        Ok(self.read.header(hash)?.map(|header: Header| SealedHeader::new(header, *hash)))
    }

    /// Header of the canonical block `number`.
    pub fn header_by_number(&self, number: u64) -> Result<Option<SealedHeader>, PipelineError> {
        if number > self.snapshot.head.number {
            return Ok(None);
        }
        if let Some(block) = self.block_in_memory(number) {
            return Ok(Some(block.block().clone_sealed_header()));
        }
        let found = self.read.canonical_headers(number).next().transpose()?;
        Ok(found.map(|(hash, header)| SealedHeader::new(header, hash)))
    }

    /// Numbers of the canonical blocks of `range`, in order, that may have logs for `query`: all
    /// blocks that are in memory or not indexed yet, and the blocks that the log index names.
    pub fn log_candidates<'a>(
        &'a self,
        query: &'a LogQuery,
        range: RangeInclusive<u64>,
    ) -> Result<impl Iterator<Item = Result<u64, PipelineError>> + 'a, PipelineError> {
        // The database may have other blocks of the same numbers as those in memory.
        let durable = self.last_below_memory();
        let candidates = self.read.log_candidates(query, range, durable)?;
        Ok(candidates.map(|number| number.map_err(PipelineError::from)))
    }

    /// The index table (EIP-8304) of canonical blocks: the stored one, or for recent blocks one that is
    /// made from their receipts. `None` if there is none, or receipts are missing.
    pub fn index_table(&self, span: TableSpan) -> Result<Option<LiveTable<'_>>, PipelineError> {
        if span.last() > self.head().number {
            return Ok(None);
        }
        if self.is_below_memory(span.last())
            && let Some(table) = self.read.index_table(span)?
        {
            return Ok(Some(LiveTable::Stored(table)));
        }
        if !self.is_made_when_asked(span) {
            return Ok(None);
        }
        let mut table = TableBuilder::default();
        for number in span.first()..=span.last() {
            let Some(hash) = self.canonical_hash(number)? else { return Ok(None) };
            if !self.add_to_table(&mut table, &hash)? {
                return Ok(None);
            }
        }
        Ok(Some(LiveTable::Made(table.finish())))
    }

    /// Whether there may be such a table; it is not read.
    pub fn has_index_table(&self, span: TableSpan) -> Result<bool, PipelineError> {
        if span.last() > self.head().number {
            return Ok(false);
        }
        if self.is_made_when_asked(span) {
            return Ok(true);
        }
        Ok(self.is_below_memory(span.last()) && self.read.has_index_table(span)?)
    }

    /// Adds a known block to an index table; `false` if its receipts are not there.
    pub fn add_to_table(
        &self,
        table: &mut TableBuilder,
        hash: &B256,
    ) -> Result<bool, PipelineError> {
        if let Some(block) = self.snapshot.blocks.get(hash) {
            let (block, receipts) = (block.block(), block.receipts());
            return Ok(add_to_table(table, block.header(), &block.body().transactions, receipts));
        }
        Ok(self.read.add_to_table(table, hash)?)
    }

    /// The highest canonical block that the database alone has.
    pub(crate) fn last_below_memory(&self) -> u64 {
        match self.snapshot.canonical.first() {
            Some(first) => first.block().number.saturating_sub(1),
            None => self.snapshot.head.number,
        }
    }

    /// Whether the database alone has the canonical block of this number.
    fn is_below_memory(&self, number: u64) -> bool {
        let first = self.snapshot.canonical.first();
        first.is_none_or(|first| number < first.block().number)
    }

    fn is_made_when_asked(&self, span: TableSpan) -> bool {
        span.last().saturating_add(MADE_TABLES) > self.head().number
    }

    /// A known block, canonical or not, with the senders of its transactions.
    pub fn block(&self, hash: &B256) -> Result<Option<Arc<RecoveredBlock>>, PipelineError> {
        if let Some(block) = self.snapshot.blocks.get(hash) {
            return Ok(Some(block.data.block.clone()));
        }
        Ok(self.read.recovered_block(hash)?.map(Arc::new))
    }

    /// Body of a known block, canonical or not.
    pub fn body(&self, hash: &B256) -> Result<Option<BlockBody>, PipelineError> {
        if let Some(block) = self.snapshot.blocks.get(hash) {
            return Ok(Some(block.block().body().clone()));
        }
        Ok(self.read.body(hash)?)
    }

    /// RLP of the block access list (EIP-7928) of a known block; `None` also if it is not kept.
    pub fn access_list(&self, hash: &B256) -> Result<Option<Bytes>, PipelineError> {
        if let Some(block) = self.snapshot.blocks.get(hash) {
            return Ok(block.access_list.as_ref().map(|list| alloy_rlp::encode(list).into()));
        }
        Ok(self.read.access_list(hash)?)
    }

    /// Receipts of a known block; `None` also if they are not stored.
    pub fn receipts(&self, hash: &B256) -> Result<Option<Arc<Vec<Receipt>>>, PipelineError> {
        if let Some(block) = self.snapshot.blocks.get(hash) {
            return Ok(Some(block.data.receipts.clone()));
        }
        Ok(self.read.receipts(hash)?.map(Arc::new))
    }

    /// Hash of the `index`-th transaction of a known block; `None` also if it has no such
    /// transaction.
    pub fn transaction_hash(
        &self,
        block: &B256,
        index: u32,
    ) -> Result<Option<B256>, PipelineError> {
        if let Some(block) = self.snapshot.blocks.get(block) {
            let transactions = &block.block().body().transactions;
            return Ok(transactions.get(index as usize).map(|one| *one.tx_hash()));
        }
        Ok(self.read.transaction_hash(block, index)?)
    }

    /// A known block with its receipts; `None` also if these are not stored.
    pub fn block_with_receipts(
        &self,
        hash: &B256,
    ) -> Result<Option<BlockWithReceipts>, PipelineError> {
        let Some(block) = self.block(hash)? else { return Ok(None) };
        Ok(self.receipts(hash)?.map(|receipts| BlockWithReceipts { block, receipts }))
    }

    /// A canonical transaction by its hash.
    pub fn transaction(&self, hash: &B256) -> Result<Option<StoredTransaction>, PipelineError> {
        for block in &self.snapshot.canonical {
            let block = block.block();
            let transactions = &block.body().transactions;
            if let Some(index) = transactions.iter().position(|one| one.hash() == hash) {
                return Ok(Some(StoredTransaction {
                    transaction: transactions[index].clone(),
                    sender: block.senders()[index],
                    block: BlockRef::new(block.number, block.hash()),
                    index: index as u32,
                }));
            }
        }
        let found = self.read.transaction_by_hash(hash)?;
        // The database may have moved on: its transaction must be canonical in this view.
        match found {
            Some(found) if self.is_canonical(&found.block.hash)? => Ok(Some(found)),
            _ => Ok(None),
        }
    }

    /// The transactions of the canonical blocks in memory, which may not be durable yet, in order.
    pub(crate) fn transactions_in_memory(&self) -> Vec<Recovered<Transaction>> {
        let blocks = self.snapshot.canonical.iter();
        blocks.flat_map(|block| block.block().clone_transactions_recovered()).collect()
    }

    /// Hashes of the transactions of the canonical blocks in memory.
    pub(crate) fn transaction_hashes_in_memory(&self) -> HashSet<B256> {
        let transactions =
            self.snapshot.canonical.iter().flat_map(|block| &block.block().body().transactions);
        transactions.map(|transaction| *transaction.hash()).collect()
    }

    /// Sum of the difficulties up to and including a known block.
    pub fn total_difficulty(&self, hash: &B256) -> Result<Option<U256>, PipelineError> {
        match self.snapshot.blocks.get(hash) {
            Some(block) => Ok(Some(block.chain.total_difficulty)),
            None => Ok(self.read.total_difficulty(hash)?),
        }
    }

    /// Root that the node's own backend computed for a known block; the header may have another.
    pub fn state_root(&self, hash: &B256) -> Result<Option<B256>, PipelineError> {
        match self.snapshot.blocks.get(hash) {
            Some(block) => Ok(Some(block.states.own.root())),
            None => Ok(self.read.root(hash, self.live.chain().state().identity().name)?),
        }
    }

    /// The other root of a known block, on a chain that switches to the binary tree: of the kind that
    /// its header would carry on the other side of the switch. `None` if no store computes it.
    pub fn shadow_root(&self, block: &SealedHeader) -> Result<Option<B256>, PipelineError> {
        let states = self.live.chain().states();
        let Some((store, is_referee)) = states.shadow_store(block.timestamp) else {
            return Ok(None);
        };
        match self.snapshot.blocks.get(&block.hash()) {
            Some(block) if is_referee => Ok(block.roots().referee),
            Some(block) => Ok(Some(block.roots().own)),
            None => Ok(self.read.root(&block.hash(), store.identity().name)?),
        }
    }

    /// The last canonical block whose header carries the root of the Merkle Patricia trie, if the
    /// header of a block above it carries that of the binary tree.
    pub fn last_merkle_block(&self) -> Result<Option<SealedHeader>, PipelineError> {
        let kind = |header: &SealedHeader| self.live.chain().root_kind(header.timestamp);
        if kind(self.head()) == RootKind::Merkle {
            return Ok(None);
        }
        // Times rise with numbers. Headers that are not kept count as earlier ones.
        let (mut below, mut above) = (None, self.head().number);
        let mut first = 0;
        while first < above {
            let middle = first.midpoint(above);
            match self.header_by_number(middle)? {
                Some(header) if kind(&header) == RootKind::Binary => above = middle,
                found => {
                    below = found;
                    first = middle + 1;
                }
            }
        }
        Ok(below)
    }

    /// A block in memory, with its state.
    pub(crate) fn executed(&self, hash: &B256) -> Option<&Arc<ExecutedBlock>> {
        self.snapshot.blocks.get(hash)
    }

    /// Contract code by its hash.
    pub fn code(&self, hash: &B256) -> Result<Option<Bytes>, PipelineError> {
        for block in self.snapshot.blocks.values() {
            if let Some((_, code)) = block.codes.iter().find(|(known, _)| known == hash) {
                return Ok(Some(code.clone()));
            }
        }
        let in_patch = self.snapshot.patch.as_ref().and_then(|patch| patch.delta.code(hash));
        match in_patch {
            Some(code) => Ok(Some(code.clone())),
            None => Ok(self.read.code(hash)?),
        }
    }

    /// The address or slot with this keccak-256: of a block in memory, of a dev chain's patch, or
    /// stored.
    pub fn preimage(&self, hash: &B256) -> Result<Option<KeyPreimage>, PipelineError> {
        let in_memory = self.snapshot.blocks.values().find_map(|block| block.preimage(hash));
        let in_patch = || {
            let changes = self.snapshot.patch.iter().flat_map(|patch| patch.delta.changes());
            let mut preimages = changes.flat_map(|change| KeyPreimage::of(&change.key));
            preimages.find(|preimage| preimage.hash() == *hash)
        };
        match in_memory.or_else(in_patch) {
            Some(preimage) => Ok(Some(preimage)),
            None => Ok(self.read.preimage(hash)?),
        }
    }

    /// The address of an account as the state store names it; `None` if it names it by a hash whose
    /// preimage is not known.
    pub fn address_of(&self, account: &AccountKey) -> Result<Option<Address>, PipelineError> {
        match account.address() {
            Some(address) => Ok(Some(address)),
            None => {
                let preimage = self.preimage(&B256::from_slice(account))?;
                Ok(preimage.and_then(|preimage| preimage.address()))
            }
        }
    }

    /// The head, if it is in memory.
    pub(crate) fn head_in_memory(&self) -> Option<&Arc<ExecutedBlock>> {
        self.snapshot.canonical.last()
    }

    /// The patch of a dev chain that a known block begins with: changes of its parent's state by
    /// the user.
    pub(crate) fn patch_before(
        &self,
        block: &B256,
    ) -> Result<Option<Arc<StatePatch>>, PipelineError> {
        match self.snapshot.blocks.get(block).and_then(|block| block.patch.clone()) {
            Some(patch) => Ok(Some(patch)),
            None => Ok(StatePatch::stored(&*self.read, block)?.map(Arc::new)),
        }
    }

    /// Whether any canonical block begins with such a patch.
    pub(crate) fn has_patches(&self) -> Result<bool, PipelineError> {
        let in_memory = self.snapshot.canonical.iter().any(|block| block.patch.is_some());
        Ok(in_memory || self.read.has_patches()?)
    }

    /// The pending patch of a dev chain, if this block is the head. Reads of the head's state
    /// include it; the next block brings it into the root.
    pub(crate) fn patch(&self, hash: &B256) -> Option<&Arc<StatePatch>> {
        self.snapshot.patch.as_ref().filter(|_| self.snapshot.head.hash() == *hash)
    }

    fn block_in_memory(&self, number: u64) -> Option<&Arc<ExecutedBlock>> {
        let canonical = &self.snapshot.canonical;
        let first = canonical.first()?.block().number;
        canonical.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }
}
