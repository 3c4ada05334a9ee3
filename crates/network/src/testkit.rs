//! Peers that behave as a script says, without a network; for tests here and in other crates.

use crate::{
    eth::{BlockRange, Gossip, PeerId, Request, Response, Version},
    handle::BoxFuture,
    peers::{Event, Network, Offence, PeerInfo, RequestError, Serve},
    serve::{Answers, Chain},
};
use parking_lot::Mutex;
use retrie_chainspec::primitives::Header;
use std::{future, sync::Arc, time::Duration};
use tokio::sync::broadcast;

/// How a peer behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It answers from its chain.
    Honest,
    /// The same after a while.
    Slow(Duration),
    /// The same with no more than so many headers or bodies.
    Drips(Duration, usize),
    /// It never answers.
    Silent,
    /// It has nothing.
    Empty,
    /// One header of each answer is another one.
    WrongHeaders,
    /// One body of each answer is another one.
    WrongBodies,
    /// Its answers are those of another request.
    OtherAnswers,
    /// It has too much to do.
    Busy,
}

/// The peers. Clones are the same.
#[derive(Clone, Debug)]
pub struct ScriptedPeers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    peers: Mutex<Vec<Scripted>>,
    events: broadcast::Sender<Event>,
    reports: Mutex<Vec<(PeerId, Offence)>>,
}

#[derive(Debug)]
struct Scripted {
    info: Arc<PeerInfo>,
    manner: Manner,
    serve: Arc<dyn Serve>,
    asked: Vec<Request>,
    told: Vec<Gossip>,
    /// Whether it reads what it is told.
    reads: bool,
}

impl Default for ScriptedPeers {
    fn default() -> Self {
        let inner = Inner {
            peers: Mutex::default(),
            events: broadcast::channel(64).0,
            reports: Mutex::default(),
        };
        Self(Arc::new(inner))
    }
}

impl ScriptedPeers {
    /// Connects a peer that has this chain.
    pub fn connect(&self, name: u8, manner: Manner, chain: Arc<dyn Chain>) -> PeerId {
        let range = chain.view().and_then(|view| view.range()).unwrap_or_default();
        self.connect_to(name, manner, Arc::new(Answers::new(chain)), range)
    }

    /// Connects a peer that answers so.
    pub fn connect_to(
        &self,
        name: u8,
        manner: Manner,
        serve: Arc<dyn Serve>,
        range: BlockRange,
    ) -> PeerId {
        let id = PeerId::repeat_byte(name);
        let info = Arc::new(PeerInfo {
            id,
            address: ([127, 0, 0, 1], 30_000 + u16::from(name)).into(),
            local_address: ([127, 0, 0, 1], 30_303).into(),
            version: Version::Eth70,
            inbound: false,
            trusted: false,
            is_static: false,
            name: format!("scripted {name}"),
            speaks_rchk: false,
            capabilities: Vec::new(),
            range,
        });
        let scripted = Scripted {
            info: info.clone(),
            manner,
            serve,
            asked: Vec::new(),
            told: Vec::new(),
            reads: true,
        };
        self.0.peers.lock().push(scripted);
        let _ = self.0.events.send(Event::Connected(info));
        id
    }

    /// Ends the connection with a peer.
    pub fn disconnect(&self, peer: PeerId) {
        self.0.peers.lock().retain(|scripted| scripted.info.id != peer);
        let _ = self.0.events.send(Event::Disconnected(peer));
    }

    /// Changes how a peer behaves.
    pub fn behave(&self, peer: PeerId, manner: Manner) {
        self.with(peer, |scripted| scripted.manner = manner);
    }

    /// Whether a peer reads what it is told.
    pub fn reads(&self, peer: PeerId, reads: bool) {
        self.with(peer, |scripted| scripted.reads = reads);
    }

    /// What a peer was asked for.
    pub fn asked(&self, peer: PeerId) -> Vec<Request> {
        self.with(peer, |scripted| scripted.asked.clone()).unwrap_or_default()
    }

    /// What a peer was told since this was asked last.
    pub fn told(&self, peer: PeerId) -> Vec<Gossip> {
        self.with(peer, |scripted| std::mem::take(&mut scripted.told)).unwrap_or_default()
    }

    /// Who was reported, and for what.
    pub fn reports(&self) -> Vec<(PeerId, Offence)> {
        self.0.reports.lock().clone()
    }

    fn with<T>(&self, peer: PeerId, change: impl FnOnce(&mut Scripted) -> T) -> Option<T> {
        let mut peers = self.0.peers.lock();
        peers.iter_mut().find(|scripted| scripted.info.id == peer).map(change)
    }
}

/// An answer with one item that is another one.
fn spoilt(response: Response, manner: Manner) -> Response {
    match (response, manner) {
        (Response::Headers(mut headers), Manner::WrongHeaders) => {
            if let Some(last) = headers.last_mut() {
                last.gas_limit ^= 1;
            }
            Response::Headers(headers)
        }
        (Response::Bodies(mut bodies), Manner::WrongBodies) => {
            if let Some(last) = bodies.last_mut() {
                last.ommers.push(Header::default());
            }
            Response::Bodies(bodies)
        }
        (_, Manner::OtherAnswers) => Response::AccessLists(Vec::new()),
        (response, _) => response,
    }
}

/// The first items of an answer.
fn cut(response: Response, most: usize) -> Response {
    match response {
        Response::Headers(mut headers) => {
            headers.truncate(most);
            Response::Headers(headers)
        }
        Response::Bodies(mut bodies) => {
            bodies.truncate(most);
            Response::Bodies(bodies)
        }
        other => other,
    }
}

impl Network for ScriptedPeers {
    fn connected(&self) -> Vec<Arc<PeerInfo>> {
        self.0.peers.lock().iter().map(|scripted| scripted.info.clone()).collect()
    }

    fn request(&self, peer: PeerId, request: Request) -> BoxFuture<Result<Response, RequestError>> {
        let found = self.with(peer, |scripted| {
            scripted.asked.push(request.clone());
            (scripted.manner, scripted.serve.clone(), scripted.info.clone())
        });
        let Some((manner, serve, info)) = found else {
            return Box::pin(future::ready(Err(RequestError::Gone)));
        };
        Box::pin(async move {
            match manner {
                Manner::Silent => future::pending().await,
                Manner::Empty => Ok(request.nothing()),
                Manner::Busy => Err(RequestError::Busy(4)),
                Manner::Slow(time) => {
                    tokio::time::sleep(time).await;
                    Ok(serve.answer(&info, request))
                }
                Manner::Drips(time, most) => {
                    tokio::time::sleep(time).await;
                    Ok(cut(serve.answer(&info, request), most))
                }
                _ => Ok(spoilt(serve.answer(&info, request), manner)),
            }
        })
    }

    fn send(&self, peer: PeerId, gossip: Gossip) -> bool {
        let told = self.with(peer, |scripted| {
            if scripted.reads {
                scripted.told.push(gossip);
            }
            scripted.reads
        });
        told.unwrap_or(false)
    }

    fn report(&self, peer: PeerId, offence: Offence) {
        self.0.reports.lock().push((peer, offence));
        let is_small = matches!(offence, Offence::Timeout | Offence::Empty | Offence::SidecarForm);
        if !is_small && offence != Offence::ShortAnswer {
            self.disconnect(peer);
        }
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.0.events.subscribe()
    }
}
