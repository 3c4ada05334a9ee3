//! Flags of `retrie node`, by part of the node; names and defaults as in reth.

use alloy_primitives::{Address, B256, Bytes, U256};
use clap::{ArgAction, Args, ValueEnum};
use retrie_engine::{
    BuilderConfig, EngineConfig,
    pool::{PoolConfig, SubPoolLimit},
};
use retrie_network::{
    discovery::{Bootnode, Enode, Nat, TreeUrl},
    handle::StateAudience,
    peers::NetworkShare,
};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// `2s`, `250ms`, `1m`, `3h`, or a number of seconds.
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

/// The same, but not nothing.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval.is_zero() { Err("an interval cannot be nothing".into()) } else { Ok(interval) }
}

/// The engine.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Canonical blocks in memory beyond which they are made durable.
    #[arg(long = "engine.persistence-threshold", value_name = "BLOCKS", default_value_t = 2)]
    persistence_threshold: u64,
    /// Canonical blocks that stay in memory then.
    #[arg(long = "engine.memory-block-buffer-target", value_name = "BLOCKS", default_value_t = 0)]
    memory_blocks: u64,
    /// Execute transactions in parallel on the block access lists that payloads bring from Amsterdam on
    /// (EIP-7928) [default: true where there is more than one core].
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

/// Building payloads.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Builder")]
pub(crate) struct BuilderArgs {
    /// Extra data of built blocks, at most 32 bytes of text.
    #[arg(id = "builder_extra_data", long = "builder.extradata", value_name = "TEXT", value_parser = parse_extra_data)]
    extra_data: Option<Bytes>,
    /// Gas limit to move towards, block by block.
    #[arg(id = "builder_gas_limit", long = "builder.gaslimit", value_name = "GAS")]
    gas_limit: Option<u64>,
    /// How long to wait before a payload is built again.
    #[arg(id = "builder_interval", long = "builder.interval", value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// How long a payload is improved.
    #[arg(id = "builder_deadline", long = "builder.deadline", value_name = "TIME", default_value = "12s", value_parser = parse_duration)]
    deadline: Duration,
    /// Payloads that are kept or under way at once.
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

/// The transaction pool.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TxPool")]
pub(crate) struct TxPoolArgs {
    /// Executable transactions.
    #[arg(long = "txpool.pending-max-count", value_name = "N", default_value_t = 10_000)]
    pending_count: usize,
    /// Their size in MiB.
    #[arg(long = "txpool.pending-max-size", value_name = "MIB", default_value_t = 20)]
    pending_size: usize,
    /// Transactions that wait for a lower base fee.
    #[arg(long = "txpool.basefee-max-count", value_name = "N", default_value_t = 10_000)]
    basefee_count: usize,
    /// Their size in MiB.
    #[arg(long = "txpool.basefee-max-size", value_name = "MIB", default_value_t = 20)]
    basefee_size: usize,
    /// Transactions that wait for a nonce or funds.
    #[arg(long = "txpool.queued-max-count", value_name = "N", default_value_t = 10_000)]
    queued_count: usize,
    /// Their size in MiB.
    #[arg(long = "txpool.queued-max-size", value_name = "MIB", default_value_t = 20)]
    queued_size: usize,
    /// Blob transactions.
    #[arg(long = "txpool.blobpool-max-count", value_name = "N", default_value_t = 10_000)]
    blob_count: usize,
    /// Their size in MiB, sidecars included.
    #[arg(long = "txpool.blobpool-max-size", value_name = "MIB", default_value_t = 512)]
    blob_size: usize,
    /// Sidecars of mined transactions that are kept, in MiB.
    #[arg(long = "txpool.blob-cache-size", value_name = "MIB", default_value_t = 128)]
    mined_blobs: usize,
    /// Refuse blob transactions.
    #[arg(long = "txpool.disable-blobs-support")]
    disable_blobs: bool,
    /// Transactions of one sender.
    #[arg(long = "txpool.max-account-slots", value_name = "N", default_value_t = 16)]
    max_account_slots: usize,
    /// Percent by which a replacement must pay more.
    #[arg(long = "txpool.pricebump", value_name = "PERCENT", default_value_t = 10)]
    price_bump: u128,
    /// The same for blob transactions.
    #[arg(long = "blobpool.pricebump", value_name = "PERCENT", default_value_t = 100)]
    blob_price_bump: u128,
    /// Smallest maximum fee per gas in wei.
    #[arg(long = "txpool.minimal-protocol-fee", value_name = "WEI", default_value_t = 7)]
    minimal_protocol_base_fee: u64,
    /// Smallest tip per gas in wei, unless local.
    #[arg(long = "txpool.minimum-priority-fee", value_name = "WEI")]
    minimum_priority_fee: Option<u128>,
    /// Largest transaction in bytes, without blobs.
    #[arg(long = "txpool.max-tx-input-bytes", value_name = "BYTES", default_value_t = 131_072)]
    max_tx_input_bytes: usize,
    /// Largest gas limit of a transaction.
    #[arg(long = "txpool.max-tx-gas", value_name = "GAS")]
    max_tx_gas: Option<u64>,
    /// Local transactions have no privileges.
    #[arg(long = "txpool.nolocals")]
    no_locals: bool,
    /// Senders whose transactions are local wherever they come from.
    #[arg(
        id = "txpool_locals",
        long = "txpool.locals",
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    locals: Vec<Address>,
    /// File that keeps the pool over a restart; in the datadir if absent.
    #[arg(id = "txpool_journal", long = "txpool.journal", value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Forget the pool when the node stops.
    #[arg(long = "txpool.disable-journal", conflicts_with = "txpool_journal")]
    pub(crate) disable_journal: bool,
    /// How long a transaction may wait for a nonce or funds.
    #[arg(id = "txpool_lifetime", long = "txpool.lifetime", value_name = "TIME", default_value = "3h", value_parser = parse_duration)]
    lifetime: Duration,
}

impl TxPoolArgs {
    /// The pool's configuration; `tx_fee_cap` in wei, 0 for none.
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

/// A chain of one's own.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Dev chain")]
pub(crate) struct DevArgs {
    /// Run a chain of its own with funded accounts, sealing a block for each transaction.
    #[arg(long)]
    pub(crate) dev: bool,
    /// Seal a block at this interval instead.
    #[arg(long = "dev.block-time", value_name = "TIME", requires = "dev", value_parser = parse_interval)]
    pub(crate) block_time: Option<Duration>,
    /// Whether a transaction that is sealed at once is answered once it is in a block.
    #[arg(
        long = "dev.wait",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(crate) wait: bool,
    /// What web3_clientVersion answers. Tools call the methods for dev chains if it begins with
    /// `HardhatNetwork` or `anvil`.
    #[arg(long = "dev.client-version", value_name = "TEXT", requires = "dev")]
    pub(crate) client_version: Option<String>,
}

impl DevArgs {
    /// What `web3_clientVersion` answers on a dev chain.
    pub(crate) fn client_version(&self) -> String {
        let default = || format!("HardhatNetwork/{}", retrie_rpc::client_version());
        self.client_version.clone().unwrap_or_else(default)
    }
}

/// Peers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Networking")]
pub(crate) struct NetworkArgs {
    /// Look for no nodes: only static and trusted peers are dialled.
    #[arg(long = "disable-discovery", short = 'd')]
    pub(crate) disable_discovery: bool,
    /// Do not ask lists of nodes in DNS (EIP-1459).
    #[arg(long = "disable-dns-discovery")]
    pub(crate) disable_dns: bool,
    /// Run without version 4 of discovery.
    #[arg(long = "disable-discv4-discovery")]
    pub(crate) disable_v4: bool,
    /// Run without version 5 of discovery.
    #[arg(long = "disable-discv5-discovery")]
    pub(crate) disable_v5: bool,
    /// UDP port of discovery, both versions; as `--port` if absent.
    #[arg(id = "discovery_port", long = "discovery.port", value_name = "PORT")]
    pub(crate) discovery_port: Option<u16>,
    /// Nodes by which to enter the network, as enode:// or enr: URLs; those of the network if absent.
    #[arg(long = "bootnodes", value_name = "URL,..", value_delimiter = ',')]
    pub(crate) bootnodes: Option<Vec<Bootnode>>,
    /// Lists of nodes in DNS, as enrtree:// URLs; that of the network if absent.
    #[arg(id = "dns_lists", long = "discovery.dns", value_name = "URL,..", value_delimiter = ',')]
    pub(crate) dns: Option<Vec<TreeUrl>>,
    /// Name server for these lists; the system's if absent.
    #[arg(id = "dns_server", long = "discovery.dns-server", value_name = "ADDR:PORT")]
    pub(crate) dns_server: Option<SocketAddr>,
    /// Nodes that are dialled again and again, and for which limits of peers do not hold, as enode://
    /// URLs.
    #[arg(long = "trusted-peers", value_name = "URL,..", value_delimiter = ',')]
    pub(crate) trusted_peers: Vec<Enode>,
    /// How the node learns its address: `any` (from other nodes), `none`, or `extip:IP`.
    #[arg(long = "nat", value_name = "WAY", default_value = "any")]
    pub(crate) nat: Nat,
    /// Address on which peers are listened to, and discovery.
    #[arg(id = "network_addr", long = "addr", value_name = "ADDR", default_value = "0.0.0.0")]
    pub(crate) addr: IpAddr,
    /// Port on which peers are listened to; 0 takes a free one [default: 30303, or a free one if that
    /// is taken].
    #[arg(id = "network_port", long = "port", value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Peers that have dialled this node, at most.
    #[arg(long = "max-inbound-peers", value_name = "N", default_value_t = 30)]
    pub(crate) max_inbound: usize,
    /// Peers that this node has dialled, at most.
    #[arg(long = "max-outbound-peers", value_name = "N", default_value_t = 100)]
    pub(crate) max_outbound: usize,
    /// Connections that come and are no peers yet, at most.
    #[arg(skip = 64usize)]
    pub(crate) half_open: usize,
    /// Peers of one address that have dialled this node, at most. Addresses of this machine and of
    /// networks that are not public do not count.
    #[arg(long = "max-inbound-peers-per-ip", value_name = "N", default_value_t = 2)]
    pub(crate) max_inbound_of_address: usize,
    /// The same of one /24 (IPv4) or /64 (IPv6).
    #[arg(long = "max-inbound-peers-per-subnet", value_name = "N", default_value_t = 4)]
    pub(crate) max_inbound_of_subnet: usize,
    /// To which peers the node hands out its state (`rchk/1`): `trusted` ones (`--trusted-peers`,
    /// admin_addTrustedPeer, admin_addPeer), `all`, or `none`.
    #[arg(long = "rchk.serve", value_name = "WHOM", default_value = "trusted")]
    pub(crate) serve_states: ServeStatesTo,
    /// File with the node's key, 32 bytes in hex. Without it one is made in the datadir:
    /// `discovery-secret`.
    #[arg(long = "p2p-secret-key", value_name = "FILE")]
    pub(crate) secret_key: Option<PathBuf>,
}

/// To which peers a node hands out its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServeStatesTo {
    /// All of them.
    All,
    /// Peers that the operator has named.
    Trusted,
    /// None.
    None,
}

impl NetworkArgs {
    /// How many peers of one network may dial this node.
    pub(crate) const fn inbound_of(&self) -> NetworkShare {
        NetworkShare {
            of_address: self.max_inbound_of_address,
            of_subnet: self.max_inbound_of_subnet,
            counts_near: false,
        }
    }

    /// With whom it speaks `rchk`, if it does.
    pub(crate) const fn states_for(&self) -> Option<StateAudience> {
        match self.serve_states {
            ServeStatesTo::All => Some(StateAudience::All),
            ServeStatesTo::Trusted => Some(StateAudience::Named),
            ServeStatesTo::None => None,
        }
    }
}

/// Blocks from another node.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Following")]
pub(crate) struct FollowArgs {
    /// JSON-RPC address of a node whose blocks are fetched and verified. Its head leads, unless a
    /// consensus client does (`--follow.gaps-only`).
    #[arg(long, value_name = "RPC_URL")]
    pub(crate) follow: Option<String>,
    /// Only fetch what is missing below the head that the consensus client names.
    #[arg(long = "follow.gaps-only", requires = "follow")]
    pub(crate) gaps_only: bool,
    /// How often its head is asked for.
    #[arg(id = "follow_interval", long = "follow.interval", value_name = "TIME", default_value = "2s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
}

/// Beginning with the state of other nodes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "State sync")]
pub(crate) struct SyncArgs {
    /// JSON-RPC addresses of nodes that serve the namespace `sync`. A new datadir begins with their
    /// state, every part of which is checked: none of them is trusted, and one honest one is enough.
    #[arg(id = "sync_from", long = "sync.from", value_name = "RPC_URL,..", value_delimiter = ',')]
    pub(crate) from: Vec<String>,
    /// Hash of the block to begin with. It is trusted, and with it the root in its header, if that is
    /// the backend's. Its state is got from the nodes of --sync.from, or without these from peers.
    #[arg(long, value_name = "HASH")]
    pub(crate) checkpoint: Option<B256>,
    /// Root of the state to begin with, of the backend's own. It is trusted. Without --checkpoint the
    /// nodes of --sync.from say which block has it.
    #[arg(id = "sync_root", long = "sync.trusted-root", value_name = "ROOT")]
    pub(crate) root: Option<B256>,
    /// The total difficulty up to and with that block, if it is of proof of work.
    #[arg(id = "sync_difficulty", long = "sync.total-difficulty", value_name = "DIFFICULTY")]
    pub(crate) total_difficulty: Option<U256>,
    /// How long nothing may come from any of them before the node gives up.
    #[arg(
        id = "sync_patience",
        long = "sync.patience",
        value_name = "TIME",
        default_value = "5m",
        value_parser = parse_interval
    )]
    pub(crate) patience: Duration,
    /// Hash of a block whose chain is fetched from peers and which becomes the head, without a consensus
    /// client or before it has named one. It is trusted to be on the right chain, and verified like any
    /// other block.
    #[arg(id = "sync_head", long = "sync.head", value_name = "HASH")]
    pub(crate) head: Option<B256>,
}

impl SyncArgs {
    /// Whether a new datadir shall begin with the state of other nodes.
    pub(crate) fn begins(&self) -> bool {
        !self.from.is_empty() || self.checkpoint.is_some() || self.root.is_some()
    }
}

/// Log files.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogArgs {
    /// Also write logs into files in this folder.
    #[arg(id = "log_directory", long = "log.file.directory", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// A log file that has grown to so many MB is put aside.
    #[arg(
        id = "log_max_size",
        long = "log.file.max-size",
        value_name = "MB",
        default_value_t = 200
    )]
    pub(crate) max_size: u64,
    /// So many files are kept.
    #[arg(
        id = "log_max_files",
        long = "log.file.max-files",
        value_name = "N",
        default_value_t = 5
    )]
    pub(crate) max_files: usize,
}

/// The auth port.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine API")]
pub(crate) struct AuthArgs {
    /// Address of the Engine API.
    #[arg(
        id = "auth_addr",
        long = "authrpc.addr",
        value_name = "ADDR",
        default_value = "127.0.0.1"
    )]
    pub(crate) addr: std::net::IpAddr,
    /// Port of the Engine API.
    #[arg(id = "auth_port", long = "authrpc.port", value_name = "PORT", default_value_t = 8551)]
    pub(crate) port: u16,
    /// Names under which the Engine API answers, `*` for all; addresses always.
    #[arg(
        id = "auth_vhosts",
        long = "authrpc.vhosts",
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    pub(crate) vhosts: Vec<String>,
    /// File with the secret that the consensus client shares, 32 bytes in hex. Without it one is
    /// made in the datadir.
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
