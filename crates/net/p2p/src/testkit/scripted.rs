//! A network of scripted peers without connections.

use crate::{
    eth::{BlockRange, EthRequest, EthResponse, EthVersion, PeerId, TxGossip},
    handle::{
        BoxFuture, DisconnectedPeer, EthRequestHandler, PeerEvent, PeerInfo, PeerNetwork,
        PeerOffence, RequestError,
    },
    serve::{ChainReader, ChainRequestHandler},
};
use parking_lot::Mutex;
use retrie_chainspec::primitives::Header;
use std::{future, sync::Arc, time::Duration};
use tokio::sync::broadcast;

/// How a scripted peer behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerBehaviour {
    /// It answers from its chain.
    Honest,
    /// It answers from its chain after this time.
    Slow(Duration),
    /// It answers after this time, with at most this number of headers or bodies.
    Drips(Duration, usize),
    /// It never answers.
    Silent,
    /// Its answers are empty.
    Empty,
    /// One header of each answer is wrong.
    WrongHeaders,
    /// One body of each answer is wrong.
    WrongBodies,
    /// Its answers are of the kind of another request.
    OtherAnswers,
    /// It is always busy.
    Busy,
}

/// The scripted peers. Clones share them.
#[derive(Clone, Debug)]
pub struct ScriptedNetwork(Arc<ScriptedInner>);

#[derive(Debug)]
struct ScriptedInner {
    peers: Mutex<Vec<ScriptedPeer>>,
    events: broadcast::Sender<PeerEvent>,
    reports: Mutex<Vec<(PeerId, PeerOffence)>>,
}

#[derive(Debug)]
struct ScriptedPeer {
    info: Arc<PeerInfo>,
    manner: PeerBehaviour,
    serve: Arc<dyn EthRequestHandler>,
    asked: Vec<EthRequest>,
    told: Vec<TxGossip>,
    /// Whether it reads the gossip that it is sent.
    reads: bool,
}

impl Default for ScriptedNetwork {
    fn default() -> Self {
        let inner = ScriptedInner {
            peers: Mutex::default(),
            events: broadcast::channel(64).0,
            reports: Mutex::default(),
        };
        Self(Arc::new(inner))
    }
}

impl ScriptedNetwork {
    /// Connects a peer that has this chain.
    pub fn connect(&self, name: u8, manner: PeerBehaviour, chain: Arc<dyn ChainReader>) -> PeerId {
        let range = chain.view().and_then(|view| view.range()).unwrap_or_default();
        self.connect_to(name, manner, Arc::new(ChainRequestHandler::new(chain)), range)
    }

    /// Connects a peer that answers by `serve`, and speaks eth/70.
    pub fn connect_to(
        &self,
        name: u8,
        manner: PeerBehaviour,
        serve: Arc<dyn EthRequestHandler>,
        range: BlockRange,
    ) -> PeerId {
        self.connect_speaking(EthVersion::Eth70, name, manner, serve, range)
    }

    /// Connects a peer that answers by `serve`, and speaks this version.
    pub fn connect_speaking(
        &self,
        version: EthVersion,
        name: u8,
        manner: PeerBehaviour,
        serve: Arc<dyn EthRequestHandler>,
        range: BlockRange,
    ) -> PeerId {
        let id = PeerId::repeat_byte(name);
        let info = Arc::new(PeerInfo {
            id,
            address: ([127, 0, 0, 1], 30_000 + u16::from(name)).into(),
            local_address: ([127, 0, 0, 1], 30_303).into(),
            version,
            inbound: false,
            trusted: false,
            is_static: false,
            name: format!("scripted {name}"),
            speaks_rchk: false,
            snap: None,
            capabilities: Vec::new(),
            range,
        });
        let scripted = ScriptedPeer {
            info: info.clone(),
            manner,
            serve,
            asked: Vec::new(),
            told: Vec::new(),
            reads: true,
        };
        self.0.peers.lock().push(scripted);
        let _ = self.0.events.send(PeerEvent::Connected(info));
        id
    }

    /// Ends the connection with a peer.
    pub fn disconnect(&self, peer: PeerId) {
        let mut peers = self.0.peers.lock();
        let Some(at) = peers.iter().position(|scripted| scripted.info.id == peer) else { return };
        let ended =
            DisconnectedPeer { info: peers.remove(at).info, cause: "the test's end".into() };
        drop(peers);
        let _ = self.0.events.send(PeerEvent::Disconnected(Arc::new(ended)));
    }

    /// Changes the behaviour of a peer.
    pub fn behave(&self, peer: PeerId, manner: PeerBehaviour) {
        self.with(peer, |scripted| scripted.manner = manner);
    }

    /// Sets whether a peer reads the gossip that it is sent.
    pub fn reads(&self, peer: PeerId, reads: bool) {
        self.with(peer, |scripted| scripted.reads = reads);
    }

    /// The requests that a peer has got.
    pub fn requests(&self, peer: PeerId) -> Vec<EthRequest> {
        self.with(peer, |scripted| scripted.asked.clone()).unwrap_or_default()
    }

    /// The gossip that a peer has got since the last call.
    pub fn take_gossip(&self, peer: PeerId) -> Vec<TxGossip> {
        self.with(peer, |scripted| std::mem::take(&mut scripted.told)).unwrap_or_default()
    }

    /// The peers that were reported, and their offences.
    pub fn reports(&self) -> Vec<(PeerId, PeerOffence)> {
        self.0.reports.lock().clone()
    }

    fn with<T>(&self, peer: PeerId, change: impl FnOnce(&mut ScriptedPeer) -> T) -> Option<T> {
        let mut peers = self.0.peers.lock();
        peers.iter_mut().find(|scripted| scripted.info.id == peer).map(change)
    }
}

/// Spoils one item of an answer, as `manner` says.
fn spoilt(response: EthResponse, manner: PeerBehaviour) -> EthResponse {
    match (response, manner) {
        (EthResponse::Headers(mut headers), PeerBehaviour::WrongHeaders) => {
            if let Some(last) = headers.last_mut() {
                last.gas_limit ^= 1;
            }
            EthResponse::Headers(headers)
        }
        (EthResponse::Bodies(mut bodies), PeerBehaviour::WrongBodies) => {
            if let Some(last) = bodies.last_mut() {
                last.ommers.push(Header::default());
            }
            EthResponse::Bodies(bodies)
        }
        (_, PeerBehaviour::OtherAnswers) => EthResponse::AccessLists(Vec::new()),
        (response, _) => response,
    }
}

/// Keeps the first `most` items of an answer.
fn cut(response: EthResponse, most: usize) -> EthResponse {
    match response {
        EthResponse::Headers(mut headers) => {
            headers.truncate(most);
            EthResponse::Headers(headers)
        }
        EthResponse::Bodies(mut bodies) => {
            bodies.truncate(most);
            EthResponse::Bodies(bodies)
        }
        other => other,
    }
}

impl PeerNetwork for ScriptedNetwork {
    fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.0.peers.lock().iter().map(|scripted| scripted.info.clone()).collect()
    }

    fn request(
        &self,
        peer: PeerId,
        request: EthRequest,
    ) -> BoxFuture<Result<EthResponse, RequestError>> {
        let found = self.with(peer, |scripted| {
            scripted.asked.push(request.clone());
            (scripted.manner, scripted.serve.clone(), scripted.info.clone())
        });
        let Some((manner, serve, info)) = found else {
            return Box::pin(future::ready(Err(RequestError::NotConnected)));
        };
        Box::pin(async move {
            match manner {
                PeerBehaviour::Silent => future::pending().await,
                PeerBehaviour::Empty => Ok(request.empty_response()),
                PeerBehaviour::Busy => Err(RequestError::Busy(4)),
                PeerBehaviour::Slow(time) => {
                    tokio::time::sleep(time).await;
                    Ok(serve.answer(&info, request))
                }
                PeerBehaviour::Drips(time, most) => {
                    tokio::time::sleep(time).await;
                    Ok(cut(serve.answer(&info, request), most))
                }
                _ => Ok(spoilt(serve.answer(&info, request), manner)),
            }
        })
    }

    fn send(&self, peer: PeerId, gossip: TxGossip) -> bool {
        let told = self.with(peer, |scripted| {
            if scripted.reads {
                scripted.told.push(gossip);
            }
            scripted.reads
        });
        told.unwrap_or(false)
    }

    fn report(&self, peer: PeerId, offence: PeerOffence) {
        self.0.reports.lock().push((peer, offence));
        let is_small =
            matches!(offence, PeerOffence::Timeout | PeerOffence::Empty | PeerOffence::SidecarForm);
        if !is_small && offence != PeerOffence::ShortAnswer {
            self.disconnect(peer);
        }
    }

    fn events(&self) -> broadcast::Receiver<PeerEvent> {
        self.0.events.subscribe()
    }
}
