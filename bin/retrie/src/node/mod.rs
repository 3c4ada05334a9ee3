//! `retrie node`: puts the parts of a node together and runs them until told to stop.
//!
//! ```text
//!  datadir -> Chain -> Engine (thread) -> LiveChain --+--> JSON-RPC servers
//!                        ^                            |
//!   Engine API, dev miner, follower     pool <--------'
//! ```
//!
//! What runs is a list of [`services`], in the order in which they were started.

mod args;
pub(crate) mod config;
mod descriptors;
mod heap;
mod network;
mod proof_peers;
mod secret;
mod servers;
mod services;
mod sync;
mod waits;

pub(crate) use descriptors::raise_limit;

use crate::args::{ChainArgs, DEFAULT_CHAIN, DbArgs, StateArgs};
use alloy_primitives::Address;
use args::{
    AuthArgs, BuilderArgs, DevArgs, EngineArgs, FollowArgs, LogArgs, NetworkArgs, SyncArgs,
    TxPoolArgs,
};
use eyre::{Context, bail};
use network::{NodePeers, Traffic, follow_peers, gossip};
use retrie_chainspec::{
    ChainSpec, DEV_ACCOUNTS, DEV_KEYS, DEV_MNEMONIC, EthereumHardfork, EthereumHardforks,
    ForkCondition,
};
use retrie_db::{LogBounds, StateRootMode};
use retrie_engine::{
    DevChain, Engine, EngineApi, EngineConfig, EngineHandle, FollowConfig, Follower, Leader,
    LiveChain, LogIndexer, PayloadBuilder, PoolMaintainer, Sealing, StateServer, WarmUp,
    pool::Pool,
};
use retrie_pipeline::Chain;
use retrie_rpc::DevNode;
use retrie_sources::{Http, HttpOptions, RpcClient};
use retrie_telemetry::{LogFiles, Metrics, MetricsServer};
use servers::{Behind, RpcArgs};
use services::{EngineService, FollowService, RpcServers, Services, TaskService, Threads};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use waits::WaitLog;

/// Arguments of `retrie node`.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "node", args_override_self = true)]
pub(crate) struct Command {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
    /// Flags from a file (see `retrie config`). Without it `retrie.toml` of the datadir, if there is
    /// one.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Serve Prometheus metrics on this address.
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Metrics")]
    metrics: Option<SocketAddr>,
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
    log: LogArgs,
}

/// Blocks that a dev chain can be taken back by, if the flags do not say more.
const DEV_RETENTION: u64 = 10_000;
/// How often the stop signal is looked at.
const POLL: Duration = Duration::from_millis(100);

impl Command {
    /// The configuration file to be read, if any.
    pub(crate) fn config_file(&self) -> eyre::Result<Option<PathBuf>> {
        if let Some(file) = &self.config {
            return Ok(Some(file.clone()));
        }
        let file = self.chain.datadir_or(self.default_chain())?.join("retrie.toml");
        Ok(file.is_file().then_some(file))
    }

    /// Log files that it asks for.
    pub(crate) fn log_files(&self) -> Option<LogFiles> {
        let LogArgs { directory, max_size, max_files } = &self.log;
        directory.clone().map(|directory| LogFiles {
            directory,
            max_bytes: max_size.saturating_mul(1 << 20),
            max_files: *max_files,
        })
    }

    /// The chain of a new datadir, if none is given.
    fn default_chain(&self) -> &'static str {
        if self.dev.dev { "dev" } else { DEFAULT_CHAIN }
    }

    fn chain_and_datadir(&self) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
        let (spec, datadir) = self.chain.resolve_or(self.default_chain())?;
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
    pub(crate) fn run(mut self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        self.fit_into_descriptors();
        let (spec, datadir) = self.chain_and_datadir()?;
        if self.dev.dev && self.state.state_root.is_none() {
            self.state.state_root = Some(StateRootMode::Native);
        }
        if self.dev.dev {
            // Snapshots are gone back to as far as this.
            self.state.default_retention = DEV_RETENTION;
        }
        if self.sync.begins() {
            let options = self.state.chain_options(spec.clone(), &datadir, self.db.options())?;
            sync::run(&self.sync, &self.network, options, stop)?;
        }
        let metrics = Metrics::new().wrap_err("registering the metrics")?;
        let services = Services::default();
        let mut waits = WaitLog::new(self.is_led(), Instant::now());
        let ended = self.start(spec, &datadir, &metrics, &services, stop).and_then(|running| {
            while !stop.load(Ordering::Relaxed) {
                if let Some(service) = services.ended() {
                    bail!(
                        "the {service} has ended; what is durable is whole, start again to go on"
                    );
                }
                running.show(&metrics, &mut waits);
                std::thread::sleep(POLL);
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        tracing::info!("stopping");
        // Why a service has ended is told by its end.
        services.stop().and(ended)
    }

    /// Whether a consensus client decides which block is the head.
    const fn is_led(&self) -> bool {
        let follows = self.follow.follow.is_some() && !self.follow.gaps_only;
        !self.auth.disable && !self.dev.dev && !follows
    }

    /// Starts the services, each on what was started before it.
    fn start(
        &self,
        spec: Arc<ChainSpec>,
        datadir: &Path,
        metrics: &Metrics,
        services: &Services,
        stop: &Arc<AtomicBool>,
    ) -> eyre::Result<RunningNode> {
        if let Some(address) = self.metrics {
            let server = MetricsServer::start(address, metrics.clone())?;
            tracing::info!("metrics on http://{}/metrics", server.address());
            services.add(server);
        }
        let engine = self.start_engine(spec, datadir, metrics, services)?;
        let live = engine.live();
        let threads = Threads::start()?;
        let runtime = threads.handle();
        services.add(threads);

        let pool = Pool::new(self.txpool.config(self.rpc.tx_fee_cap()), live.spec().clone());
        let maintainer = PoolMaintainer::start(live, pool.clone())?;
        services.add(maintainer.clone());
        self.restore_pool(datadir, &pool, live)?;

        let states = StateServer::default();
        let peers =
            NodePeers::start(&self.network, self.dev.dev, datadir, &engine, &pool, &states)?;
        if let Some((peers, _)) = &peers {
            services.add(peers.clone());
        }

        let payloads = PayloadBuilder::new(live.clone(), pool.clone(), self.builder.config());
        services.add(WarmUp::start(payloads.clone())?);
        let api = EngineApi::new(engine.clone(), payloads.clone(), pool.clone());
        let dev = self.dev.dev.then(|| {
            tell_dev_accounts(live.spec());
            let sealing = self.dev.block_time.map_or(Sealing::Instant, Sealing::Interval);
            // Nobody: fees shall not come back to whoever paid them.
            let beneficiary = Address::ZERO;
            let (engine, pool) = (engine.clone(), pool.clone());
            let chain = DevChain::new(engine, payloads, pool, maintainer, sealing, beneficiary);
            let task = runtime.spawn(chain.clone().run());
            services.add(TaskService { name: "dev miner", task, threads: runtime.clone() });
            DevNode { chain, client_version: self.dev.client_version(), waits: self.dev.wait }
        });

        let secret_file = || self.auth.secret.clone().unwrap_or_else(|| datadir.join("jwt.hex"));
        let secret =
            (!self.auth.disable).then(|| secret::jwt_secret(&secret_file())).transpose()?;
        let auth = secret.map(|secret| (&self.auth, secret, api));
        let network = peers.as_ref().map(|(peers, _)| peers.clone());
        let behind = Behind {
            engine: &engine,
            pool: &pool,
            dev,
            datadir,
            metrics,
            services,
            network,
            states,
        };
        // Before anybody can ask whether this node is in sync.
        let follower = self.follow.follow.as_ref().map(|url| {
            let leader =
                if self.follow.gaps_only { Leader::ConsensusClient } else { Leader::Remote };
            let config = FollowConfig { leader, interval: self.follow.interval };
            let client = RpcClient::new(url, Http::new(HttpOptions::default(), stop.clone()));
            tracing::info!("following {}", client.endpoint());
            Follower::new(engine.clone(), client, config, runtime.clone(), stop.clone())
        });
        let servers = runtime.block_on(servers::start(&self.rpc, auth, behind))?;
        services.add(RpcServers { servers, threads: runtime });
        if let Some(follower) = follower {
            services.add(FollowService { following: follower.start()?, stop: stop.clone() });
        }
        let Some((peers, heard)) = peers else {
            return Ok(RunningNode { engine, pool, peers: None });
        };
        let mut traffic = Traffic::default();
        let threads = peers.runtime();
        services.add(gossip(&engine, &pool, peers.peers(), heard, threads, &mut traffic));
        if self.follow.follow.is_none() {
            let head = self.sync.head;
            services.add(follow_peers(&engine, peers.peers(), head, threads, &mut traffic)?);
        }
        Ok(RunningNode { engine, pool, peers: Some((peers, traffic)) })
    }

    fn start_engine(
        &self,
        spec: Arc<ChainSpec>,
        datadir: &Path,
        metrics: &Metrics,
        services: &Services,
    ) -> eyre::Result<EngineHandle> {
        let options = self.state.chain_options(spec, datadir, self.db.options())?;
        let chain = Arc::new(Chain::open(options)?);
        chain.show_in(metrics);
        tell_what_runs(&chain, datadir)?;
        let config = EngineConfig { is_dev: self.dev.dev, ..self.engine.config() };
        let engine = Engine::start(chain.clone(), config, metrics.clone())?;
        let handle = engine.handle().clone();
        services.add(EngineService { engine, chain: chain.clone() });
        services.add(LogIndexer::start(chain, LogBounds::default())?);
        Ok(handle)
    }

    /// Brings back the transactions that waited when the node was stopped, unless that is not wanted.
    fn restore_pool(&self, datadir: &Path, pool: &Pool, live: &LiveChain) -> eyre::Result<()> {
        if self.txpool.disable_journal {
            return Ok(());
        }
        let journal = self.txpool.journal.clone();
        let journal = journal.unwrap_or_else(|| datadir.join("txpool.journal"));
        let restored = pool.keep_journal(&journal, live)?;
        if restored > 0 {
            tracing::info!("{restored} transactions came back from {}", journal.display());
        }
        Ok(())
    }
}

/// What of a running node is looked at again and again.
struct RunningNode {
    engine: EngineHandle,
    pool: Pool,
    peers: Option<(NodePeers, Traffic)>,
}

impl RunningNode {
    /// Shows its figures in the metrics, and what it waits for in the log.
    fn show(&self, metrics: &Metrics, waits: &mut WaitLog) {
        show_pool(metrics, &self.pool);
        if let Some((peers, traffic)) = &self.peers {
            peers.show_in(metrics, traffic);
        }
        let now = Instant::now();
        waits.tell(self.engine.waiting().as_ref(), now);
        waits.tell_silence(self.engine.consensus_silence(), now);
    }
}

/// Says which accounts are unlocked, as other dev chains do.
fn tell_dev_accounts(spec: &ChainSpec) {
    tracing::info!(
        "dev chain {}: accounts of a million ether each, unlocked for callers on this machine; \
         their keys are known to everybody",
        spec.chain_id()
    );
    for (index, (account, key)) in DEV_ACCOUNTS.iter().zip(DEV_KEYS).enumerate() {
        tracing::info!("account {index}: {account}, private key {key}");
    }
    tracing::info!("mnemonic: {DEV_MNEMONIC} (m/44'/60'/0'/0/i)");
}

fn show_pool(metrics: &Metrics, pool: &Pool) {
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

/// Says at the start what this node is and what its word means.
fn tell_what_runs(chain: &Chain, datadir: &Path) -> eyre::Result<()> {
    let backend = chain.state().identity().name;
    let tip = chain.tip()?;
    tracing::info!(
        "chain {}, backend {backend}, state roots {}, at block {tip}, in {}",
        chain.spec().name(),
        chain.root_mode(),
        datadir.display()
    );
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

/// What a node says of a block that it calls valid without computing its state root.
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
