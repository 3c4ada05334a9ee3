//! A devp2p peer that serves the blocks of a file and misbehaves in a chosen way: for tests of
//! nodes that sync from it.
//!
//! ```sh
//! cargo run -p retrie-examples --bin odd-peer lying genesis.json chain.rlp
//! ```
//!
//! It listens on a free port of loopback and prints its enode. The manner is `honest`; `lying`: one
//! header or body of each answer is wrong; or `silent`: it answers pings only.

use eyre::{OptionExt, bail};
use retrie_chainspec::{
    parse_chain,
    primitives::{Block, Header},
};
use retrie_p2p::{
    discovery::ForkTracker,
    eth::{EthRequest, EthResponse},
    handle::{EthRequestHandler, PeerInfo, StateAudience},
    peers::{NetworkConfig, StartedNetwork, SubnetLimits, start},
    serve::{ChainReader as _, ChainRequestHandler, MemoryChain},
    session::{LocalChain, SessionTiming},
};
use secp256k1::SecretKey;
use std::{path::Path, sync::Arc, time::Duration};

/// The behaviour of the peer.
#[derive(Clone, Copy, Debug)]
enum PeerManner {
    Honest,
    Lying,
    Silent,
}

#[derive(Debug)]
struct OddPeer {
    answers: ChainRequestHandler,
    manner: PeerManner,
}

impl EthRequestHandler for OddPeer {
    fn answer(&self, peer: &PeerInfo, request: EthRequest) -> EthResponse {
        let response = self.answers.answer(peer, request);
        match (self.manner, response) {
            (PeerManner::Honest, response) => response,
            (PeerManner::Silent, _) => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            (PeerManner::Lying, EthResponse::Headers(mut headers)) => {
                if let Some(last) = headers.last_mut() {
                    last.gas_limit ^= 1;
                }
                EthResponse::Headers(headers)
            }
            (PeerManner::Lying, EthResponse::Bodies(mut bodies)) => {
                if let Some(last) = bodies.last_mut() {
                    last.ommers.push(Header::default());
                }
                EthResponse::Bodies(bodies)
            }
            (PeerManner::Lying, response) => response,
        }
    }
}

fn main() -> eyre::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [manner, chain, file] = &args[..] else {
        bail!("odd-peer MANNER CHAIN FILE: CHAIN is a name or a genesis file, FILE has blocks");
    };
    let manner = match manner.as_str() {
        "honest" => PeerManner::Honest,
        "lying" => PeerManner::Lying,
        "silent" => PeerManner::Silent,
        other => bail!("`{other}` is no manner: there are honest, lying and silent"),
    };
    let spec = parse_chain(chain)?;
    let genesis =
        Block { header: spec.genesis_header().header().clone(), body: Default::default() };
    let blocks = retrie_sources::open(Path::new(file))?;
    let blocks: Result<Vec<Block>, _> = blocks.map(|one| one.map(|one| one.block)).collect();
    let blocks: Vec<Block> = std::iter::once(genesis).chain(blocks?).collect();
    let (number, timestamp) = blocks
        .last()
        .map(|head| (head.header.number, head.header.timestamp))
        .ok_or_eyre("there are no blocks")?;
    let chain = Arc::new(MemoryChain::new(blocks));
    let forks = Arc::new(ForkTracker::new(&spec, number, timestamp));
    let range = chain.view()?.range()?;
    let config = NetworkConfig {
        key: SecretKey::from_byte_array([0x0d; 32])?,
        client: "odd-peer".into(),
        listen: Some(([127, 0, 0, 1], 0).into()),
        any_port: false,
        max_inbound: 50,
        max_outbound: 0,
        trusted: Vec::new(),
        static_nodes: Vec::new(),
        chain: LocalChain::new(spec.chain_id(), spec.genesis_hash(), forks, range),
        half_open: 64,
        inbound_of: SubnetLimits::default(),
        states: None,
        state_audience: StateAudience::default(),
        ranges: None,
        snap_versions: Vec::new(),
        timing: SessionTiming::default(),
    };
    let StartedNetwork { manager, mut heard } =
        start(config, Arc::new(OddPeer { answers: ChainRequestHandler::new(chain), manner }))?;
    let address = manager.local_address().ok_or_eyre("it listens nowhere")?;
    println!("enode://{:x}@{address}", manager.id());
    // Announcements of other peers are ignored.
    manager.runtime().block_on(async { while heard.recv().await.is_some() {} });
    Ok(())
}
