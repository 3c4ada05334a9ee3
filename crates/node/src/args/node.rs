//! Flags of `retrie node`, grouped by part of the node. Names and defaults are reth's.

use alloy_primitives::{Address, B256, Bytes, U256};
use clap::{ArgAction, Args, ValueEnum};
use retrie_engine::{
    BuilderConfig, EngineConfig,
    pool::{PoolConfig, SubPoolLimit},
};
use retrie_p2p::{
    discovery::{Bootnode, Enode, NatMode, TreeUrl},
    handle::StateAudience,
    peers::SubnetLimits,
};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// Parses `2s`, `250ms`, `1m`, `3h`, or a number of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let number = digits.parse::<u64>().ok().filter(|_| unit > 0);
    number
        .and_then(|number| number.checked_mul(unit))
        .map(Duration::from_millis)
        .ok_or_else(|| format!("`{text}` is not a time such as 250ms, 2s, 1m or 3h"))
}

/// The same, but zero is rejected.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval.is_zero() { Err("an interval must be longer than 0".into()) } else { Ok(interval) }
}

/// Flags of the engine.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Canonical blocks in memory above which the oldest are made durable.
    #[arg(long = "engine.persistence-threshold", value_name = "BLOCKS", default_value_t = 2)]
    persistence_threshold: u64,
    /// Canonical blocks that stay in memory after that.
    #[arg(long = "engine.memory-block-buffer-target", value_name = "BLOCKS", default_value_t = 0)]
    memory_blocks: u64,
    /// Execute transactions in parallel on the block access lists of payloads, from Amsterdam on
    /// (EIP-7928) [default: true on more than one core].
    #[arg(
        long = "engine.parallel-execution",
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    parallel_execution: Option<bool>,
}

impl EngineArgs {
    pub(crate) fn config(&self) -> EngineConfig {
        let default = EngineConfig::default();
        EngineConfig {
            persistence_threshold: self.persistence_threshold,
            memory_blocks: self.memory_blocks,
            parallel_execution: self.parallel_execution.unwrap_or(default.parallel_execution),
            ..default
        }
    }
}

/// Flags of the payload builder.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Builder")]
pub(crate) struct BuilderArgs {
    /// Extra data of built blocks: text of at most 32 bytes.
    #[arg(id = "builder_extra_data", long = "builder.extradata", value_name = "TEXT", value_parser = parse_extra_data)]
    extra_data: Option<Bytes>,
    /// Gas limit that built blocks move towards.
    #[arg(id = "builder_gas_limit", long = "builder.gaslimit", value_name = "GAS")]
    gas_limit: Option<u64>,
    /// Interval between two builds of the same payload.
    #[arg(id = "builder_interval", long = "builder.interval", value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// How long a payload is rebuilt to improve it.
    #[arg(id = "builder_deadline", long = "builder.deadline", value_name = "TIME", default_value = "12s", value_parser = parse_duration)]
    deadline: Duration,
    /// Most payloads kept or being built at once.
    #[arg(
        id = "builder_max_payloads",
        long = "builder.max-tasks",
        value_name = "N",
        default_value_t = 16
    )]
    max_payloads: usize,
}

fn parse_extra_data(text: &str) -> Result<Bytes, String> {
    if text.len() > 32 {
        return Err(format!("it has {} bytes, a header takes 32", text.len()));
    }
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

impl BuilderArgs {
    pub(crate) fn config(&self) -> BuilderConfig {
        let default = BuilderConfig::default();
        BuilderConfig {
            extra_data: self.extra_data.clone().unwrap_or(default.extra_data),
            gas_limit: self.gas_limit,
            interval: self.interval,
            deadline: self.deadline,
            max_payloads: self.max_payloads.max(1),
        }
    }
}

/// Flags of the transaction pool.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TxPool")]
pub(crate) struct TxPoolArgs {
    /// Most transactions in the pending sub-pool (executable ones).
    #[arg(long = "txpool.pending-max-count", value_name = "N", default_value_t = 10_000)]
    pending_count: usize,
    /// Its size in MiB.
    #[arg(long = "txpool.pending-max-size", value_name = "MIB", default_value_t = 20)]
    pending_size: usize,
    /// Most transactions in the base fee sub-pool, which wait for a lower base fee.
    #[arg(long = "txpool.basefee-max-count", value_name = "N", default_value_t = 10_000)]
    basefee_count: usize,
    /// Its size in MiB.
    #[arg(long = "txpool.basefee-max-size", value_name = "MIB", default_value_t = 20)]
    basefee_size: usize,
    /// Most transactions in the queued sub-pool, which wait for a nonce or for funds.
    #[arg(long = "txpool.queued-max-count", value_name = "N", default_value_t = 10_000)]
    queued_count: usize,
    /// Its size in MiB.
    #[arg(long = "txpool.queued-max-size", value_name = "MIB", default_value_t = 20)]
    queued_size: usize,
    /// Most blob transactions.
    #[arg(long = "txpool.blobpool-max-count", value_name = "N", default_value_t = 10_000)]
    blob_count: usize,
    /// Their size in MiB, with sidecars.
    #[arg(long = "txpool.blobpool-max-size", value_name = "MIB", default_value_t = 512)]
    blob_size: usize,
    /// Size in MiB of the sidecars that are kept after their transactions are mined.
    #[arg(long = "txpool.blob-cache-size", value_name = "MIB", default_value_t = 128)]
    mined_blobs: usize,
    /// Reject blob transactions.
    #[arg(long = "txpool.disable-blobs-support")]
    disable_blobs: bool,
    /// Most transactions of one sender.
    #[arg(long = "txpool.max-account-slots", value_name = "N", default_value_t = 16)]
    max_account_slots: usize,
    /// Percent by which a replacement must pay more.
    #[arg(long = "txpool.pricebump", value_name = "PERCENT", default_value_t = 10)]
    price_bump: u128,
    /// The same for blob transactions.
    #[arg(long = "blobpool.pricebump", value_name = "PERCENT", default_value_t = 100)]
    blob_price_bump: u128,
    /// Lowest maximum fee per gas in wei.
    #[arg(long = "txpool.minimal-protocol-fee", value_name = "WEI", default_value_t = 7)]
    minimal_protocol_base_fee: u64,
    /// Lowest tip per gas in wei; local transactions are exempt.
    #[arg(long = "txpool.minimum-priority-fee", value_name = "WEI")]
    minimum_priority_fee: Option<u128>,
    /// Largest transaction in bytes, without blobs.
    #[arg(long = "txpool.max-tx-input-bytes", value_name = "BYTES", default_value_t = 131_072)]
    max_tx_input_bytes: usize,
    /// Largest gas limit of a transaction.
    #[arg(long = "txpool.max-tx-gas", value_name = "GAS")]
    max_tx_gas: Option<u64>,
    /// Treat local transactions like any others.
    #[arg(long = "txpool.nolocals")]
    no_locals: bool,
    /// Senders whose transactions always count as local.
    #[arg(
        id = "txpool_locals",
        long = "txpool.locals",
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    locals: Vec<Address>,
    /// Journal that keeps the pool over a restart [default: in the datadir].
    #[arg(id = "txpool_journal", long = "txpool.journal", value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Keep no journal: the pool is lost when the node stops.
    #[arg(long = "txpool.disable-journal", conflicts_with = "txpool_journal")]
    pub(crate) disable_journal: bool,
    /// How long a transaction may wait for a nonce or for funds.
    #[arg(id = "txpool_lifetime", long = "txpool.lifetime", value_name = "TIME", default_value = "3h", value_parser = parse_duration)]
    lifetime: Duration,
}

impl TxPoolArgs {
    /// The pool's configuration; `tx_fee_cap` is in wei, 0 means no cap.
    pub(crate) fn config(&self, tx_fee_cap: u128) -> PoolConfig {
        let limit = |max_txs, mib: usize| SubPoolLimit { max_txs, max_size: mib << 20 };
        PoolConfig {
            pending: limit(self.pending_count, self.pending_size),
            basefee: limit(self.basefee_count, self.basefee_size),
            queued: limit(self.queued_count, self.queued_size),
            blob: limit(self.blob_count, self.blob_size),
            mined_blobs_max_size: self.mined_blobs << 20,
            disable_blobs: self.disable_blobs,
            max_account_slots: self.max_account_slots,
            price_bump: self.price_bump,
            blob_price_bump: self.blob_price_bump,
            minimal_protocol_base_fee: self.minimal_protocol_base_fee,
            minimum_priority_fee: self.minimum_priority_fee,
            max_tx_input_bytes: self.max_tx_input_bytes,
            max_tx_gas_limit: self.max_tx_gas,
            tx_fee_cap: (tx_fee_cap > 0).then_some(tx_fee_cap),
            no_locals: self.no_locals,
            local_senders: self.locals.iter().copied().collect(),
            max_queued_lifetime: self.lifetime,
            ..PoolConfig::default()
        }
    }
}

/// Flags of a dev chain.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Dev chain")]
pub(crate) struct DevArgs {
    /// Run a dev chain with funded accounts. Each transaction is sealed into a block at once.
    #[arg(long)]
    pub(crate) dev: bool,
    /// Seal a block at this interval instead.
    #[arg(long = "dev.block-time", value_name = "TIME", requires = "dev", value_parser = parse_interval)]
    pub(crate) block_time: Option<Duration>,
    /// Whether the call that sends a transaction returns only when the transaction is in a block.
    #[arg(
        long = "dev.wait",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(crate) wait: bool,
    /// The response to web3_clientVersion. If it starts with `HardhatNetwork` or `anvil`, tools
    /// call the methods for dev chains.
    #[arg(long = "dev.client-version", value_name = "TEXT", requires = "dev")]
    pub(crate) client_version: Option<String>,
}

impl DevArgs {
    /// The response to `web3_clientVersion` on a dev chain.
    pub(crate) fn client_version(&self) -> String {
        let default = || format!("HardhatNetwork/{}", retrie_rpc::client_version());
        self.client_version.clone().unwrap_or_else(default)
    }
}

/// Flags of the peer-to-peer network.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Networking")]
pub(crate) struct NetworkArgs {
    /// Disable discovery: only static and trusted peers are dialled.
    #[arg(long = "disable-discovery", short = 'd')]
    pub(crate) disable_discovery: bool,
    /// Disable DNS discovery (EIP-1459).
    #[arg(long = "disable-dns-discovery")]
    pub(crate) disable_dns: bool,
    /// Disable discovery v4.
    #[arg(long = "disable-discv4-discovery")]
    pub(crate) disable_v4: bool,
    /// Disable discovery v5.
    #[arg(long = "disable-discv5-discovery")]
    pub(crate) disable_v5: bool,
    /// UDP port of discovery, for both versions [default: as --port].
    #[arg(id = "discovery_port", long = "discovery.port", value_name = "PORT")]
    pub(crate) discovery_port: Option<u16>,
    /// Bootnodes as enode:// or enr: URLs [default: those of the network].
    #[arg(long = "bootnodes", value_name = "URL,..", value_delimiter = ',')]
    pub(crate) bootnodes: Option<Vec<Bootnode>>,
    /// DNS node lists as enrtree:// URLs [default: that of the network].
    #[arg(id = "dns_lists", long = "discovery.dns", value_name = "URL,..", value_delimiter = ',')]
    pub(crate) dns: Option<Vec<TreeUrl>>,
    /// Name server for the DNS node lists [default: the system's].
    #[arg(id = "dns_server", long = "discovery.dns-server", value_name = "ADDR:PORT")]
    pub(crate) dns_server: Option<SocketAddr>,
    /// Nodes that are always redialled and exempt from the peer limits, as enode:// URLs.
    #[arg(long = "trusted-peers", value_name = "URL,..", value_delimiter = ',')]
    pub(crate) trusted_peers: Vec<Enode>,
    /// How the node learns its public address: `any` (from other nodes), `none`, or `extip:IP`.
    #[arg(long = "nat", value_name = "WAY", default_value = "any")]
    pub(crate) nat: NatMode,
    /// Listening address for peers and for discovery.
    #[arg(id = "network_addr", long = "addr", value_name = "ADDR", default_value = "0.0.0.0")]
    pub(crate) addr: IpAddr,
    /// Listening port for peers; 0 takes a free one [default: 30303, or a free one if that is
    /// taken].
    #[arg(id = "network_port", long = "port", value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Most peers that have dialled this node.
    #[arg(long = "max-inbound-peers", value_name = "N", default_value_t = 30)]
    pub(crate) max_inbound: usize,
    /// Most peers that this node has dialled.
    #[arg(long = "max-outbound-peers", value_name = "N", default_value_t = 100)]
    pub(crate) max_outbound: usize,
    /// Most inbound connections whose handshake is not finished.
    #[arg(skip = 64usize)]
    pub(crate) half_open: usize,
    /// Most inbound peers with the same address. Addresses of this machine and of private networks
    /// are exempt.
    #[arg(long = "max-inbound-peers-per-ip", value_name = "N", default_value_t = 2)]
    pub(crate) max_inbound_of_address: usize,
    /// The same for one /24 (IPv4) or /64 (IPv6) subnet.
    #[arg(long = "max-inbound-peers-per-subnet", value_name = "N", default_value_t = 4)]
    pub(crate) max_inbound_of_subnet: usize,
    /// Which peers may fetch this node's state (`rchk/1`): `trusted` ones (`--trusted-peers`,
    /// admin_addTrustedPeer, admin_addPeer), `all`, or `none`.
    #[arg(long = "rchk.serve", value_name = "WHOM", default_value = "trusted")]
    pub(crate) serve_states: ServeStatesTo,
    /// Serve this node's recent states to peers (`snap/1`), from backends with Ethereum's trie. With
    /// plain keys each state costs a sort of all addresses [default: true with hashed keys].
    #[arg(long = "snap.serve", value_name = "BOOL")]
    pub(crate) serve_snap: Option<bool>,
    /// File with the node key, 32 bytes in hex [default: `discovery-secret` in the datadir, created
    /// if missing].
    #[arg(long = "p2p-secret-key", value_name = "FILE")]
    pub(crate) secret_key: Option<PathBuf>,
}

/// Which peers may fetch the node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServeStatesTo {
    /// All peers.
    All,
    /// Peers that the operator has named.
    Trusted,
    /// No peers.
    None,
}

impl NetworkArgs {
    /// Limits of inbound peers per address and subnet.
    pub(crate) const fn inbound_limits(&self) -> SubnetLimits {
        SubnetLimits {
            of_address: self.max_inbound_of_address,
            of_subnet: self.max_inbound_of_subnet,
            counts_near: false,
        }
    }

    /// The peers that the node serves `rchk` to; `None` if it does not serve states.
    pub(crate) const fn state_audience(&self) -> Option<StateAudience> {
        match self.serve_states {
            ServeStatesTo::All => Some(StateAudience::All),
            ServeStatesTo::Trusted => Some(StateAudience::Named),
            ServeStatesTo::None => None,
        }
    }
}

/// Flags for following another node.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Following")]
pub(crate) struct FollowArgs {
    /// JSON-RPC URL of a node whose blocks are fetched and verified. Its head becomes the head of
    /// this node, unless a consensus client leads (`--follow.gaps-only`).
    #[arg(long, value_name = "RPC_URL")]
    pub(crate) follow: Option<String>,
    /// Fetch only blocks missing below the head that the consensus client names.
    #[arg(long = "follow.gaps-only", requires = "follow")]
    pub(crate) gaps_only: bool,
    /// Interval between requests for its head.
    #[arg(id = "follow_interval", long = "follow.interval", value_name = "TIME", default_value = "2s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
}

/// Flags of state sync.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "State sync")]
pub(crate) struct SyncArgs {
    /// How a new datadir begins beside a consensus client: `full` executes all blocks since genesis;
    /// `snap` fetches the state of a recent block from peers (`snap/1`) and keeps it with hashed
    /// keys, for every backend.
    #[arg(id = "sync_mode", long = "syncmode", value_name = "MODE", default_value = "full")]
    pub(crate) mode: SyncModeChoice,
    /// Where the state of a new datadir comes from: JSON-RPC URLs of nodes that serve the namespace
    /// `sync`, and snapshots (`retrie snapshot export`) in folders, object stores (s3://, gs://) and
    /// on web servers. Every part of it is checked: none of them is trusted, and one that is honest
    /// is enough.
    #[arg(
        id = "sync_from",
        long = "sync.from",
        value_name = "URL_OR_FOLDER,..",
        value_delimiter = ','
    )]
    pub(crate) from: Vec<String>,
    /// Hash of the block that a new datadir starts from. It is trusted, and so is the root in its
    /// header if that is the backend's. The state comes from --sync.from, or from peers without
    /// it.
    #[arg(long, value_name = "HASH")]
    pub(crate) checkpoint: Option<B256>,
    /// The backend's own root of the state to start from. It is trusted. Without --checkpoint the
    /// nodes of --sync.from name the block that has it.
    #[arg(id = "sync_root", long = "sync.trusted-root", value_name = "ROOT")]
    pub(crate) root: Option<B256>,
    /// Total difficulty of the chain up to and including that block, if it is a proof-of-work
    /// block.
    #[arg(id = "sync_difficulty", long = "sync.total-difficulty", value_name = "DIFFICULTY")]
    pub(crate) total_difficulty: Option<U256>,
    /// How long the node waits without any progress before it gives up.
    #[arg(
        id = "sync_patience",
        long = "sync.patience",
        value_name = "TIME",
        default_value = "5m",
        value_parser = parse_interval
    )]
    pub(crate) patience: Duration,
    /// Hash of a block whose chain is fetched from peers and becomes the head, without a consensus
    /// client or until it names one. The block is trusted to be canonical, and verified like any
    /// other block.
    #[arg(id = "sync_head", long = "sync.head", value_name = "HASH")]
    pub(crate) head: Option<B256>,
}

/// Value of `--syncmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SyncModeChoice {
    /// All blocks are executed.
    Full,
    /// The state of a recent block is fetched.
    Snap,
}

impl SyncArgs {
    /// Whether a new datadir starts from the state of other nodes.
    pub(crate) fn is_requested(&self) -> bool {
        !self.from.is_empty() || self.checkpoint.is_some() || self.root.is_some()
    }
}

/// Flags of log files.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogArgs {
    /// Also write logs into files in this folder.
    #[arg(id = "log_directory", long = "log.file.directory", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Rotate a log file at this size in MB.
    #[arg(
        id = "log_max_size",
        long = "log.file.max-size",
        value_name = "MB",
        default_value_t = 200
    )]
    pub(crate) max_size: u64,
    /// Most log files kept.
    #[arg(
        id = "log_max_files",
        long = "log.file.max-files",
        value_name = "N",
        default_value_t = 5
    )]
    pub(crate) max_files: usize,
}

/// Flags of the authenticated port.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine API")]
pub(crate) struct AuthArgs {
    /// Listening address of the Engine API.
    #[arg(
        id = "auth_addr",
        long = "authrpc.addr",
        value_name = "ADDR",
        default_value = "127.0.0.1"
    )]
    pub(crate) addr: std::net::IpAddr,
    /// Listening port of the Engine API.
    #[arg(id = "auth_port", long = "authrpc.port", value_name = "PORT", default_value_t = 8551)]
    pub(crate) port: u16,
    /// Host names accepted by the Engine API, `*` for all. IP addresses are always accepted.
    #[arg(
        id = "auth_vhosts",
        long = "authrpc.vhosts",
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    pub(crate) vhosts: Vec<String>,
    /// File with the JWT secret shared with the consensus client, 32 bytes in hex [default:
    /// `jwt.hex` in the datadir, created if missing].
    #[arg(id = "auth_secret", long = "authrpc.jwtsecret", value_name = "FILE")]
    pub(crate) secret: Option<PathBuf>,
    /// Run without the Engine API.
    #[arg(id = "auth_disable", long = "disable-auth-server", action = ArgAction::SetTrue)]
    pub(crate) disable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("3h"), Ok(Duration::from_secs(10_800)));
        for bad in ["", "s", "2d", "-1s", "1.5s", "99999999999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
