//! [`PeerBlocks`]: the source of blocks that the follower reads.

use crate::{
    BlockSyncFigures, BlockSyncOptions,
    bodies::MOST_HELD,
    error::BlockSyncError,
    shared::{BlockSyncSchedulers, BlockSyncShared},
    skeleton::{HeaderSpan, SealedHeader, SkeletonPair},
};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use retrie_p2p::handle::NetworkHandle;
use retrie_sources::{BlockFetcher, BlockTag, FetchError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// Number of headers in the first request downwards from a hash.
const FIRST_HEADERS: u64 = 64;
/// How often the progress with headers is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(8);

/// The blocks of the connected peers.
#[derive(Debug)]
pub struct PeerBlocks {
    shared: Arc<BlockSyncShared>,
    skeletons: Mutex<SkeletonPair>,
}

impl PeerBlocks {
    /// Takes blocks from these peers. Requests run on `runtime`; waiting callers get an error once
    /// `stop` is set.
    pub fn new(
        peers: NetworkHandle,
        options: BlockSyncOptions,
        runtime: Handle,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let shared = BlockSyncShared::new(peers, options, runtime, stop);
        Self { shared: Arc::new(shared), skeletons: Mutex::default() }
    }

    /// The counters of block sync.
    pub fn figures(&self) -> Arc<BlockSyncFigures> {
        self.shared.figures.clone()
    }

    // -- headers ----------------------------------------------------------------------------------

    /// The header with this hash. It begins a skeleton below it, unless it is in the current one.
    fn header(&self, hash: B256) -> Result<Arc<SealedHeader>, BlockSyncError> {
        let mut skeletons = self.skeletons.lock();
        let current = skeletons.current.as_ref();
        if let Some(named) = current.and_then(|skeleton| skeleton.by_hash(&hash)) {
            return Ok(named.clone());
        }
        let goes_on = current.is_some_and(|skeleton| skeleton.lowest().1 == hash);
        let span = HeaderSpan { top: None, hash, count: FIRST_HEADERS };
        let headers = self.shared.headers_of(span)?;
        let first = headers.first().cloned();
        if goes_on {
            skeletons.extend(headers);
        } else {
            skeletons.begin(headers);
            let mut schedulers = self.shared.schedulers.lock();
            schedulers.headers.clear();
            schedulers.bodies.clear();
        }
        first.ok_or(BlockSyncError::UnknownBlock { hash, peers: 0 })
    }

    /// The header with this number on the current skeleton.
    pub(crate) fn header_at(&self, number: u64) -> Result<Arc<SealedHeader>, BlockSyncError> {
        let mut skeletons = self.skeletons.lock();
        let mut told = Instant::now();
        loop {
            let current = skeletons.current.as_mut();
            let Some(skeleton) = current.filter(|skeleton| number <= skeleton.head().0) else {
                return Err(BlockSyncError::AboveHead { number });
            };
            if let Some(named) = skeleton.by_number(number) {
                return Ok(named.clone());
            }
            if let Some(span) = skeleton.gap_at(number) {
                skeleton.fill(self.shared.headers_of(span)?);
                continue;
            }
            let (lowest, below) = skeleton.lowest();
            if lowest <= number {
                return Err(BlockSyncError::AboveHead { number });
            }
            let head = skeleton.head().0;
            if told.elapsed() >= LOG_INTERVAL {
                told = Instant::now();
                tracing::info!(
                    "headers from peers: at block {lowest}, from {head} down to {number}"
                );
            }
            // Headers in the older skeleton are not fetched again.
            let bottom = skeletons.older_head().filter(|older| *older < lowest - 1);
            let bottom = bottom.map_or(number, |older| number.max(older + 1));
            let headers = self.shared.headers_down((lowest - 1, below), bottom)?;
            skeletons.extend(headers);
        }
    }

    // -- bodies -----------------------------------------------------------------------------------

    /// The block with this header. The blocks above it are fetched meanwhile.
    fn block(&self, named: &Arc<SealedHeader>) -> Result<Block, BlockSyncError> {
        let shared = &self.shared;
        let number = named.header.number;
        let begun = Instant::now();
        shared.needed.store(number, Ordering::Relaxed);
        let mut schedulers = shared.schedulers.lock();
        let mut seen = shared.figures.bodies.load(Ordering::Relaxed);
        let mut since = begun;
        loop {
            if let Some(landed) = schedulers.bodies.take(&named.hash) {
                self.look_ahead(&mut schedulers, number);
                shared.send_out(&mut schedulers);
                return Ok(Block { header: landed.named.header.clone(), body: landed.body });
            }
            if shared.stop.load(Ordering::Relaxed) {
                return Err(BlockSyncError::Stopped);
            }
            // In each round, since a new skeleton clears the wanted bodies.
            schedulers.bodies.need(named);
            self.look_ahead(&mut schedulers, number);
            if !shared.send_out(&mut schedulers) && schedulers.bodies.is_idle() {
                return Err(BlockSyncError::NoPeers);
            }
            let bodies = shared.figures.bodies.load(Ordering::Relaxed);
            if bodies != seen {
                (seen, since) = (bodies, Instant::now());
            }
            let after = shared.options.stalled;
            if since.elapsed() >= after {
                return Err(BlockSyncError::Stalled { number, after });
            }
            shared.wait(&mut schedulers);
        }
    }

    /// Wants the bodies of the blocks above `number`, as many as there is room for, and the headers
    /// that these need.
    fn look_ahead(&self, schedulers: &mut BlockSyncSchedulers, number: u64) {
        // If another thread holds the skeletons, it is fetching headers and looks ahead afterwards.
        let Some(mut skeletons) = self.skeletons.try_lock() else { return };
        let Some(skeleton) = skeletons.current.as_mut() else { return };
        skeleton.forget_below(number);
        let BlockSyncSchedulers { headers, bodies, .. } = schedulers;
        loop {
            for named in skeleton.from(bodies.next_ahead(number), MOST_HELD) {
                if !bodies.want_ahead(named) {
                    return;
                }
            }
            let Some(span) = skeleton.gap_at(bodies.next_ahead(number)) else { return };
            let Some(found) = headers.take(&span.hash) else {
                headers.want(span, false);
                return;
            };
            self.shared.count(&found);
            skeleton.fill(found);
        }
    }
}

impl BlockFetcher for PeerBlocks {
    fn name(&self) -> &str {
        "the peers"
    }

    fn is_available(&self) -> bool {
        !self.shared.peers.connected().is_empty()
    }

    fn check_chain(&self, _: &ChainSpec, _: Option<Duration>) -> Result<(), FetchError> {
        // Peers of other chains are never connected.
        Ok(())
    }

    fn tagged(&self, _: BlockTag) -> Result<(B256, Header), FetchError> {
        Err(BlockSyncError::NoHeads.into())
    }

    fn header_by_hash(&self, hash: B256) -> Result<Header, FetchError> {
        Ok(self.header(hash)?.header.clone())
    }

    fn block_by_hash(&self, hash: B256) -> Result<Block, FetchError> {
        let named = self.header(hash)?;
        Ok(self.block(&named)?)
    }

    fn block_by_number(&self, number: u64) -> Result<Block, FetchError> {
        let named = self.header_at(number)?;
        Ok(self.block(&named)?)
    }
}
