//! What every method has at hand.

use crate::{RpcError, RpcResult, eth_state::EthState, proof_peers::ProofPeers};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, B256};
use retrie_chainspec::{DEV_ACCOUNTS, primitives::SealedHeader};
use retrie_db::ChainRead;
use retrie_engine::{
    DevChain, EngineHandle, LiveChain, NodeStatus, StateAfter, StateServer, View, pool::Pool,
};
use retrie_telemetry::rpc::RpcMetrics;
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Requests that read from disk at once.
const READERS: usize = 64;

/// Requests for parts of states at once.
const STATE_READERS: usize = 2;

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

/// A dev chain as its tools see it.
#[derive(Clone, Debug)]
pub struct DevNode {
    /// The chain.
    pub chain: DevChain,
    /// What `web3_clientVersion` answers (`--dev.client-version`): tools decide by it which methods
    /// they may call.
    pub client_version: String,
    /// Whether a transaction that is sealed at once is answered once it is (`--dev.wait`).
    pub waits: bool,
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
    /// The dev chain and its tools, if this is one.
    pub(crate) dev: Option<Arc<DevNode>>,
    /// What moves the chain, if methods may.
    pub(crate) engine: Option<EngineHandle>,
    /// Nodes that are asked for the parts of proofs that this one does not keep.
    pub(crate) proof_peers: Option<ProofPeers>,
    /// What methods of `eth` keep between requests.
    pub(crate) eth: Arc<EthState>,
    /// States that are held for other nodes to fetch.
    pub(crate) states: StateServer,
    /// Where servers count.
    pub(crate) metrics: RpcMetrics,
    /// Permits for work that executes or walks over blocks: so many requests do so at once.
    blocking: Arc<Semaphore>,
    /// Permits for work that waits for the disk or for others more than it computes.
    reading: Arc<Semaphore>,
    /// Permits for parts of states: a client that fetches one keeps no other waiting.
    handing_out: Arc<Semaphore>,
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
            dev: None,
            engine: None,
            proof_peers: None,
            eth: Arc::default(),
            states: StateServer::default(),
            metrics: RpcMetrics::default(),
            blocking: Arc::new(Semaphore::new(threads.max(1))),
            reading: Arc::new(Semaphore::new(READERS)),
            handing_out: Arc::new(Semaphore::new(STATE_READERS)),
        }
    }

    /// The same with a transaction pool.
    #[must_use]
    pub fn with_pool(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// The same, handing out states by this server.
    #[must_use]
    pub fn with_states(self, states: StateServer) -> Self {
        Self { states, ..self }
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

    /// The same of a dev chain, with its tools, and with its accounts unlocked.
    #[must_use]
    pub fn with_dev(self, dev: DevNode) -> Self {
        Self { dev: Some(Arc::new(dev)), ..self.with_accounts(DEV_ACCOUNTS.to_vec()) }
    }

    /// The same for strangers: without the tools of a dev chain and its accounts.
    pub(crate) fn without_dev(&self) -> Self {
        Self { dev: None, accounts: Arc::new([]), ..self.clone() }
    }

    /// The error as this node's clients expect it.
    pub(crate) fn word(&self, error: RpcError) -> RpcError {
        if self.dev.is_some() { error.for_dev_tools() } else { error }
    }

    /// The same, in which `debug_setHead` moves the chain.
    #[must_use]
    pub fn with_engine(self, engine: EngineHandle) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// The same with nodes that keep other parts of proofs (`--proof-peers`).
    #[must_use]
    pub fn with_proof_peers(self, peers: ProofPeers) -> Self {
        Self { proof_peers: Some(peers), ..self }
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

    /// The same for parts of states that others fetch: they stand behind each other alone.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn hand_out<T: Send + 'static>(
        &self,
        work: impl FnOnce(View) -> RpcResult<T> + Send + 'static,
    ) -> RpcResult<T> {
        self.run_with(self.handing_out.clone(), work).await
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
    fn state_after(&self, id: BlockId) -> RpcResult<StateAfter>;
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

    fn state_after(&self, id: BlockId) -> RpcResult<StateAfter> {
        let header = self.resolve(id)?;
        Ok(self.state(&header.hash())?)
    }
}
