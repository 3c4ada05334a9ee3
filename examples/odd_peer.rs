//! A devp2p peer that serves the blocks of a file, and misbehaves as told: for tests of those who sync
//! from it.
//!
//! ```sh
//! cargo run -p retrie-examples --bin odd-peer lying genesis.json chain.rlp
//! ```
//!
//! It listens on a free port of loopback and prints its enode. Manners: `honest`; `lying`, of each
//! answer one header or body is another one; `silent`, it answers nothing but pings.

use eyre::{OptionExt, bail};
use retrie_chainspec::{
    parse_chain,
    primitives::{Block, Header},
};
use retrie_network::{
    discovery::Forks,
    eth::{Request, Response},
    handle::{PeerInfo, Serve, StateAudience},
    peers::{Config, NetworkShare, Started, start},
    serve::{Answers, Blocks, Chain as _},
    session::{Chain, Timing},
};
use secp256k1::SecretKey;
use std::{path::Path, sync::Arc, time::Duration};

/// How a peer behaves.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Honest,
    Lying,
    Silent,
}

#[derive(Debug)]
struct Odd {
    answers: Answers,
    manner: Manner,
}

impl Serve for Odd {
    fn answer(&self, peer: &PeerInfo, request: Request) -> Response {
        let response = self.answers.answer(peer, request);
        match (self.manner, response) {
            (Manner::Honest, response) => response,
            (Manner::Silent, _) => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            (Manner::Lying, Response::Headers(mut headers)) => {
                if let Some(last) = headers.last_mut() {
                    last.gas_limit ^= 1;
                }
                Response::Headers(headers)
            }
            (Manner::Lying, Response::Bodies(mut bodies)) => {
                if let Some(last) = bodies.last_mut() {
                    last.ommers.push(Header::default());
                }
                Response::Bodies(bodies)
            }
            (Manner::Lying, response) => response,
        }
    }
}

fn main() -> eyre::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [manner, chain, file] = &args[..] else {
        bail!("odd-peer MANNER CHAIN FILE: CHAIN is a name or a genesis file, FILE has blocks");
    };
    let manner = match manner.as_str() {
        "honest" => Manner::Honest,
        "lying" => Manner::Lying,
        "silent" => Manner::Silent,
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
    let chain = Arc::new(Blocks::new(blocks));
    let forks = Arc::new(Forks::new(&spec, number, timestamp));
    let range = chain.view()?.range()?;
    let config = Config {
        key: SecretKey::from_byte_array([0x0d; 32])?,
        client: "odd-peer".into(),
        listen: Some(([127, 0, 0, 1], 0).into()),
        any_port: false,
        max_inbound: 50,
        max_outbound: 0,
        trusted: Vec::new(),
        fixed: Vec::new(),
        chain: Chain::new(spec.chain_id(), spec.genesis_hash(), forks, range),
        half_open: 64,
        inbound_of: NetworkShare::default(),
        states: None,
        states_for: StateAudience::default(),
        timing: Timing::default(),
    };
    let Started { manager, mut heard } =
        start(config, Arc::new(Odd { answers: Answers::new(chain), manner }))?;
    let address = manager.local_address().ok_or_eyre("it listens nowhere")?;
    println!("enode://{:x}@{address}", manager.id());
    // What others tell is passed over.
    manager.runtime().block_on(async { while heard.recv().await.is_some() {} });
    Ok(())
}
