//! Discovery alone, for testers such as geth's `devp2p discv4 test`: prints the node's `enode://`
//! URL and its record, and every candidate it finds.
//!
//! `discovery [PORT [KEYFILE [BOOTNODE..]]]`, by default on a free port, with a new key, and
//! without boot nodes. Ends when its standard input is closed.

use retrie_chainspec::ChainSpec;
use retrie_p2p::discovery::{
    Bootnode, Discovery, DiscoveryConfig, DiscoveryTiming, ForkTracker, NatMode, NodeKey,
};
use std::{error::Error, io::Read, path::Path, sync::Arc};
use tokio::{runtime::Runtime, sync::watch};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let port = args.next().map_or(Ok(0), |port| port.parse())?;
    let key = args
        .next()
        .map_or_else(|| Ok(NodeKey::random()), |path| NodeKey::load_or_create(Path::new(&path)))?;
    let bootnodes = args.map(|node| node.parse()).collect::<Result<Vec<Bootnode>, _>>()?;
    // Without boot nodes it searches no nodes, so a tester sees only the answers to its requests.
    let (_want, want) = watch::channel(!bootnodes.is_empty());
    let config = DiscoveryConfig {
        key,
        listen: ([127, 0, 0, 1], port).into(),
        tcp_port: port,
        nat: NatMode::None,
        bootnodes,
        forks: Arc::new(ForkTracker::new(&ChainSpec::mainnet(), 0, 0)),
        nodes_file: None,
        v4: true,
        v5: true,
        dns: vec![],
        dns_server: None,
        want,
        pace: DiscoveryTiming::default(),
    };
    let runtime = Runtime::new()?;
    let (discovery, mut candidates) = Discovery::start(config, runtime.handle())?;
    println!("{}\n{}", discovery.local_enode(), discovery.local_record().to_base64());
    runtime.spawn(async move {
        while let Some(candidate) = candidates.recv().await {
            println!("{candidate:?}");
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(discovery.shutdown());
    Ok(())
}
