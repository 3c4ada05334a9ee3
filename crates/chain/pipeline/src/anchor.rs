//! A chain that begins with the state after some block, not with genesis:
//! [`ChainStore::create_at`].
//!
//! ```text
//!  headers --> ChainAnchor: linked, by the rules of the chain ---.
//!  dump ----> codes into their table, entries sorted on disk ----+--> one transaction, or nothing
//!                                          bulk load of each store, roots checked
//! ```
//!
//! The last header is trusted: nothing here shows that it belongs to the canonical chain. The
//! caller proves this with a hash from elsewhere ([`ChainAnchor::new`]). From this header on,
//! everything that can be checked is checked.

use crate::{
    AnchorError, ChainOptions, ChainSetupError, ChainStore, InvalidBlockError, PipelineError,
    chain::{DB_FOLDER, write_genesis_block},
    entries::SortedEntries,
    store_set::{EntrySource, RootSet, StoreSetTxn},
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Receipt, RecoveredBlock, SealedHeader},
};
use retrie_db::{ChainRead, NewBlock, StateRootMode, WriteTxn};
use retrie_sources::{DumpedAccount, HeaderItem, StateDump};
use retrie_state::{
    Account, BackendKey, BlockRef, ChunkId, KeyForm, StateError, StateKey, StateValue, encode_slot,
};
use retrie_state_store::EntrySorter;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The block that a chain begins with, and its known ancestors. BLOCKHASH in the blocks after it
/// asks for up to 255 of them.
#[derive(Debug)]
pub struct ChainAnchor {
    blocks: Vec<AnchorBlock>,
    header: SealedHeader,
    /// The total difficulty of the last block.
    total_difficulty: U256,
}

/// The known part of a block of the anchor.
#[derive(Debug)]
enum AnchorBlock {
    Header(Box<SealedHeader>),
    Block(Arc<RecoveredBlock>),
}

impl AnchorBlock {
    fn new(spec: &Arc<ChainSpec>, item: HeaderItem) -> Result<Self, PipelineError> {
        match item {
            HeaderItem::Header(header) => {
                let header = SealedHeader::seal_slow(header);
                if header.number > 0 {
                    let spec = spec.for_header(&header);
                    retrie_consensus::validate_header(&spec, &header)
                        .map_err(|source| InvalidBlockError::rule(&header, source))?;
                }
                Ok(Self::Header(Box::new(header)))
            }
            HeaderItem::Block(block) if block.header.number == 0 => {
                Ok(Self::Header(Box::new(SealedHeader::seal_slow(block.header))))
            }
            HeaderItem::Block(block) => Ok(Self::Block(crate::prepare(spec, block)?.block)),
        }
    }

    fn header(&self) -> SealedHeader {
        match self {
            Self::Header(header) => (**header).clone(),
            Self::Block(block) => block.clone_sealed_header(),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Header(header) => header.number,
            Self::Block(block) => block.number,
        }
    }
}

/// Refuses header roots of a backend that cannot compute its root from a dump.
fn refuse_history_root(options: &ChainOptions) -> Result<(), PipelineError> {
    let needs_history = !options.backend.profile().state_determined_root;
    if options.root_mode == StateRootMode::Native && needs_history {
        return Err(AnchorError::HistoryRoot { backend: options.backend.identity().name }.into());
    }
    Ok(())
}

impl ChainAnchor {
    /// The anchor for a datadir with these options: the block of the last header. If `expected` is
    /// given, this block must have that hash. The other items are its ancestors, each the parent of
    /// the next one. `total_difficulty` is that of the last block; it is needed under proof of
    /// work.
    ///
    /// # Errors
    /// [`AnchorError`], or the rule that a header breaks.
    pub fn new(
        options: &ChainOptions,
        items: Vec<HeaderItem>,
        expected: Option<B256>,
        total_difficulty: Option<U256>,
    ) -> Result<Self, PipelineError> {
        let spec = &options.own_spec()?;
        let blocks: Vec<_> =
            items.into_iter().map(|item| AnchorBlock::new(spec, item)).collect::<Result<_, _>>()?;
        let headers: Vec<_> = blocks.iter().map(AnchorBlock::header).collect();
        let Some(header) = headers.last().cloned() else {
            return Err(AnchorError::NoHeader { root: B256::ZERO }.into());
        };
        let (number, got) = (header.number, header.hash());
        if let Some(expected) = expected.filter(|expected| *expected != got) {
            return Err(AnchorError::OtherHash { number, got, expected }.into());
        }
        for genesis in headers.iter().filter(|header| header.number == 0) {
            let (got, expected) = (genesis.hash(), spec.genesis_hash());
            if got != expected {
                let chain = spec.name().to_owned();
                return Err(ChainSetupError::ForeignGenesis { got, expected, chain }.into());
            }
        }
        for pair in headers.windows(2) {
            let (parent, header) = (&pair[0], &pair[1]);
            if header.parent_hash != parent.hash() {
                let parent = BlockRef::new(parent.number, parent.hash());
                let (number, hash) = (header.number, header.hash());
                return Err(AnchorError::Unlinked { number, hash, parent }.into());
            }
            let spec = spec.for_header(header);
            retrie_consensus::validate_header_against_parent(&spec, header, parent)
                .map_err(|source| InvalidBlockError::rule(header, source))?;
        }
        let sum = headers.iter().fold(U256::ZERO, |sum, one| sum.saturating_add(one.difficulty));
        let is_all = headers.first().is_some_and(|first| first.number == 0);
        let total_difficulty = match total_difficulty {
            Some(total) if total < sum || is_all && total != sum => {
                return Err(AnchorError::TotalDifficulty { total }.into());
            }
            Some(total) => total,
            None if is_all => sum,
            // What lies beyond the terminal one decides nothing any more.
            None if spec.is_pos(&header) => {
                spec.terminal_total_difficulty().unwrap_or_default().max(sum)
            }
            None => return Err(AnchorError::NoTotalDifficulty { number }.into()),
        };
        Ok(Self { blocks, header, total_difficulty })
    }

    /// As [`new`](Self::new) for a block whose state is a dump: a dump gives no backend the history
    /// that a history-dependent root needs.
    ///
    /// # Errors
    /// [`AnchorError::HistoryRoot`], checked first; as [`new`](Self::new).
    pub fn for_dump(
        options: &ChainOptions,
        items: Vec<HeaderItem>,
        expected: Option<B256>,
        total_difficulty: Option<U256>,
    ) -> Result<Self, PipelineError> {
        refuse_history_root(options)?;
        Self::new(options, items, expected, total_difficulty)
    }

    /// The genesis block, which must have the state root `root`.
    ///
    /// # Errors
    /// [`AnchorError::NoHeader`] if genesis has another root.
    pub fn genesis(options: &ChainOptions, root: B256) -> Result<Self, PipelineError> {
        refuse_history_root(options)?;
        let header = options.own_spec()?.genesis_header().clone();
        if header.state_root != root {
            return Err(AnchorError::NoHeader { root }.into());
        }
        let total_difficulty = header.difficulty;
        Ok(Self {
            blocks: vec![AnchorBlock::Header(Box::new(header.clone()))],
            header,
            total_difficulty,
        })
    }

    /// Header of the block.
    pub const fn header(&self) -> &SealedHeader {
        &self.header
    }

    fn block(&self) -> BlockRef {
        BlockRef::new(self.header.number, self.header.hash())
    }

    /// Number of known ancestors.
    pub fn ancestor_count(&self) -> usize {
        self.blocks.len() - 1
    }

    /// Writes the blocks, and makes the last of them the first block with a state. Those from the first
    /// one of `executed` on come from there, with receipts.
    fn write(
        &self,
        spec: &Arc<ChainSpec>,
        txn: &mut WriteTxn,
        executed: Option<AnchorHistory<'_>>,
    ) -> Result<(), PipelineError> {
        let anchor = self.header.number;
        let (first, later) = executed.as_ref().map_or_else(
            || (anchor.saturating_add(1), U256::ZERO),
            |all| (all.first, all.difficulty),
        );
        let before = || self.blocks.iter().take_while(|block| block.number() < first);
        let difficulties = before().map(|block| block.header().difficulty);
        let sum = difficulties.fold(later, U256::saturating_add);
        let mut total = self.total_difficulty.saturating_sub(sum);
        for block in before() {
            let header = block.header();
            total = total.saturating_add(header.difficulty);
            match block {
                AnchorBlock::Block(block) => {
                    txn.insert_block(&NewBlock::recovered(block, None, total))?;
                }
                AnchorBlock::Header(_) if header.number == 0 => write_genesis_block(txn, &header)?,
                AnchorBlock::Header(_) => {
                    txn.insert_header(header.hash(), header.header(), total)?
                }
            }
        }
        for block in executed.into_iter().flat_map(|executed| executed.blocks) {
            let (block, receipts) = block.map_err(|source| PipelineError::Io {
                action: "reading the blocks of a snapshot".into(),
                source,
            })?;
            total = total.saturating_add(block.header.difficulty);
            let block = crate::prepare(spec, block)?.block;
            txn.insert_block(&NewBlock::recovered(&block, Some(&receipts), total))?;
        }
        if anchor > 0 {
            txn.set_anchor(anchor, first)?;
        }
        let expected = self.header.hash();
        match txn.tip()? {
            Some(BlockRef { number, hash: got }) if number != anchor || got != expected => {
                Err(AnchorError::OtherHash { number, got, expected }.into())
            }
            _ => Ok(()),
        }
    }
}

/// What has been loaded so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadedState {
    /// Accounts.
    pub accounts: u64,
    /// Storage slots.
    pub slots: u64,
    /// Root of the own backend.
    pub root: B256,
    /// Whether a store's root was compared with the header's.
    pub is_checked: bool,
}

impl ChainStore {
    /// Creates a datadir whose chain begins with `anchor` and the state of `dump`, in one
    /// transaction: after an error or a kill the datadir is empty as before, and the same call can
    /// be made again.
    ///
    /// After each account, `progress` is called and `stop` is checked.
    ///
    /// # Errors
    /// [`AnchorError`]; [`InvalidBlockError::StateRoot`] if a store that checks header roots
    /// computes another root; errors of the dump, the database and the state stores.
    pub fn create_at(
        options: ChainOptions,
        anchor: &ChainAnchor,
        dump: StateDump,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(&LoadedState),
    ) -> Result<(Self, LoadedState), PipelineError> {
        let (number, hash, header) = {
            let header = anchor.header();
            (header.number, header.hash(), header.state_root)
        };
        refuse_history_root(&options)?;
        if dump.root() != header {
            let dump = dump.root();
            return Err(AnchorError::OtherState { dump, number, hash, header }.into());
        }
        let first = anchor.header().timestamp;
        Self::create(options, first, |chain| chain.load(anchor, dump, stop, progress))
    }

    /// Creates a datadir whose chain begins with `anchor` and a state that came in chunks; all of
    /// it or nothing, as [`create_at`](Self::create_at).
    ///
    /// # Errors
    /// [`InvalidBlockError::StateRoot`] if the state, or the state that the referee loads from its
    /// entries, has another root than the header; [`AnchorError::OtherRoot`] if it has another root
    /// than the trusted one; errors of the chunks, the database and the state stores.
    pub fn create_synced(
        options: ChainOptions,
        anchor: &ChainAnchor,
        state: ChunkedState<'_>,
    ) -> Result<(Self, LoadedState), PipelineError> {
        let first = anchor.header().timestamp;
        Self::create(options, first, |chain| chain.load_chunks(anchor, state))
    }

    fn create(
        options: ChainOptions,
        first: u64,
        load: impl FnOnce(&Self) -> Result<LoadedState, PipelineError>,
    ) -> Result<(Self, LoadedState), PipelineError> {
        let folder = options.datadir.join(DB_FOLDER);
        let is_new = !folder.exists();
        let created = Self::open_stores(options, Some(first)).and_then(|chain| {
            let tip = chain.db.begin_read()?.tip()?;
            if let Some(tip) = tip {
                let datadir = chain.db.datadir().to_owned();
                return Err(AnchorError::NotEmpty { datadir, tip }.into());
            }
            let loaded = load(&chain)?;
            chain.states.check_tips(&chain.db)?;
            Ok((chain, loaded))
        });
        if created.is_err() && is_new && folder.exists() {
            // An empty database would hold only the choice of a backend.
            std::fs::remove_dir_all(&folder).map_err(|source| PipelineError::Io {
                action: format!("removing {}", folder.display()),
                source,
            })?;
        }
        created
    }

    fn load(
        &self,
        anchor: &ChainAnchor,
        dump: StateDump,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(&LoadedState),
    ) -> Result<LoadedState, PipelineError> {
        let mut loaded = LoadedState::default();
        let mut txn = self.states.begin_write(&self.db)?;
        anchor.write(self.spec(), txn.rows(), None)?;
        let keys = self.state().keys();
        let mut sorter = EntrySorter::new(self.db.datadir());
        let mut preimages = self.preimage_sorter();
        for account in dump {
            if stop.load(Ordering::Relaxed) {
                return Err(AnchorError::Stopped.into());
            }
            let account = account?;
            preimages.put(&StateKey::Account(account.address))?;
            for (slot, _) in &account.storage {
                preimages.put(&StateKey::Slot(account.address, *slot))?;
            }
            sort(account, keys, &mut sorter, txn.rows(), &mut loaded)?;
            progress(&loaded);
        }
        preimages.write(txn.rows())?;
        let roots = txn.load(anchor.block(), &mut SortedEntries(sorter))?;
        self.finish(txn, anchor, roots, loaded)
    }

    fn load_chunks(
        &self,
        anchor: &ChainAnchor,
        state: ChunkedState<'_>,
    ) -> Result<LoadedState, PipelineError> {
        let mut txn = self.states.begin_write(&self.db)?;
        anchor.write(self.spec(), txn.rows(), state.executed)?;
        // Before the state, as a backend may need them.
        for code in state.codes {
            let (hash, code) = code.map_err(|source| PipelineError::Io {
                action: "reading the codes of contracts".into(),
                source,
            })?;
            txn.rows().insert_code(&hash, &code)?;
        }
        let mut counted = CountedEntries {
            entries: SortedEntries(state.entries),
            loaded: LoadedState::default(),
        };
        let roots = match state.parts {
            Some(parts) => txn.load_chunks(anchor.block(), parts, &mut counted)?,
            None => txn.load(anchor.block(), &mut counted)?,
        };
        if let Some(expected) = state.root.filter(|root| *root != roots.own) {
            let got = roots.own;
            return Err(AnchorError::OtherRoot { block: anchor.block(), got, expected }.into());
        }
        self.finish(txn, anchor, roots, counted.loaded)
    }

    /// Commits the states if their roots are right.
    fn finish(
        &self,
        mut txn: StoreSetTxn<'_>,
        anchor: &ChainAnchor,
        roots: RootSet,
        loaded: LoadedState,
    ) -> Result<LoadedState, PipelineError> {
        let is_checked = self.states.check_roots(anchor.header(), roots)? > 0;
        self.states.write_roots(txn.rows(), anchor.header().hash(), roots)?;
        txn.finish()?;
        Ok(LoadedState { root: roots.own, is_checked, ..loaded })
    }

    /// Refuses a block below the anchor, where there is no state.
    ///
    /// # Errors
    /// [`AnchorError::Below`].
    pub(crate) fn refuse_below_anchor(&self, number: u64) -> Result<(), PipelineError> {
        let anchor = self.db.begin_read()?.anchor()?;
        if number < anchor {
            return Err(AnchorError::Below { number, anchor }.into());
        }
        Ok(())
    }
}

/// Gives one account to the sorter, and its code to the database.
fn sort(
    account: DumpedAccount,
    keys: KeyForm,
    sorter: &mut EntrySorter,
    txn: &mut WriteTxn,
    loaded: &mut LoadedState,
) -> Result<(), PipelineError> {
    let DumpedAccount { address, nonce, balance, code, storage } = account;
    let mut code_hash = KECCAK256_EMPTY;
    if !code.is_empty() {
        code_hash = keccak256(&code);
        txn.insert_code(&code_hash, &code)?;
    }
    let value = Account { nonce, balance, code_hash }.encode();
    sorter.put(&keys.key(&StateKey::Account(address)), &value)?;
    loaded.accounts += 1;
    for (slot, value) in storage {
        if let Some(value) = encode_slot(value) {
            sorter.put(&keys.key(&StateKey::Slot(address, slot)), &value)?;
            loaded.slots += 1;
        }
    }
    Ok(())
}

/// A state that came in chunks (see [`StateChunks::load`](retrie_state::StateChunks::load)).
#[expect(missing_debug_implementations, reason = "its codes are an iterator")]
pub struct ChunkedState<'a> {
    /// The root of the own backend that the state must have, if that is known.
    pub root: Option<B256>,
    /// The chunks that the entries came in, if they are those of the own backend.
    pub parts: Option<&'a [(ChunkId, u64)]>,
    /// All entries: accounts and slots, with keys in the form of the datadir.
    pub entries: EntrySorter,
    /// The codes of all contracts, with their hashes.
    pub codes: &'a mut dyn Iterator<Item = io::Result<(B256, Bytes)>>,
    /// Blocks up to the anchor's, if they came as well.
    pub executed: Option<AnchorHistory<'a>>,
}

/// Blocks up to and with that of an anchor, with receipts that their headers prove.
#[expect(missing_debug_implementations, reason = "it has an iterator")]
pub struct AnchorHistory<'a> {
    /// Number of the first one, at least 1.
    pub first: u64,
    /// Sum of their difficulties.
    pub difficulty: U256,
    /// All of them, oldest first.
    pub blocks: &'a mut dyn Iterator<Item = io::Result<(Block, Vec<Receipt>)>>,
}

/// Entries that are counted when they are read.
struct CountedEntries {
    entries: SortedEntries,
    loaded: LoadedState,
}

impl EntrySource for CountedEntries {
    fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>>, PipelineError>
    {
        self.loaded = LoadedState::default();
        let loaded = &mut self.loaded;
        let count = |entry: &Result<(BackendKey, StateValue), StateError>| match entry {
            Ok((BackendKey::Account(_), _)) => loaded.accounts += 1,
            Ok((BackendKey::Slot(..), _)) => loaded.slots += 1,
            Err(_) => {}
        };
        Ok(self.entries.entries()?.inspect(count))
    }
}
