//! JSON-RPC of a node: flags, and start of the servers.

use super::{
    args::AuthArgs, descriptors::ServerConnections, heap, network::NodePeers,
    proof_peers::ProofPeersArgs, services::ServiceList, wait_log::remedy_of,
};
use alloy_rpc_types_engine::JwtSecret;
use clap::{ArgAction, Args};
use eyre::Context;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::{
    BlockSyncWait, EngineApi, EngineHandle, HeapStats, NodeNetwork, NodeStatus, NodeWait,
    StateServer, SyncProgress, pool::TransactionPool,
};
use retrie_rpc::{
    ApiNamespace, DevNode, RequestLimits, RpcContext,
    server::{
        AuthConfig, ConnectionLimits, GraphqlConfig, HttpConfig, IpcConfig, RunningServers,
        ServerConfig, WsConfig,
    },
};
use retrie_telemetry::{Metrics, state_sync::StateSyncFigures};
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Flags of the JSON-RPC servers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "RPC")]
pub(crate) struct RpcArgs {
    /// Serve JSON-RPC over HTTP.
    #[arg(long)]
    http: bool,
    /// Listening address of HTTP.
    #[arg(long = "http.addr", value_name = "ADDR", default_value = "127.0.0.1")]
    http_addr: IpAddr,
    /// Listening port of HTTP.
    #[arg(long = "http.port", value_name = "PORT", default_value_t = 8545)]
    http_port: u16,
    /// Namespaces served over HTTP.
    #[arg(
        long = "http.api",
        value_name = "API,..",
        value_delimiter = ',',
        default_value = "eth,net,web3"
    )]
    http_api: Vec<ApiNamespace>,
    /// Origins whose web pages may read responses, `*` for all.
    #[arg(long = "http.corsdomain", value_name = "ORIGIN,..", value_delimiter = ',')]
    http_cors: Vec<String>,
    /// Host names accepted over HTTP, `*` for all.
    #[arg(
        long = "http.vhosts",
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    http_vhosts: Vec<String>,
    /// Serve GraphQL on the port of HTTP, under /graphql.
    #[arg(long, requires = "http")]
    graphql: bool,
    /// Origins whose web pages may read responses of GraphQL, `*` for all.
    #[arg(
        long = "graphql.corsdomain",
        value_name = "ORIGIN,..",
        value_delimiter = ',',
        requires = "graphql"
    )]
    graphql_cors: Vec<String>,
    /// Host names accepted for GraphQL, `*` for all.
    #[arg(
        long = "graphql.vhosts",
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    graphql_vhosts: Vec<String>,
    /// Serve JSON-RPC over WebSocket.
    #[arg(long)]
    ws: bool,
    /// Listening address of WebSocket.
    #[arg(long = "ws.addr", value_name = "ADDR", default_value = "127.0.0.1")]
    ws_addr: IpAddr,
    /// Listening port of WebSocket. With the port of HTTP, one port serves both.
    #[arg(long = "ws.port", value_name = "PORT", default_value_t = 8546)]
    ws_port: u16,
    /// Namespaces served over WebSocket.
    #[arg(
        long = "ws.api",
        value_name = "API,..",
        value_delimiter = ',',
        default_value = "eth,net,web3"
    )]
    ws_api: Vec<ApiNamespace>,
    /// Origins whose web pages may connect, `*` for all.
    #[arg(long = "ws.origins", value_name = "ORIGIN,..", value_delimiter = ',')]
    ws_origins: Vec<String>,
    /// Do not serve IPC.
    #[arg(long = "ipcdisable", action = ArgAction::SetTrue)]
    ipc_disable: bool,
    /// IPC socket [default: in the datadir].
    #[arg(long = "ipcpath", value_name = "FILE")]
    ipc_path: Option<PathBuf>,
    /// Largest request in MB.
    #[arg(long = "rpc.max-request-size", value_name = "MB", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=2047))]
    max_request_size: u32,
    /// Largest response in MB.
    #[arg(long = "rpc.max-response-size", value_name = "MB", default_value_t = 160, value_parser = clap::value_parser!(u32).range(1..=2047))]
    max_response_size: u32,
    /// Most connections of each server.
    #[arg(long = "rpc.max-connections", value_name = "N", default_value_t = 500)]
    max_connections: u32,
    /// Most requests in a batch.
    #[arg(long = "rpc.max-batch-size", value_name = "N", default_value_t = 1000)]
    max_batch_size: u32,
    /// Longest time for all requests of a batch. Those without a response by then get an error.
    #[arg(long = "rpc.batch-timeout", value_name = "TIME", default_value = "60s", value_parser = super::args::parse_duration)]
    batch_timeout: Duration,
    /// Most subscriptions of a connection.
    #[arg(long = "rpc.max-subscriptions-per-connection", value_name = "N", default_value_t = 1024)]
    max_subscriptions: u32,
    /// Most memory in MB that requests and responses of all HTTP and WebSocket connections hold
    /// together, beyond 64 KB for each connection.
    #[arg(long = "rpc.max-buffered-size", value_name = "MB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_buffered_size: u32,
    /// Most gas that a call may use.
    #[arg(long = "rpc.gascap", value_name = "GAS", default_value_t = 50_000_000)]
    gas_cap: u64,
    /// Longest time that a call may run.
    #[arg(long = "rpc.evm-timeout", value_name = "TIME", default_value = "5s", value_parser = super::args::parse_duration)]
    evm_timeout: Duration,
    /// Highest fee in ether of a transaction sent through this node; 0 for no cap.
    #[arg(long = "rpc.txfeecap", value_name = "ETHER", default_value_t = 1.0)]
    tx_fee_cap: f64,
    /// Most blocks that a log filter may cover; 0 for no limit.
    #[arg(long = "rpc.max-blocks-per-filter", value_name = "N", default_value_t = 100_000)]
    max_blocks_per_filter: u64,
    /// Most logs in one response; 0 for no limit.
    #[arg(long = "rpc.max-logs-per-response", value_name = "N", default_value_t = 20_000)]
    max_logs_per_response: usize,
    /// Most blocks in an eth_simulateV1 call.
    #[arg(long = "rpc.max-simulate-blocks", value_name = "N", default_value_t = 256)]
    max_simulate_blocks: u64,
    /// Most blocks that a trace_filter call may cover.
    #[arg(long = "rpc.max-trace-filter-blocks", value_name = "N", default_value_t = 100)]
    max_trace_filter_blocks: u64,
    /// Most requests at once that execute code or walk over blocks [default: the number of cores].
    #[arg(long = "rpc.max-tracing-requests", value_name = "N")]
    threads: Option<usize>,
    /// Most proofs built at once.
    #[arg(long = "rpc.proof-permits", value_name = "N", default_value_t = 25)]
    proof_permits: usize,
    #[command(flatten)]
    proof_peers: ProofPeersArgs,
}

impl RpcArgs {
    /// Highest fee in wei of a transaction sent through this node; 0 for no cap.
    pub(crate) fn tx_fee_cap(&self) -> u128 {
        // An `f64` has enough digits for a cap.
        (self.tx_fee_cap.max(0.0) * 1e18) as u128
    }

    /// How many connections the servers may have. A port with WebSocket allows as many WebSocket
    /// connections as others, so it counts twice.
    pub(crate) fn connections(&self, has_engine: bool) -> ServerConnections {
        let ports = usize::from(self.http) + 2 * usize::from(self.ws) + 2 * usize::from(has_engine);
        let shared = usize::from(self.http && self.ws && self.http_port == self.ws_port);
        let servers = ports - shared + usize::from(!self.ipc_disable);
        ServerConnections { servers, each: self.max_connections }
    }

    /// Sets the limit of connections of each server.
    pub(crate) const fn set_connections(&mut self, each: u32) {
        self.max_connections = each;
    }

    fn limits(&self) -> RequestLimits {
        RequestLimits {
            max_response_size: (self.max_response_size as usize) << 20,
            gas_cap: self.gas_cap,
            evm_timeout: self.evm_timeout,
            max_blocks_per_filter: self.max_blocks_per_filter,
            max_logs_per_response: self.max_logs_per_response,
            proof_permits: self.proof_permits,
            max_simulate_blocks: self.max_simulate_blocks,
            max_trace_filter_blocks: self.max_trace_filter_blocks,
            tx_fee_cap: self.tx_fee_cap(),
            ..RequestLimits::default()
        }
    }

    fn config(&self, auth: Option<AuthConfig>, datadir: &Path) -> ServerConfig {
        let ipc = || self.ipc_path.clone().unwrap_or_else(|| datadir.join("retrie.ipc"));
        ServerConfig {
            http: self.http.then(|| HttpConfig {
                addr: SocketAddr::new(self.http_addr, self.http_port),
                apis: self.http_api.clone(),
                cors_origins: self.http_cors.clone(),
                vhosts: self.http_vhosts.clone(),
                graphql: self.graphql.then(|| GraphqlConfig {
                    cors_origins: self.graphql_cors.clone(),
                    vhosts: self.graphql_vhosts.clone(),
                }),
            }),
            ws: self.ws.then(|| WsConfig {
                addr: SocketAddr::new(self.ws_addr, self.ws_port),
                apis: self.ws_api.clone(),
                origins: self.ws_origins.clone(),
            }),
            auth,
            ipc: (!self.ipc_disable).then(|| IpcConfig::new(ipc())),
            limits: ConnectionLimits {
                max_request_size: self.max_request_size << 20,
                max_response_size: self.max_response_size << 20,
                max_connections: self.max_connections,
                max_batch_size: self.max_batch_size,
                batch_timeout: self.batch_timeout,
                max_subscriptions: self.max_subscriptions,
                max_buffered_size: (self.max_buffered_size as usize) << 20,
                ..ConnectionLimits::default()
            },
        }
    }
}

/// The node's status, for RPC methods.
struct LocalNodeStatus {
    datadir: PathBuf,
    engine: EngineHandle,
    services: ServiceList,
    network: Option<NodePeers>,
    metrics: Metrics,
}

impl NodeStatus for LocalNodeStatus {
    fn network(&self) -> Option<&dyn NodeNetwork> {
        self.network.as_ref().map(|network| network as &dyn NodeNetwork)
    }

    fn syncing(&self) -> Option<SyncProgress> {
        self.engine.syncing()
    }

    fn state_sync(&self) -> Option<StateSyncFigures> {
        self.metrics.state_sync.figures()
    }

    fn waiting(&self) -> Option<NodeWait> {
        let BlockSyncWait { reason, since, .. } = self.engine.waiting()?;
        let remedy = remedy_of(&reason).into_owned();
        Some(NodeWait { reason: reason.to_string(), since, remedy })
    }

    fn failing(&self) -> Vec<&'static str> {
        self.services.failing()
    }

    fn datadir(&self) -> Option<PathBuf> {
        Some(self.datadir.clone())
    }

    fn bad_blocks(&self) -> Vec<Arc<RecoveredBlock>> {
        self.engine.bad_blocks()
    }

    fn heap(&self) -> Option<HeapStats> {
        heap::stats()
    }
}

/// The parts of the node that the servers use.
pub(super) struct NodeParts<'a> {
    pub(super) engine: &'a EngineHandle,
    pub(super) pool: &'a TransactionPool,
    pub(super) dev: Option<DevNode>,
    pub(super) datadir: &'a Path,
    pub(super) metrics: &'a Metrics,
    pub(super) services: &'a ServiceList,
    pub(super) network: Option<NodePeers>,
    pub(super) states: StateServer,
}

/// Starts the servers. `auth` has the flags, the secret and the methods of the Engine API.
pub(super) async fn start(
    args: &RpcArgs,
    auth: Option<(&AuthArgs, JwtSecret, EngineApi)>,
    behind: NodeParts<'_>,
) -> eyre::Result<RunningServers> {
    let NodeParts { engine, pool, dev, datadir, metrics, services, network, states } = behind;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let status = LocalNodeStatus {
        datadir: datadir.to_owned(),
        engine: engine.clone(),
        services: services.clone(),
        network,
        metrics: metrics.clone(),
    };
    let context = RpcContext::new(engine.live().clone(), args.threads.unwrap_or(cores))
        .with_pool(pool.clone())
        .with_engine(engine.clone())
        .with_state_server(states)
        .with_limits(args.limits())
        .with_metrics(metrics.rpc.clone())
        .with_node(Arc::new(status));
    let live = engine.live().clone();
    let context = match args.proof_peers.start(&metrics.proofs, move || live.head().number) {
        Some(peers) => context.with_proof_peers(peers),
        None => context,
    };
    let context = match dev {
        Some(dev) => context.with_dev(dev),
        None => context,
    };
    let (auth, engine) = match auth {
        Some((args, secret, api)) => {
            let addr = SocketAddr::new(args.addr, args.port);
            (Some(AuthConfig { addr, vhosts: args.vhosts.clone(), secret }), Some(api))
        }
        None => (None, None),
    };
    let config = args.config(auth, datadir);
    RunningServers::start(&config, &context, engine).await.wrap_err("starting JSON-RPC")
}
