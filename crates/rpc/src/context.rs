//! [`RpcContext`]: what every method can use.

use crate::{RpcError, RpcResult, eth_state::EthState, proof_peers::ProofPeers};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, B256};
use retrie_chainspec::{DEV_ACCOUNTS, primitives::SealedHeader};
use retrie_db::ChainRead;
use retrie_engine::{
    DevChain, EngineHandle, LiveChain, LiveView, NodeStatus, PostState, StateServer,
    pool::TransactionPool,
};
use retrie_telemetry::rpc::RpcMetrics;
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Number of requests that may read from disk at once.
const READERS: usize = 64;

/// Number of requests for state chunks that may run at once.
const STATE_READERS: usize = 2;

/// Number of views on which a request is tried while reorgs follow each other.
const VIEW_ATTEMPTS: usize = 8;

/// Limits on the cost of one request. The flags that set them are in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most gas of a call or an estimate (`--rpc.gascap`).
    pub gas_cap: u64,
    /// Longest execution time of a call (`--rpc.evm-timeout`).
    pub evm_timeout: Duration,
    /// Most blocks that a log search covers (`--rpc.max-blocks-per-filter`); 0: any number.
    pub max_blocks_per_filter: u64,
    /// Most logs in one response (`--rpc.max-logs-per-response`); 0: any number.
    pub max_logs_per_response: usize,
    /// Most bytes that the traces of one request record together (`--rpc.max-response-size`, in
    /// MB).
    pub max_response_size: usize,
    /// Most proofs that are built at once (`--rpc.proof-permits`).
    pub proof_permits: usize,
    /// Most blocks of one `eth_simulateV1` (`--rpc.max-simulate-blocks`).
    pub max_simulate_blocks: u64,
    /// Most blocks of one `trace_filter` (`--rpc.max-trace-filter-blocks`).
    pub max_trace_filter_blocks: u64,
    /// How long a filter is kept after its client last polled it.
    pub filter_lifetime: Duration,
    /// Highest fee in wei of a transaction sent through this node (`--rpc.txfeecap`, in ether); 0:
    /// no cap.
    pub tx_fee_cap: u128,
}

impl Default for RequestLimits {
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

/// A dev chain, as the namespaces `evm`, `hardhat` and `anvil` control it.
#[derive(Clone, Debug)]
pub struct DevNode {
    /// The chain.
    pub chain: DevChain,
    /// What `web3_clientVersion` returns (`--dev.client-version`). Tools decide by it which methods
    /// they may call.
    pub client_version: String,
    /// Whether the send methods of an automining chain respond only once the transaction is sealed
    /// (`--dev.wait`).
    pub waits_for_sealing: bool,
}

/// A node status for a chain without a node around it.
struct StandaloneNode;

impl NodeStatus for StandaloneNode {}

/// What every method can use. Cheap to clone.
#[derive(Clone)]
pub struct RpcContext {
    /// The chain.
    pub live: LiveChain,
    /// The transaction pool, if the node has one.
    pub pool: Option<TransactionPool>,
    /// Limits of one request.
    pub limits: RequestLimits,
    /// The status of the node around the chain.
    pub node: Arc<dyn NodeStatus>,
    /// Accounts whose keys this node holds.
    pub accounts: Arc<[Address]>,
    /// The dev chain and its tools, if this is a dev chain.
    pub(crate) dev: Option<Arc<DevNode>>,
    /// The engine, if methods may move the head.
    pub(crate) engine: Option<EngineHandle>,
    /// Nodes that keep the other shards of the proofs.
    pub(crate) proof_peers: Option<ProofPeers>,
    /// What methods of `eth` keep between requests.
    pub(crate) eth: Arc<EthState>,
    /// Serves state chunks to nodes that run state sync.
    pub(crate) state_server: StateServer,
    /// Metrics of the servers.
    pub(crate) metrics: RpcMetrics,
    /// Permits for heavy methods.
    heavy_permits: Arc<Semaphore>,
    /// Permits for read methods, which wait for the disk more than they compute.
    read_permits: Arc<Semaphore>,
    /// Permits for state chunks: a client that syncs a state does not delay other requests.
    chunk_permits: Arc<Semaphore>,
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
    /// A context in which at most `threads` heavy methods run at once.
    pub fn new(live: LiveChain, threads: usize) -> Self {
        Self {
            live,
            pool: None,
            limits: RequestLimits::default(),
            node: Arc::new(StandaloneNode),
            accounts: Arc::new([]),
            dev: None,
            engine: None,
            proof_peers: None,
            eth: Arc::default(),
            state_server: StateServer::default(),
            metrics: RpcMetrics::default(),
            heavy_permits: Arc::new(Semaphore::new(threads.max(1))),
            read_permits: Arc::new(Semaphore::new(READERS)),
            chunk_permits: Arc::new(Semaphore::new(STATE_READERS)),
        }
    }

    /// Adds a transaction pool.
    #[must_use]
    pub fn with_pool(self, pool: TransactionPool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Serves state chunks with `states`.
    #[must_use]
    pub fn with_state_server(self, states: StateServer) -> Self {
        Self { state_server: states, ..self }
    }

    /// Sets other limits.
    #[must_use]
    pub fn with_limits(self, limits: RequestLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the node status.
    #[must_use]
    pub fn with_node(self, node: Arc<dyn NodeStatus>) -> Self {
        Self { node, ..self }
    }

    /// Sets the accounts whose keys this node holds and signs with.
    #[must_use]
    pub fn with_accounts(self, accounts: Vec<Address>) -> Self {
        Self { accounts: accounts.into(), ..self }
    }

    /// Adds a dev chain with its tools, and unlocks the dev accounts.
    #[must_use]
    pub fn with_dev(self, dev: DevNode) -> Self {
        Self { dev: Some(Arc::new(dev)), ..self.with_accounts(DEV_ACCOUNTS.to_vec()) }
    }

    /// The context for untrusted addresses: without the dev chain's tools and accounts.
    pub(crate) fn without_dev(&self) -> Self {
        Self { dev: None, accounts: Arc::new([]), ..self.clone() }
    }

    /// The error in the form that this node's clients expect.
    pub(crate) fn error_for_client(&self, error: RpcError) -> RpcError {
        if self.dev.is_some() { error.for_dev_tools() } else { error }
    }

    /// Adds the engine, with which `debug_setHead` moves the head.
    #[must_use]
    pub fn with_engine(self, engine: EngineHandle) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// Adds proof peers (`--proof-peers`).
    #[must_use]
    pub fn with_proof_peers(self, peers: ProofPeers) -> Self {
        Self { proof_peers: Some(peers), ..self }
    }

    /// Counts the servers' requests in `metrics`.
    #[must_use]
    pub fn with_metrics(self, metrics: RpcMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// The current view of the chain.
    ///
    /// # Errors
    /// If the database fails.
    pub fn view(&self) -> RpcResult<LiveView> {
        Ok(self.live.view()?)
    }

    /// Runs `work` on a view of the chain. The state of the view's head may leave the store before
    /// `work` opens it; then `work` runs again on a view of the next head.
    ///
    /// # Errors
    /// The errors of `work`, or if the database fails.
    pub(crate) fn on_view<T>(&self, work: impl Fn(LiveView) -> RpcResult<T>) -> RpcResult<T> {
        let mut view = self.view()?;
        for _ in 1..VIEW_ATTEMPTS {
            match work(view.clone()) {
                Err(error) if error.lacks_state() => match view.successor()? {
                    Some(next) => view = next,
                    None => return Err(error),
                },
                outcome => return outcome,
            }
        }
        work(view)
    }

    /// The transaction pool.
    ///
    /// # Errors
    /// [`RpcError::Rejected`] if the node has none.
    pub fn pool(&self) -> RpcResult<&TransactionPool> {
        let none = || RpcError::Rejected("this node has no transaction pool".into());
        self.pool.as_ref().ok_or_else(none)
    }

    /// Runs heavy `work` on a view of the chain, on a thread that may block.
    ///
    /// # Errors
    /// The errors of `work`; an internal error if it panics.
    pub async fn run_heavy<T: Send + 'static>(
        &self,
        work: impl Fn(LiveView) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        self.run_with(self.heavy_permits.clone(), work).await
    }

    /// As [`run_heavy`](Self::run_heavy), for read methods: they do not queue behind executions.
    ///
    /// # Errors
    /// As [`run_heavy`](Self::run_heavy).
    pub async fn run_read<T: Send + 'static>(
        &self,
        work: impl Fn(LiveView) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        self.run_with(self.read_permits.clone(), work).await
    }

    /// As [`run_heavy`](Self::run_heavy), for state chunks: they queue only behind each other.
    ///
    /// # Errors
    /// As [`run_heavy`](Self::run_heavy).
    pub async fn run_state_chunks<T: Send + 'static>(
        &self,
        work: impl Fn(LiveView) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        self.run_with(self.chunk_permits.clone(), work).await
    }

    async fn run_with<T: Send + 'static>(
        &self,
        permits: Arc<Semaphore>,
        work: impl Fn(LiveView) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        let permit = permits.acquire_owned().await;
        let context = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            context.on_view(work)
        });
        task.await.map_err(|_| RpcError::Internal("the request's thread has ended".into()))?
    }
}

/// Finds blocks by number, tag or hash.
pub(crate) trait ResolveBlock {
    /// The header of the block; an error if there is none.
    fn resolve(&self, id: BlockId) -> RpcResult<SealedHeader>;

    /// The header of the block; `None` if there is none.
    fn find(&self, id: BlockId) -> RpcResult<Option<SealedHeader>>;

    /// The state after the block.
    fn state_after(&self, id: BlockId) -> RpcResult<PostState>;
}

impl ResolveBlock for LiveView {
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
                    // The first block with a body; older headers may exist.
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

    fn state_after(&self, id: BlockId) -> RpcResult<PostState> {
        let header = self.resolve(id)?;
        Ok(self.state(&header.hash())?)
    }
}
