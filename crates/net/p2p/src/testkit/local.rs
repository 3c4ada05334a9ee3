//! Nodes of a test chain on this machine. A node or an address that is missing fails the test.

use crate::{
    discovery::{Enode, ForkTracker},
    eth::{BlockRange, EthRequest, EthResponse},
    handle::{EthRequestHandler, PeerInfo, StateAudience},
    peers::{NetworkConfig, NetworkManager, StartedNetwork, SubnetLimits, start},
    rlpx,
    session::{LocalChain, SessionTiming},
    snap::SnapVersion,
};
use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, MAINNET_GENESIS_HASH, primitives::Header};
use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

/// Hash of the genesis block of the test chain.
pub const GENESIS: B256 = MAINNET_GENESIS_HASH;
/// Network id of the test chain.
pub const NETWORK: u64 = 1337;

/// The forks of the test chain.
pub fn forks() -> ForkTracker {
    ForkTracker::new(&ChainSpec::mainnet(), 10, 0)
}

/// A range of blocks from genesis on.
pub fn range(latest: u64) -> BlockRange {
    BlockRange { earliest: 0, latest, latest_hash: B256::with_last_byte(1) }
}

/// Timeouts that are short enough for a test.
pub fn timing() -> SessionTiming {
    SessionTiming {
        handshake: Duration::from_millis(500),
        request: Duration::from_millis(200),
        ping: Duration::from_millis(100),
        idle: Duration::from_millis(1500),
        write: Duration::from_millis(1000),
    }
}

/// Answers requests for headers with as many as are asked for, numbered from 0, and all others with
/// nothing.
#[derive(Clone, Copy, Debug)]
pub struct HeaderResponder;

impl EthRequestHandler for HeaderResponder {
    fn answer(&self, _: &PeerInfo, request: EthRequest) -> EthResponse {
        match request {
            EthRequest::Headers(from) => {
                let header = |number| Header { number, ..Header::default() };
                EthResponse::Headers((0..from.limit).map(header).collect())
            }
            other => other.empty_response(),
        }
    }
}

/// A node that listens on a free port and dials nobody.
pub fn config() -> NetworkConfig {
    NetworkConfig {
        key: rlpx::random_key(),
        client: "test/v1".to_owned(),
        listen: Some((Ipv4Addr::LOCALHOST, 0).into()),
        any_port: false,
        max_inbound: 10,
        max_outbound: 10,
        trusted: Vec::new(),
        static_nodes: Vec::new(),
        chain: LocalChain::new(NETWORK, GENESIS, Arc::new(forks()), range(10)),
        half_open: 64,
        inbound_of: SubnetLimits::default(),
        states: None,
        state_audience: StateAudience::All,
        ranges: None,
        snap_versions: SnapVersion::ALL.to_vec(),
        timing: timing(),
    }
}

/// Starts a node.
pub fn node(config: NetworkConfig) -> StartedNetwork {
    start(config, Arc::new(HeaderResponder)).unwrap()
}

/// The address of a node.
pub fn enode(manager: &NetworkManager) -> Enode {
    let address = manager.local_address().unwrap();
    let (ip, port) = (address.ip(), address.port());
    Enode { id: manager.id(), ip, tcp: port, udp: 0 }
}

/// Waits until a condition holds, however busy the machine is.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what} has not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
