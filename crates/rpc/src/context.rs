//! What every method has at hand.

use crate::{RpcError, RpcResult, eth::Shared};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, B256};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader};
use retrie_db::ChainRead;
use retrie_engine::{BlockState, EngineHandle, LiveChain, View, pool::Pool};
use retrie_sources::RpcClient;
use retrie_telemetry::rpc::RpcMetrics;
use std::{fmt, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Requests that read from disk at once.
const READERS: usize = 64;

/// Limits on what a request may cost. The flags that set them are in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most gas that a call or an estimate may use (`--rpc.gascap`).
    pub gas_cap: u64,
    /// Longest time that a call may execute (`--rpc.evm-timeout`).
    pub evm_timeout: Duration,
    /// Most blocks that a search for logs walks over (`--rpc.max-blocks-per-filter`); 0: any number.
    pub max_blocks_per_filter: u64,
    /// Most logs in one answer (`--rpc.max-logs-per-response`); 0: any number.
    pub max_logs_per_response: usize,
    /// Most bytes that a trace records, of a block all traces together: those of one answer
    /// (`--rpc.max-response-size`, in MB).
    pub max_response_size: usize,
    /// Most proofs that are built at once (`--rpc.proof-permits`).
    pub proof_permits: usize,
    /// Most blocks that `eth_simulateV1` makes (`--rpc.max-simulate-blocks`).
    pub max_simulate_blocks: u64,
    /// Most blocks that `trace_filter` walks over (`--rpc.max-trace-filter-blocks`).
    pub max_trace_filter_blocks: u64,
    /// How long a filter lives that nobody asks for changes.
    pub filter_lifetime: Duration,
    /// Largest fee in wei that a transaction sent through this node may cost (`--rpc.txfeecap`, in
    /// ether); 0: any.
    pub tx_fee_cap: u128,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            gas_cap: 50_000_000,
            evm_timeout: Duration::from_secs(5),
            max_blocks_per_filter: 100_000,
            max_logs_per_response: 20_000,
            max_response_size: 160 << 20,
            proof_permits: 25,
            max_simulate_blocks: 256,
            max_trace_filter_blocks: 100,
            filter_lifetime: Duration::from_secs(5 * 60),
            tx_fee_cap: 1_000_000_000_000_000_000,
        }
    }
}

/// How far a node that is behind has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    /// Block at which the synchronisation began.
    pub starting: u64,
    /// Highest block that is here.
    pub current: u64,
    /// Highest block that is known of.
    pub highest: u64,
}

/// What a node can tell beyond its chain. The defaults are those of a node that is in sync and has
/// no peers.
pub trait NodeStatus: Send + Sync {
    /// How far it has come, if it is behind.
    fn syncing(&self) -> Option<SyncProgress> {
        None
    }

    /// Number of connected peers.
    fn peers(&self) -> usize {
        0
    }

    /// Whether it takes connections of peers.
    fn is_listening(&self) -> bool {
        false
    }

    /// The datadir.
    fn datadir(&self) -> Option<PathBuf> {
        None
    }

    /// Blocks that were refused lately because they break a rule, for `debug_getBadBlocks`.
    fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
        Vec::new()
    }

    /// What the allocator says of the heap, for `debug_memStats`; `None` if nobody counts.
    fn heap(&self) -> Option<HeapStats> {
        None
    }
}

/// The heap of the process, in bytes where nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// In use by the program.
    pub allocated: u64,
    /// In pages of which some part is in use.
    pub active: u64,
    /// In pages that the allocator holds.
    pub mapped: u64,
    /// In addresses that the allocator keeps, and whose pages it has given back.
    pub retained: u64,
    /// What the allocator needs for itself.
    pub metadata: u64,
    /// All that was ever allocated, freed or not.
    pub total: u64,
    /// How often something was allocated.
    pub allocations: u64,
    /// How often something was freed.
    pub deallocations: u64,
    /// The same by size, of what is small.
    pub classes: Vec<SizeClass>,
}

/// Small allocations of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of each.
    pub size: u64,
    /// How many were made.
    pub allocations: u64,
    /// How many were freed.
    pub deallocations: u64,
}

/// A node of which nothing is known but its chain.
struct Alone;

impl NodeStatus for Alone {}

/// What every method has at hand. Cheap to clone.
#[derive(Clone)]
pub struct RpcContext {
    /// The chain.
    pub live: LiveChain,
    /// The transaction pool, if the node has one.
    pub pool: Option<Pool>,
    /// What requests may cost.
    pub limits: Limits,
    /// The node around it.
    pub node: Arc<dyn NodeStatus>,
    /// Accounts whose keys this node holds and signs with.
    pub accounts: Arc<[Address]>,
    /// What moves the chain, if methods may.
    pub(crate) engine: Option<EngineHandle>,
    /// Nodes that are asked for the parts of proofs that this one does not keep.
    pub(crate) proof_peers: Arc<[RpcClient]>,
    /// What methods of `eth` keep between requests.
    pub(crate) shared: Arc<Shared>,
    /// Where servers count.
    pub(crate) metrics: RpcMetrics,
    /// Permits for work that executes or walks over blocks: so many requests do so at once.
    blocking: Arc<Semaphore>,
    /// Permits for work that waits for the disk or for others more than it computes.
    reading: Arc<Semaphore>,
}

impl fmt::Debug for RpcContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcContext")
            .field("live", &self.live)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl AsRef<Self> for RpcContext {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl RpcContext {
    /// A context in which at most `threads` requests execute or walk over blocks at once.
    pub fn new(live: LiveChain, threads: usize) -> Self {
        Self {
            live,
            pool: None,
            limits: Limits::default(),
            node: Arc::new(Alone),
            accounts: Arc::new([]),
            engine: None,
            proof_peers: Arc::new([]),
            shared: Arc::default(),
            metrics: RpcMetrics::default(),
            blocking: Arc::new(Semaphore::new(threads.max(1))),
            reading: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// The same with a transaction pool.
    #[must_use]
    pub fn with_pool(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The same within a node.
    #[must_use]
    pub fn with_node(self, node: Arc<dyn NodeStatus>) -> Self {
        Self { node, ..self }
    }

    /// The same with accounts whose keys this node holds and signs with.
    #[must_use]
    pub fn with_accounts(self, accounts: Vec<Address>) -> Self {
        Self { accounts: accounts.into(), ..self }
    }

    /// The same, in which `debug_setHead` moves the chain.
    #[must_use]
    pub fn with_engine(self, engine: EngineHandle) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// The same with nodes that keep other parts of proofs (`--proof-peers`).
    #[must_use]
    pub fn with_proof_peers(self, peers: Vec<RpcClient>) -> Self {
        Self { proof_peers: peers.into(), ..self }
    }

    /// The same, whose servers count in `metrics`.
    #[must_use]
    pub fn with_metrics(self, metrics: RpcMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// The chain as it is now.
    ///
    /// # Errors
    /// If the database fails.
    pub fn view(&self) -> RpcResult<View> {
        Ok(self.live.view()?)
    }

    /// The transaction pool.
    ///
    /// # Errors
    /// [`RpcError::Rejected`] if the node has none.
    pub fn pool(&self) -> RpcResult<&Pool> {
        let none = || RpcError::Rejected("this node has no transaction pool".into());
        self.pool.as_ref().ok_or_else(none)
    }

    /// Runs `work` on a view of the chain, on a thread that may block.
    ///
    /// # Errors
    /// Those of `work`; an internal error if it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(View) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        self.run_with(self.blocking.clone(), work).await
    }

    /// The same for work that is short or waits for the disk: it does not stand behind executions.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(View) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        self.run_with(self.reading.clone(), work).await
    }

    async fn run_with<T: Send + 'static>(
        &self,
        permits: Arc<Semaphore>,
        work: impl FnOnce(View) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        let permit = permits.acquire_owned().await;
        let live = self.live.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(live.view()?)
        });
        task.await.map_err(|_| RpcError::Internal("the request's thread has ended".into()))?
    }
}

/// Finds blocks by number, tag or hash.
pub(crate) trait ResolveBlock {
    /// Header of the block; an error if there is none.
    fn resolve(&self, id: BlockId) -> RpcResult<SealedHeader>;

    /// Header of the block, `None` if there is none.
    fn find(&self, id: BlockId) -> RpcResult<Option<SealedHeader>>;

    /// The state after the block.
    fn state_at(&self, id: BlockId) -> RpcResult<BlockState>;
}

impl ResolveBlock for View {
    fn resolve(&self, id: BlockId) -> RpcResult<SealedHeader> {
        self.find(id)?.ok_or(match id {
            BlockId::Number(BlockNumberOrTag::Safe) => RpcError::NoSuchTag("safe"),
            BlockId::Number(BlockNumberOrTag::Finalized) => RpcError::NoSuchTag("finalized"),
            _ => RpcError::HeaderNotFound,
        })
    }

    fn find(&self, id: BlockId) -> RpcResult<Option<SealedHeader>> {
        let by_hash = |hash: &B256| Ok(self.header(hash)?);
        match id {
            BlockId::Hash(id) => {
                let Some(header) = by_hash(&id.block_hash)? else { return Ok(None) };
                if id.require_canonical == Some(true) && !self.is_canonical(&id.block_hash)? {
                    return Err(RpcError::NotCanonical);
                }
                Ok(Some(header))
            }
            BlockId::Number(tag) => match tag {
                BlockNumberOrTag::Latest | BlockNumberOrTag::Pending => {
                    Ok(Some(self.head().clone()))
                }
                BlockNumberOrTag::Earliest => {
                    // The first whole block; headers below it may be there.
                    let first = self.durable().first()?.map_or(0, |first| first.number);
                    let first = first.max(self.durable().bodies_pruned_below()?);
                    Ok(self.header_by_number(first.min(self.head().number))?)
                }
                BlockNumberOrTag::Safe => {
                    self.safe().map_or(Ok(None), |block| by_hash(&block.hash))
                }
                BlockNumberOrTag::Finalized => {
                    self.finalized().map_or(Ok(None), |block| by_hash(&block.hash))
                }
                BlockNumberOrTag::Number(number) => Ok(self.header_by_number(number)?),
            },
        }
    }

    fn state_at(&self, id: BlockId) -> RpcResult<BlockState> {
        let header = self.resolve(id)?;
        Ok(self.state(&header.hash())?)
    }
}
