//! Discovery version 5: the adapter between the `discv5` crate and this node.
//!
//! The crate reads the socket, and passes on packets that are not its own: if both versions share a
//! port, these are packets of version 4.

use super::{
    candidate_filter::CandidateFilter,
    enode::Enode,
    nat::NatMode,
    net::is_local,
    record::{Bootnode, Enr, LocalEnr, RecordError},
    timing::{DiscoveryTiming, wanted},
    v4::Discv4Service,
};
use crate::handle::CandidateSource;
use discv5::{ConfigBuilder, Discv5, Event, ListenConfig, NodeContact};
use enr::{CombinedPublicKey, NodeId, k256::ecdsa::VerifyingKey};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, watch},
};
use tracing::{debug, info, warn};

/// Discovery version 5, before it runs.
#[derive(Debug)]
pub(super) struct Discv5Service {
    pub(super) local: Arc<LocalEnr>,
    pub(super) socket: Arc<UdpSocket>,
    /// Version 4, if it is on: it gets its packets from here.
    pub(super) v4: Option<Arc<Discv4Service>>,
    pub(super) nat: NatMode,
    pub(super) pace: DiscoveryTiming,
    pub(super) boot: Vec<Bootnode>,
    pub(super) sieve: Arc<CandidateFilter>,
    pub(super) want: watch::Receiver<bool>,
    /// Records that version 4 has found.
    pub(super) records: mpsc::Receiver<Enr>,
}

/// Why version 5 does not run.
#[derive(Debug, thiserror::Error)]
enum Discv5Error {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("{0}")]
    Key(&'static str),
    #[error("{0}")]
    Start(discv5::Error),
}

impl Discv5Service {
    /// Runs for ever. If version 5 cannot start, version 4 reads the socket alone.
    pub(super) async fn run(mut self) {
        let mut own = self.local.watch();
        let discv5 = match self.start().await {
            Ok(discv5) => discv5,
            Err(error) => {
                warn!(target: "retrie::network", %error, "discovery version 5 is off");
                if let Some(v4) = self.v4.take() {
                    v4.receive().await;
                }
                return;
            }
        };
        let Ok(mut events) = discv5.event_stream().await else { return };
        for node in std::mem::take(&mut self.boot) {
            self.enter(&discv5, node);
        }
        let mut looking =
            std::pin::pin!(run_v5_lookups(&discv5, self.want.clone(), &self.sieve, self.pace));
        loop {
            tokio::select! {
                () = &mut looking => {}
                event = events.recv() => match event {
                    Some(event) => self.on(event),
                    None => break,
                },
                Some(record) = self.records.recv() => add(&discv5, record),
                Ok(()) = own.changed() => {
                    let record = own.borrow_and_update().clone();
                    *discv5.external_enr().write() = record;
                }
            }
        }
    }

    async fn start(&self) -> Result<Discv5, Discv5Error> {
        let address = self.socket.local_addr().ok();
        let (ipv4, ipv6) = match address {
            Some(SocketAddr::V6(_)) => (None, Some(Arc::clone(&self.socket))),
            _ => (Some(Arc::clone(&self.socket)), None),
        };
        let mut config = ConfigBuilder::new(ListenConfig::FromSockets { ipv4, ipv6 });
        config
            .request_timeout(self.pace.reply * 2)
            .query_peer_timeout(self.pace.reply * 4)
            .query_timeout(self.pace.reply * 60)
            .ping_interval(self.pace.check * 3);
        // If version 4 is on, it finds the external address: both versions share one record.
        if self.v4.is_some() || self.nat != NatMode::Any {
            config.disable_enr_update();
        }
        // The crate also counts local addresses, so the limit is off in a local network.
        let listens = address.map(|address| address.ip());
        let own = self.local.ip().or(listens);
        if !own.into_iter().chain(self.boot.iter().map(|boot| boot.enode.ip)).any(is_local) {
            config.ip_limit();
        }
        let key = self.local.signing_key()?;
        let mut discv5 =
            Discv5::new(self.local.get(), key, config.build()).map_err(Discv5Error::Key)?;
        discv5.start().await.map_err(Discv5Error::Start)?;
        Ok(discv5)
    }

    /// Adds a boot node by its record. If only its URL is known, asks it for its record.
    fn enter(&self, discv5: &Discv5, boot: Bootnode) {
        if let Some(record) = boot.record {
            return add(discv5, record);
        }
        if let Some(v4) = self.v4.clone() {
            let (sieve, pace) = (Arc::clone(&self.sieve), self.pace);
            tokio::spawn(async move {
                loop {
                    if let Ok(record) = v4.record(&boot.enode).await {
                        return sieve.share(&record);
                    }
                    tokio::time::sleep(pace.lookup.max(Duration::from_millis(100))).await;
                }
            });
            return;
        }
        // Any request starts a session, in which the crate asks for the record.
        let Some(contact) = contact(&boot.enode) else { return };
        let hello = discv5.talk_req(contact, b"eth".to_vec(), Vec::new());
        tokio::spawn(async move {
            if let Err(error) = hello.await {
                debug!(target: "retrie::network", node = %boot.enode, ?error, "boot node failed");
            }
        });
    }

    fn on(&self, event: Event) {
        match event {
            Event::UnrecognizedFrame(frame) => {
                if let Some(v4) = &self.v4 {
                    v4.take(&frame.packet, frame.src_address);
                }
            }
            Event::SessionEstablished(record, _) => {
                self.sieve.offer(&record, None, CandidateSource::Discv5);
            }
            Event::SocketUpdated(address) => match self.local.set_ip(address.ip()) {
                Ok(_) => {
                    info!(target: "retrie::network", "other nodes see this one at {}", address.ip());
                }
                Err(error) => debug!(target: "retrie::network", %error, "record not updated"),
            },
            // Dropping a talk request answers it with an empty message.
            _ => {}
        }
    }
}

fn add(discv5: &Discv5, record: Enr) {
    if let Err(error) = discv5.add_enr(record) {
        debug!(target: "retrie::network", error, "record not added to version 5");
    }
}

fn contact(node: &Enode) -> Option<NodeContact> {
    let mut bytes = [4; 65];
    bytes[1..].copy_from_slice(node.id.as_slice());
    let key = VerifyingKey::from_sec1_bytes(&bytes).ok()?;
    Some(NodeContact::new(CombinedPublicKey::Secp256k1(key), node.udp_address(), None))
}

/// Runs lookups while candidates are wanted.
async fn run_v5_lookups(
    discv5: &Discv5,
    mut want: watch::Receiver<bool>,
    sieve: &CandidateFilter,
    pace: DiscoveryTiming,
) {
    while wanted(&mut want).await {
        match discv5.find_node(NodeId::random()).await {
            Ok(records) => {
                for record in records {
                    sieve.offer(&record, None, CandidateSource::Discv5);
                }
            }
            Err(error) => debug!(target: "retrie::network", ?error, "a lookup of version 5 failed"),
        }
        tokio::time::sleep(pace.lookup).await;
    }
    // The network is gone: no candidates are wanted any more.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        discovery::{Discovery, DiscoveryConfig, ForkTracker, NodeKey},
        vectors::vectors,
    };
    use alloy_primitives::hex;
    use ctr::cipher::{KeyIvInit, StreamCipher};
    use serde_json::Value;
    use tokio::runtime::Handle;

    /// The crate is not ours, but this test checks that it answers as the specification says: a
    /// message without a session gets a challenge, and an answer to no challenge gets nothing.
    #[tokio::test]
    async fn the_packets_of_the_specification_are_answered() {
        let Some(vectors) = vectors("discv5.json") else { return };
        let bytes = |value: &Value| hex::decode(value.as_str().unwrap()).unwrap();
        let forks = Arc::new(ForkTracker::new(&retrie_chainspec::ChainSpec::mainnet(), 0, 0));
        let (_want, want) = watch::channel(false);
        let config = DiscoveryConfig {
            key: NodeKey::from_hex(vectors["keys"]["node-b-key"].as_str().unwrap()).unwrap(),
            listen: ([127, 0, 0, 1], 0).into(),
            tcp_port: 1,
            nat: NatMode::None,
            bootnodes: vec![],
            forks,
            nodes_file: None,
            v4: false,
            v5: true,
            dns: vec![],
            dns_server: None,
            want,
            pace: DiscoveryTiming::default(),
        };
        let (node, _candidates) = Discovery::start(config, &Handle::current()).unwrap();
        let asker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let packets = vectors["vectors"].as_array().unwrap().iter();
        let packets: Vec<_> = packets.filter(|vector| vector["kind"] == "packet").collect();
        // First the packets that get no answer.
        let (message, others): (Vec<&Value>, Vec<&Value>) = packets
            .into_iter()
            .partition(|vector| vector["what"].as_str().unwrap().contains("flag 0"));
        assert!(message.len() == 1 && others.len() >= 2);
        for vector in others.iter().chain::<&Vec<_>>(&message) {
            let packet = bytes(&vector["packet"]);
            asker.send_to(&packet, node.local_enode().udp_address()).await.unwrap();
        }
        let mut answer = [0; 1280];
        let wait = Duration::from_secs(20);
        let (length, _) =
            tokio::time::timeout(wait, asker.recv_from(&mut answer)).await.unwrap().unwrap();
        // The smallest possible packet: no answer is larger than its request.
        assert_eq!(length, 63);
        let fields = &message[0]["fields"];
        let (iv, header) = answer[..length].split_at_mut(16);
        let mask = &bytes(&fields["src-node-id"])[..16];
        let mut cipher = ctr::Ctr128BE::<aes::Aes128>::new_from_slices(mask, iv).unwrap();
        cipher.apply_keystream(header);
        assert_eq!(&header[..6], b"discv5");
        assert_eq!(header[8], 1, "a challenge");
        assert_eq!(header[9..21], bytes(&fields["nonce"]));
    }

    #[test]
    fn a_url_is_enough_to_call_a_node() {
        let id = NodeKey::random().id();
        let node = Enode { id, ip: [1, 2, 3, 4].into(), tcp: 5, udp: 6 };
        let contact = contact(&node).unwrap();
        assert_eq!(contact.node_id().raw(), node.hash().0);
        assert_eq!(contact.socket_addr(), node.udp_address());
    }
}
