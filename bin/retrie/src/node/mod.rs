//! `retrie node`: puts the parts of a node together and runs them until told to stop.
//!
//! ```text
//!  datadir -> Chain -> Engine (thread) -> LiveChain --+--> JSON-RPC servers
//!                        ^                            |
//!   Engine API, dev miner, follower     pool <--------'
//! ```

mod args;
pub(crate) mod config;
mod heap;
mod servers;

use crate::commands::{ChainArgs, DEFAULT_CHAIN, DbArgs, StateArgs};
use alloy_primitives::{Address, hex};
use alloy_rpc_types_engine::JwtSecret;
use args::{AuthArgs, BuilderArgs, DevArgs, EngineArgs, FollowArgs, LogArgs, TxPoolArgs};
use eyre::{Context, bail, eyre};
use retrie_chainspec::{ChainSpec, DEV_ACCOUNTS, DEV_KEYS, DEV_MNEMONIC};
use retrie_db::StateRootMode;
use retrie_engine::{
    DevChain, Engine, EngineApi, FollowConfig, Follower, Leader, PayloadBuilder, PoolMaintainer,
    Sealing, pool::Pool,
};
use retrie_pipeline::Chain;
use retrie_rpc::DevNode;
use retrie_sources::{Http, HttpOptions, RpcClient};
use retrie_telemetry::{LogFiles, Metrics, MetricsServer};
use servers::RpcArgs;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

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
    #[arg(long, value_name = "ADDR:PORT")]
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

    /// Runs the node until `stop` is set or the engine fails.
    pub(crate) fn run(mut self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let (spec, datadir) = self.chain_and_datadir()?;
        if self.dev.dev && self.state.state_root.is_none() {
            self.state.state_root = Some(StateRootMode::Native);
        }
        if self.dev.dev {
            // Snapshots are gone back to as far as this.
            self.state.raise_retention(DEV_RETENTION);
        }
        let metrics = Metrics::new().wrap_err("registering the metrics")?;
        let metrics_server = self
            .metrics
            .map(|address| MetricsServer::start(address, metrics.clone()))
            .transpose()?;
        if let Some(server) = &metrics_server {
            tracing::info!("metrics on http://{}/metrics", server.address());
        }

        let options = self.state.chain_options(spec, &datadir, self.db.options())?;
        let chain = Arc::new(Chain::open(options)?);
        chain.show_in(&metrics);
        tell_what_runs(&chain, &datadir)?;

        let engine = Engine::start(chain.clone(), self.engine.config(), metrics.clone())?;
        let handle = engine.handle().clone();
        let live = handle.live().clone();
        let pool = Pool::new(self.txpool.config(self.rpc.tx_fee_cap()), live.spec().clone());
        let maintainer = PoolMaintainer::start(&live, pool.clone())?;
        if !self.txpool.disable_journal {
            let journal = self.txpool.journal.clone();
            let journal = journal.unwrap_or_else(|| datadir.join("txpool.journal"));
            let restored = pool.keep_journal(&journal, &live)?;
            if restored > 0 {
                tracing::info!("{restored} transactions came back from {}", journal.display());
            }
        }
        let payloads = PayloadBuilder::new(live.clone(), pool.clone(), self.builder.config());
        let api = EngineApi::new(handle.clone(), payloads.clone(), pool.clone());

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("rpc")
            .build()
            .wrap_err("starting the threads of the servers")?;
        let secret = (!self.auth.disable).then(|| jwt_secret(&self.auth, &datadir)).transpose()?;
        let mut dev = None;
        if self.dev.dev {
            let sealing = self.dev.block_time.map_or(Sealing::Instant, Sealing::Interval);
            tell_dev_accounts(live.spec());
            let chain = DevChain::new(
                handle.clone(),
                payloads,
                pool.clone(),
                maintainer,
                sealing,
                // Nobody: fees shall not come back to whoever paid them.
                Address::ZERO,
            );
            let client_version = self.dev.client_version();
            dev = Some(DevNode { chain, client_version, waits: self.dev.wait });
        }
        let servers = runtime.block_on(servers::start(
            &self.rpc,
            secret.map(|secret| (&self.auth, secret, api)),
            &handle,
            &pool,
            dev.clone(),
            &datadir,
            &metrics,
        ))?;

        let miner = dev.map(|dev| runtime.spawn(dev.chain.run()));
        let follower = self.follow.follow.as_ref().map(|url| {
            let leader =
                if self.follow.gaps_only { Leader::ConsensusClient } else { Leader::Remote };
            let config = FollowConfig { leader, interval: self.follow.interval };
            let client = RpcClient::new(url, Http::new(HttpOptions::default(), stop.clone()));
            tracing::info!("following {}", client.endpoint());
            Follower::new(handle.clone(), client, config, runtime.handle().clone(), stop.clone())
                .start()
        });
        let follower = follower.transpose()?;

        // Whatever ends first ends the node; then everything else is ended in order.
        let mut failed = None;
        while !stop.load(Ordering::Relaxed) {
            if !engine.is_running() {
                failed = Some("the engine has ended");
                break;
            }
            if miner.as_ref().is_some_and(tokio::task::JoinHandle::is_finished) {
                failed = Some("the dev miner has ended");
                break;
            }
            if follower.as_ref().is_some_and(std::thread::JoinHandle::is_finished) {
                failed = Some("the follower has ended");
                break;
            }
            show_pool(&metrics, &pool);
            std::thread::sleep(POLL);
        }
        stop.store(true, Ordering::Relaxed);
        tracing::info!("stopping: servers first, then what is not durable yet is committed");
        runtime.block_on(servers.stop());
        if let Some(follower) = follower {
            // It logs what it meets; a panic in it loses nothing.
            let _ = follower.join();
        }
        let mined = match miner {
            Some(miner) if miner.is_finished() => runtime.block_on(miner).ok(),
            _ => None,
        };
        runtime.shutdown_timeout(Duration::from_secs(5));
        engine.stop()?;
        chain.flush()?;
        tracing::info!("stopped at block {}", chain.tip()?);
        if let Some(Err(error)) = mined {
            return Err(error.into());
        }
        match failed {
            Some(what) => bail!("{what}; what is durable is whole, start again to go on"),
            None => Ok(()),
        }
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
                 compute: VALID means everything but the state root, and this node builds no \
                 payloads. --referee mpt checks the roots too"
            ),
        }
    }
    Ok(())
}

/// The secret that the consensus client shares: read, or made for it to read.
fn jwt_secret(args: &AuthArgs, datadir: &Path) -> eyre::Result<JwtSecret> {
    let file = args.secret.clone().unwrap_or_else(|| datadir.join("jwt.hex"));
    if file.exists() {
        let text = std::fs::read_to_string(&file)
            .wrap_err_with(|| format!("reading the JWT secret {}", file.display()))?;
        return JwtSecret::from_hex(text.trim())
            .map_err(|_| eyre!("the JWT secret {} is not 32 bytes in hex", file.display()));
    }
    let secret = JwtSecret::random();
    write_secret(&file, &hex::encode(secret.as_bytes()))
        .wrap_err_with(|| format!("writing a new JWT secret to {}", file.display()))?;
    tracing::info!("made a JWT secret for the consensus client: {}", file.display());
    Ok(secret)
}

fn write_secret(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    options.open(file)?.write_all(text.as_bytes())
}
