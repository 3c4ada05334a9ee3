//! A node: starts its parts, runs them until a stop signal, and stops them in reverse.
//!
//! ```text
//!  datadir -> Chain -> Engine (thread) -> LiveChain --+--> JSON-RPC servers
//!                        ^                            |
//!   Engine API, dev miner, follower     pool <--------'
//! ```
//!
//! # Vocabulary
//!
//! * **Command**: the flags of a node, and what runs them. [`NodeCommand`].
//! * **Group of flags**: flags of one subject, under one heading of `--help`; other commands have the
//!   same groups. [`args`].
//! * **Configuration file**: the same flags as TOML. [`config`].
//! * **Service**: a running part of the node. They are a list, in the order of their start.

pub mod args;
pub mod config;
mod descriptors;
mod ethstats;
mod heap;
mod network;
mod progress;
mod proof_peers;
mod secret;
mod servers;
mod services;
mod snap_sync;
mod state_sync;
mod sync_sources;
mod wait_log;

pub use descriptors::raise_limit;

use alloy_primitives::Address;
use args::{
    AuthArgs, BuilderArgs, ChainArgs, DEFAULT_CHAIN, DbArgs, DevArgs, EngineArgs, FollowArgs,
    IndexArgs, LogArgs, LogTablesArgs, NetworkArgs, StateArgs, StreamArgs, SyncArgs,
    SyncModeChoice, TracingArgs, TxPoolArgs,
};
use ethstats::{LocalStats, StatsService, StatsTarget};
use eyre::{Context, bail};
use network::{NodePeers, PeerTraffic, start_block_sync, start_gossip};
use retrie_chainspec::{
    ChainSpec, DEV_ACCOUNTS, DEV_KEYS, DEV_MNEMONIC, EthereumHardfork, EthereumHardforks,
    ForkCondition,
};
use retrie_db::{ChainRead, LogBounds, StateRootMode};
use retrie_engine::{
    ChainFollower, DevChain, Engine, EngineApi, EngineConfig, EngineHandle, FollowConfig,
    HeadSource, IndexerConfig, LiveChain, NEAR_REFEREE, NodeWarmUp, PayloadBuilder, PoolMaintainer,
    SealingMode, StateServer, pool::TransactionPool, start_history_pruner, start_indexer,
    start_referee_joiner,
};
use retrie_pipeline::ChainStore;
use retrie_rpc::DevNode;
use retrie_sources::{BlockingClient, HttpOptions, RpcClient};
use retrie_stream::RunningStream;
use retrie_telemetry::{LogFiles, Metrics, MetricsServer, spans::OtlpConfig};
use servers::{NodeParts, RpcArgs};
use services::{
    EngineService, FollowService, RpcServers, ServerThreads, ServiceList, StreamService,
    TaskService,
};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use wait_log::WaitLog;

/// Flags of `retrie node`.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "node", args_override_self = true)]
pub struct NodeCommand {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
    /// Read flags from this file (see `retrie config`) [default: `retrie.toml` in the datadir, if
    /// it exists].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve Prometheus metrics on this address.
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Metrics")]
    metrics: Option<SocketAddr>,
    /// Report to this ethstats server, over a WebSocket without TLS.
    #[arg(long, value_name = "NAME:SECRET@HOST:PORT", help_heading = "Metrics")]
    ethstats: Option<StatsTarget>,
    #[command(flatten)]
    rpc: RpcArgs,
    #[command(flatten)]
    auth: AuthArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    builder: BuilderArgs,
    #[command(flatten)]
    txpool: TxPoolArgs,
    #[command(flatten)]
    dev: DevArgs,
    #[command(flatten)]
    sync: SyncArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    follow: FollowArgs,
    #[command(flatten)]
    stream: StreamArgs,
    #[command(flatten)]
    logs: LogTablesArgs,
    #[command(flatten)]
    index: IndexArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    tracing: TracingArgs,
}

/// Retention of a dev chain without `--retention`.
const DEV_RETENTION: u64 = 10_000;
/// Interval between checks of the stop signal.
const POLL: Duration = Duration::from_millis(100);

impl NodeCommand {
    /// The configuration file to read, if any.
    ///
    /// # Errors
    /// If no datadir is given and there is no home directory, or the chain is not known.
    pub fn config_file(&self) -> eyre::Result<Option<PathBuf>> {
        if let Some(file) = &self.config {
            return Ok(Some(file.clone()));
        }
        let file = self.chain.datadir_or(self.default_chain())?.join("retrie.toml");
        Ok(file.is_file().then_some(file))
    }

    /// The log files that the flags request.
    pub fn log_files(&self) -> Option<LogFiles> {
        let LogArgs { directory, max_size, max_files } = &self.log;
        directory.clone().map(|directory| LogFiles {
            directory,
            max_bytes: max_size.saturating_mul(1 << 20),
            max_files: *max_files,
        })
    }

    /// Where the flags export spans to, if they do.
    pub fn span_export(&self) -> Option<OtlpConfig> {
        self.tracing.export()
    }

    /// The chain of a new datadir without `--chain`.
    fn default_chain(&self) -> &'static str {
        if self.dev.dev { "dev" } else { DEFAULT_CHAIN }
    }

    fn chain_and_datadir(&self) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
        let (mut spec, datadir) = self.chain.resolve_or(self.default_chain())?;
        if self.dev.dev && self.logs.tables && self.chain.is_open(&datadir)? {
            spec = ChainSpec::dev_with_index_tables();
        }
        if self.dev.dev && spec.is_public() {
            bail!(
                "--dev is a chain of its own, never {}: leave out --chain, or choose another \
                 --datadir",
                spec.name()
            );
        }
        Ok((spec, datadir))
    }

    /// Runs the node until `stop` is set or one of its services ends.
    ///
    /// # Errors
    /// If a part cannot start, fails, or cannot stop in order.
    pub fn run(mut self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        self.fit_into_descriptors();
        let (spec, datadir) = self.chain_and_datadir()?;
        // On a chain that switches to the binary tree, the headers of a dev chain switch too.
        let switches = spec.binary_tree_time().is_some();
        if self.dev.dev && self.state.state_root.is_none() && !switches {
            self.state.state_root = Some(StateRootMode::Native);
        }
        if self.dev.dev {
            // `evm_revert` can go back to snapshots within this distance.
            self.state.default_retention = DEV_RETENTION;
        }
        if self.sync.mode == SyncModeChoice::Snap && !self.sync.is_requested() {
            snap_sync::run(&mut self, &spec, &datadir, stop)?;
        } else if self.sync.is_requested() {
            let options = self.state.chain_options(spec.clone(), &datadir, self.db.options())?;
            let keys = self.state.keys.map(|choice| choice.0);
            state_sync::run(&self.sync, &self.network, keys, options, stop)?;
        }
        let metrics = Metrics::new().wrap_err("registering the metrics")?;
        let services = ServiceList::default();
        let mut waits = WaitLog::new(self.has_consensus_client(), Instant::now());
        let ended =
            self.start(spec, &datadir, &metrics, &services, true, stop).and_then(|running| {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(service) = services.ended() {
                        bail!(
                            "the {service} has ended; durable data is intact, start the node again"
                        );
                    }
                    running.show(&metrics, &mut waits);
                    std::thread::sleep(POLL);
                }
                Ok(())
            });
        stop.store(true, Ordering::Relaxed);
        tracing::info!("stopping");
        // The error of a service that has ended comes from its own stop.
        services.stop().and(ended)
    }

    /// Whether a consensus client decides which block is the head.
    const fn has_consensus_client(&self) -> bool {
        let follows = self.follow.follow.is_some() && !self.follow.gaps_only;
        !self.auth.disable && !self.dev.dev && !follows
    }

    /// Starts the services. Each one uses those before it. Without peers it also fetches no blocks.
    fn start(
        &self,
        spec: Arc<ChainSpec>,
        datadir: &Path,
        metrics: &Metrics,
        services: &ServiceList,
        has_peers: bool,
        stop: &Arc<AtomicBool>,
    ) -> eyre::Result<RunningNode> {
        if let Some(address) = self.metrics {
            let server = MetricsServer::start(address, metrics.clone())?;
            tracing::info!("metrics on http://{}/metrics", server.address());
            services.add(server);
        }
        let engine = self.start_engine(spec, datadir, metrics, services, stop)?;
        let live = engine.live();
        let threads = ServerThreads::start()?;
        let runtime = threads.handle();
        services.add(threads);

        let pool =
            TransactionPool::new(self.txpool.config(self.rpc.tx_fee_cap()), live.spec().clone());
        let maintainer = PoolMaintainer::start(live, pool.clone())?;
        services.add(maintainer.clone());
        self.restore_pool(datadir, &pool, live)?;

        let states = StateServer::default();
        let peers = match has_peers {
            true => {
                NodePeers::start(&self.network, self.dev.dev, datadir, &engine, &pool, &states)?
            }
            false => None,
        };
        if let Some((peers, _)) = &peers {
            services.add(peers.clone());
        }

        let payloads = PayloadBuilder::new(live.clone(), pool.clone(), self.builder.config());
        services.add(NodeWarmUp::start(payloads.clone())?);
        let api = EngineApi::new(engine.clone(), payloads.clone(), pool.clone());
        let dev = self.dev.dev.then(|| {
            log_dev_accounts(live.spec());
            let sealing = self.dev.block_time.map_or(SealingMode::Instant, SealingMode::Interval);
            // The zero address: fees must not return to the accounts that paid them.
            let beneficiary = Address::ZERO;
            let (engine, pool) = (engine.clone(), pool.clone());
            let chain = DevChain::new(engine, payloads, pool, maintainer, sealing, beneficiary);
            let task = runtime.spawn(chain.clone().run());
            services.add(TaskService { name: "dev miner", task, threads: runtime.clone() });
            DevNode {
                chain,
                client_version: self.dev.client_version(),
                waits_for_sealing: self.dev.wait,
            }
        });

        let secret_file = || self.auth.secret.clone().unwrap_or_else(|| datadir.join("jwt.hex"));
        let secret =
            (!self.auth.disable).then(|| secret::jwt_secret(&secret_file())).transpose()?;
        let auth = secret.map(|secret| (&self.auth, secret, api));
        let network = peers.as_ref().map(|(peers, _)| peers.clone());
        if let Some(target) = self.ethstats.clone() {
            let (engine, pool, peers) = (engine.clone(), pool.clone(), network.clone());
            let source = LocalStats { engine, pool, peers };
            let heads = source.heads(&runtime);
            services.add(StatsService::start(target, Arc::new(source), heads, &runtime));
        }
        let behind = NodeParts {
            engine: &engine,
            pool: &pool,
            dev,
            datadir,
            metrics,
            services,
            network,
            states,
        };
        // Not on the chain that only waits for a state.
        if has_peers {
            self.start_streams(live, datadir, services)?;
        }
        // Before the first RPC request can ask whether this node is in sync.
        let follower = self.follow.follow.as_ref().map(|url| {
            let leader = if self.follow.gaps_only {
                HeadSource::ConsensusClient
            } else {
                HeadSource::Remote
            };
            let config = FollowConfig { head_source: leader, interval: self.follow.interval };
            let client =
                RpcClient::new(url, BlockingClient::new(HttpOptions::default(), stop.clone()));
            tracing::info!("following {}", client.endpoint());
            ChainFollower::new(engine.clone(), client, config, runtime.clone(), stop.clone())
        });
        let servers = runtime.block_on(servers::start(&self.rpc, auth, behind))?;
        services.add(RpcServers { servers, threads: runtime });
        if let Some(follower) = follower {
            services.add(FollowService { following: follower.start()?, stop: stop.clone() });
        }
        let Some((peers, heard)) = peers else {
            return Ok(RunningNode { engine, pool, peers: None });
        };
        let mut traffic = PeerTraffic::default();
        let threads = peers.runtime();
        services.add(start_gossip(&engine, &pool, peers.peers(), heard, threads, &mut traffic));
        if self.follow.follow.is_none() {
            let head = self.sync.head;
            services.add(start_block_sync(&engine, peers.peers(), head, threads, &mut traffic)?);
        }
        Ok(RunningNode { engine, pool, peers: Some((peers, traffic)) })
    }

    fn start_engine(
        &self,
        spec: Arc<ChainSpec>,
        datadir: &Path,
        metrics: &Metrics,
        services: &ServiceList,
        stop: &AtomicBool,
    ) -> eyre::Result<EngineHandle> {
        let options = self.state.chain_options(spec, datadir, self.db.options())?;
        let (chain, joining) = if self.state.referee_joins {
            ChainStore::open_joined(options, Some(NEAR_REFEREE), stop, &mut |_| {})?
        } else {
            (ChainStore::open(options)?, None)
        };
        let chain = Arc::new(chain);
        chain.register_metrics(metrics);
        log_startup(&chain, datadir)?;
        let config = EngineConfig { is_dev: self.dev.dev, ..self.engine.config() };
        let engine = Engine::start(chain.clone(), config, metrics.clone())?;
        let handle = engine.handle().clone();
        if let Some(joining) = joining {
            services.add(start_referee_joiner(chain.clone(), joining)?);
        }
        services.add(EngineService { engine, chain });
        let indexes = IndexerConfig {
            logs: LogBounds::default(),
            has_tables: self.logs.tables,
            addresses: self.index.addresses(),
        };
        services.add(start_history_pruner(handle.live().chain().clone())?);
        services.add(start_indexer(handle.live().clone(), indexes)?);
        Ok(handle)
    }

    fn start_streams(
        &self,
        live: &LiveChain,
        datadir: &Path,
        services: &ServiceList,
    ) -> eyre::Result<()> {
        for target in &self.stream.targets {
            let stream = RunningStream::start(live.clone(), target, self.stream.options(), datadir);
            services.add(StreamService(
                stream.wrap_err_with(|| format!("starting the stream to {target}"))?,
            ));
        }
        Ok(())
    }

    /// Restores the transactions that the pool held at the last stop, unless that is disabled.
    fn restore_pool(
        &self,
        datadir: &Path,
        pool: &TransactionPool,
        live: &LiveChain,
    ) -> eyre::Result<()> {
        if self.txpool.disable_journal {
            return Ok(());
        }
        let journal = self.txpool.journal.clone();
        let journal = journal.unwrap_or_else(|| datadir.join("txpool.journal"));
        let restored = pool.keep_journal(&journal, live)?;
        if restored > 0 {
            tracing::info!("restored {restored} transactions from {}", journal.display());
        }
        Ok(())
    }
}

/// The parts of a running node that the main loop polls.
struct RunningNode {
    engine: EngineHandle,
    pool: TransactionPool,
    peers: Option<(NodePeers, PeerTraffic)>,
}

impl RunningNode {
    /// Updates the metrics, and logs what the node waits for.
    fn show(&self, metrics: &Metrics, waits: &mut WaitLog) {
        show_pool(metrics, &self.pool);
        if let Some((peers, traffic)) = &self.peers {
            peers.show_in(metrics, traffic);
        }
        let now = Instant::now();
        waits.log_wait(self.engine.waiting().as_ref(), now);
        waits.log_silence(self.engine.time_since_consensus_call(), now);
    }
}

/// Logs the unlocked accounts, as other dev chains do.
fn log_dev_accounts(spec: &ChainSpec) {
    tracing::info!(
        "dev chain {}: accounts of a million ether each, unlocked for callers on this machine; \
         their keys are public",
        spec.chain_id()
    );
    for (index, (account, key)) in DEV_ACCOUNTS.iter().zip(DEV_KEYS).enumerate() {
        tracing::info!("account {index}: {account}, private key {key}");
    }
    tracing::info!("mnemonic: {DEV_MNEMONIC} (m/44'/60'/0'/0/i)");
}

fn show_pool(metrics: &Metrics, pool: &TransactionPool) {
    let stats = pool.stats();
    for (name, of) in [
        ("pending", stats.pending),
        ("basefee", stats.basefee),
        ("queued", stats.queued),
        ("blob", stats.blob),
    ] {
        metrics.pool_transactions.with_label_values(&[name]).set(of.txs as i64);
        metrics.pool_bytes.with_label_values(&[name]).set(of.size as i64);
    }
}

/// Logs the chain, the backend, and what VALID means for this node.
fn log_startup(chain: &ChainStore, datadir: &Path) -> eyre::Result<()> {
    let backend = chain.state().identity().name;
    let tip = chain.tip()?;
    tracing::info!(
        "chain {}, backend {backend}, state roots {}, at block {tip}, in {}",
        chain.spec().name(),
        chain.root_mode(),
        datadir.display()
    );
    if let Some(time) = chain.binary_tree_time() {
        let kind = chain.root_kind(chain.spec().genesis_header().timestamp.max(head_time(chain)?));
        tracing::info!(
            "from time {time} (binaryTrieTime) headers carry the state root of the partitioned binary \
             tree; that of the head is of the {}",
            kind.tree()
        );
    }
    if chain.root_mode() == StateRootMode::Shadow {
        match chain.referee() {
            Some(referee) => tracing::info!(
                "header state roots are checked by the referee {}; the root of {backend} is kept \
                 beside them",
                referee.identity().name
            ),
            None => tracing::warn!(
                "header state roots are those of Ethereum's trie, which {backend} does not \
                 compute: VALID means {}, and this node builds no payloads. --referee mpt checks \
                 the roots too",
                what_valid_means(chain.spec())
            ),
        }
    }
    Ok(())
}

/// The timestamp of the highest canonical block.
fn head_time(chain: &ChainStore) -> eyre::Result<u64> {
    let header = chain.db().begin_read()?.header(&chain.tip()?.hash)?;
    Ok(header.map_or(0, |header| header.timestamp))
}

/// What a payload status VALID asserts without a computed state root.
fn what_valid_means(spec: &ChainSpec) -> String {
    match spec.ethereum_fork_activation(EthereumHardfork::Amsterdam) {
        ForkCondition::Timestamp(time) => format!(
            "from Amsterdam on (time {time}) the whole state but for the form of its root, as every \
             value that a block writes is held against the block access list in its header; before \
             that, everything but the state root"
        ),
        _ => "everything but the state root".into(),
    }
}
