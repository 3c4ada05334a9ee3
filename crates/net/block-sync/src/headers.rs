//! The header scheduler: which headers are wanted, which peers are asked for them, and what has
//! come.
//!
//! ```text
//!  the lowest known header names its parent
//!        |
//!     piece 0   asked for by that hash: each header counts as it comes
//!     piece 1   asked for by number, of another peer at the same time: its headers count once the
//!     piece 2   lowest header of the piece above names the first one; if it names another one, the
//!     ..        peer is asked by hash alone for a while, and other peers are asked by hash
//! ```
//!
//! So only hashes that follow from the head's hash are trusted, and all peers work at once. The
//! piece that is needed first goes to the fastest peer. A late piece is asked of a second peer, the
//! sooner the faster that peer is.
//!
//! A pure state machine: it sends nothing itself, and the caller passes the time.

use crate::{
    skeleton::{HeaderSpan, SEGMENT, SealedHeader, linked},
    standing::{FreePeer, PIPELINED, ServiceKind, StandingTable},
};
use alloy_eips::BlockHashOrNumber;
use alloy_primitives::{B256, map::HashMap};
use retrie_chainspec::primitives::Header;
use retrie_p2p::{
    eth::{BlockRange, PeerId},
    handle::PeerOffence,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum number of pieces that are wanted, under way or here.
const MOST_PIECES: usize = 16;
/// An answer with fewer headers than this is short, if the peer has more. The limits of known
/// clients are higher: the lowest is 192.
const FAIR_ANSWER: u64 = 128;

/// The result of a request.
#[derive(Debug)]
pub(crate) enum HeaderOutcome {
    /// Headers: the first one is the one that was asked for, and each is the parent of the one
    /// before.
    Linked(Vec<Arc<SealedHeader>>),
    /// An answer that no honest peer sends.
    Wrong,
    /// No header, or no answer.
    Failed,
    /// The peer is busy. This is no fault.
    Busy,
}

/// Checks an answer against its request.
pub(crate) fn check(start: BlockHashOrNumber, headers: Vec<Header>) -> HeaderOutcome {
    let Some(first) = headers.first() else { return HeaderOutcome::Failed };
    let top = match start {
        BlockHashOrNumber::Hash(hash) => hash,
        BlockHashOrNumber::Number(number) if first.number == number => first.hash_slow(),
        BlockHashOrNumber::Number(_) => return HeaderOutcome::Wrong,
    };
    linked(top, headers).map_or(HeaderOutcome::Wrong, HeaderOutcome::Linked)
}

/// A request to be sent: `count` headers downwards from `start`.
#[derive(Debug)]
pub(crate) struct HeaderFlight {
    pub(crate) id: u64,
    pub(crate) peer: PeerId,
    pub(crate) start: BlockHashOrNumber,
    pub(crate) count: u64,
}

/// An open request.
#[derive(Debug)]
struct HeaderRequest {
    peer: PeerId,
    /// The range of blocks that the peer serves.
    range: BlockRange,
    piece: u64,
    start: BlockHashOrNumber,
    count: u64,
    since: Instant,
    is_late: bool,
}

/// Headers that are requested together.
#[derive(Debug)]
struct HeaderPiece {
    id: u64,
    /// Number of the highest header, if known.
    top: Option<u64>,
    /// Hash of the highest header, once a trusted header has named it.
    hash: Option<B256>,
    count: u64,
    /// The headers that have come: the upper part, or all if the hash is not known.
    got: Vec<Arc<SealedHeader>>,
    /// The peer that gave headers which no trusted header has named yet.
    giver: Option<PeerId>,
    /// The peers that were asked without success.
    tried: Vec<PeerId>,
}

/// Why a peer may be asked for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceState {
    /// No request is open.
    Open,
    /// Another peer is late.
    Late,
}

impl HeaderPiece {
    fn is_complete(&self) -> bool {
        let last = self.got.last();
        self.got.len() as u64 >= self.count || last.is_some_and(|last| last.header.number == 0)
    }

    /// The first missing header.
    fn start(&self) -> Option<BlockHashOrNumber> {
        let hash = self.got.last().map(|last| last.header.parent_hash).or(self.hash);
        hash.map(BlockHashOrNumber::Hash).or_else(|| self.top.map(BlockHashOrNumber::Number))
    }

    /// Number of the block below the lowest header.
    fn below(&self) -> Option<u64> {
        self.top?.checked_sub(self.count)
    }

    /// Sets the hash that the piece above names. Returns the peer if it gave headers of another
    /// branch.
    fn join(&mut self, hash: B256) -> Option<PeerId> {
        if self.hash.replace(hash).is_some() {
            return None;
        }
        // A peer that has no header with this number may have one with this hash.
        self.tried.clear();
        let giver = self.giver.take();
        if self.got.first().is_none_or(|first| first.hash == hash) {
            return None;
        }
        self.got.clear();
        giver
    }

    /// Appends headers that follow the ones here. Returns how many were appended.
    fn append(&mut self, headers: &[Arc<SealedHeader>]) -> usize {
        let Some(BlockHashOrNumber::Hash(next)) = self.start() else { return 0 };
        // A second peer may have given the upper part meanwhile.
        let Some(from) = headers.iter().position(|named| named.hash == next) else { return 0 };
        let missing = usize::try_from(self.count).map_or(0, |count| count - self.got.len());
        let new = headers.iter().skip(from).take(missing);
        let before = self.got.len();
        self.got.extend(new.cloned());
        self.got.len() - before
    }
}

/// Schedules requests for headers, and keeps the headers that have come.
#[derive(Debug, Default)]
pub(crate) struct HeaderScheduler {
    /// In the order in which they are needed.
    pieces: Vec<HeaderPiece>,
    out: HashMap<u64, HeaderRequest>,
    next_id: u64,
    /// Number of useful headers that have come.
    arrived: u64,
}

impl HeaderScheduler {
    /// Wants these headers before all others, or after them if there is room.
    pub(crate) fn want(&mut self, span: HeaderSpan, is_first: bool) {
        let at = self.pieces.iter().position(|piece| piece.hash == Some(span.hash));
        if let Some(at) = at {
            if is_first {
                self.pieces[..=at].rotate_right(1);
            }
            return;
        }
        if is_first {
            self.pieces.truncate(MOST_PIECES - 1);
            let piece = self.piece(span.top, Some(span.hash), span.count);
            self.pieces.insert(0, piece);
        } else if self.pieces.len() < MOST_PIECES {
            let piece = self.piece(span.top, Some(span.hash), span.count);
            self.pieces.push(piece);
        }
    }

    /// Wants the headers from block `top`, with this hash, down to block `bottom`, as many as there
    /// is room for, and no others. Returns offences that are known now.
    pub(crate) fn want_down(
        &mut self,
        (top, hash): (u64, B256),
        bottom: u64,
        standings: &mut StandingTable,
        now: Instant,
    ) -> Vec<(PeerId, PeerOffence)> {
        let count = |top: u64| top.saturating_sub(bottom).saturating_add(1).min(SEGMENT as u64);
        let is_other = |first: &HeaderPiece| {
            first.top != Some(top) || first.hash.is_some_and(|known| known != hash)
        };
        if self.pieces.first().is_none_or(is_other) {
            self.pieces.clear();
            let piece = self.piece(Some(top), Some(hash), count(top));
            self.pieces.push(piece);
        }
        let mut strayed: Vec<_> =
            self.pieces.first_mut().and_then(|first| first.join(hash)).into_iter().collect();
        while self.pieces.len() < MOST_PIECES
            && let Some(next) = self.pieces.last().and_then(HeaderPiece::below)
            && next >= bottom
        {
            let piece = self.piece(Some(next), None, count(next));
            self.pieces.push(piece);
        }
        strayed.extend(self.join_all());
        blame(strayed, standings, now)
    }

    fn piece(&mut self, top: Option<u64>, hash: Option<B256>, count: u64) -> HeaderPiece {
        let id = self.next_id;
        self.next_id += 1;
        HeaderPiece { id, top, hash, count, got: Vec::new(), giver: None, tried: Vec::new() }
    }

    /// Joins each piece with the one above it. Returns the peers that gave headers of another
    /// branch.
    fn join_all(&mut self) -> Vec<PeerId> {
        let mut strayed = Vec::new();
        for at in 1..self.pieces.len() {
            let [above, below] = &mut self.pieces[at - 1..=at] else { continue };
            let is_next = above.below().is_some() && above.below() == below.top;
            if is_next && above.hash.is_some() && above.is_complete() {
                let parent = above.got.last().map(|last| last.header.parent_hash);
                strayed.extend(parent.and_then(|parent| below.join(parent)));
            }
        }
        strayed
    }

    /// Takes out the headers that begin with this hash, if all of them are here.
    pub(crate) fn take(&mut self, hash: &B256) -> Option<Vec<Arc<SealedHeader>>> {
        let at = self.pieces.iter().position(|piece| piece.hash.as_ref() == Some(hash))?;
        self.pieces[at].is_complete().then(|| self.pieces.remove(at).got)
    }

    /// Forgets the headers that begin with this hash.
    pub(crate) fn forget(&mut self, hash: &B256) {
        self.pieces.retain(|piece| piece.hash.as_ref() != Some(hash));
    }

    /// Forgets all headers that are wanted or here. Answers to open requests are ignored then.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Number of useful headers that have come.
    pub(crate) const fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Whether all of these peers were asked without success for the headers that begin with this
    /// hash. If so, the peers may be asked again.
    pub(crate) fn is_hopeless(&mut self, hash: &B256, peers: &[(PeerId, BlockRange)]) -> bool {
        let wanted = self.pieces.iter_mut().find(|piece| piece.hash.as_ref() == Some(hash));
        let Some(piece) = wanted.filter(|piece| !piece.is_complete()) else { return false };
        let is_out = self.out.values().any(|request| request.piece == piece.id);
        if is_out || peers.iter().any(|(peer, _)| !piece.tried.contains(peer)) {
            return false;
        }
        piece.tried.clear();
        true
    }

    /// The requests to send now to these connected peers, given their ranges of blocks.
    pub(crate) fn assign(
        &mut self,
        standings: &mut StandingTable,
        peers: &[(PeerId, BlockRange)],
        patience: Duration,
        now: Instant,
    ) -> Vec<HeaderFlight> {
        let Some(first) = self.pieces.iter().position(|piece| !piece.is_complete()) else {
            return Vec::new();
        };
        let mut flights = Vec::new();
        // The piece that is needed first is asked of the fastest peer, even if other peers are
        // idle.
        let fastest = standings.fastest(peers, ServiceKind::Headers, now);
        let may_take =
            |peer: &&FreePeer| self.state(first, peer, standings, patience, now).is_some();
        if let Some(peer) = fastest.iter().find(may_take) {
            flights.extend(self.send(first, peer, standings, patience, now));
        }
        for _ in 0..PIPELINED {
            for peer in standings.free(peers, ServiceKind::Headers, now) {
                let state = |at: usize| self.state(at, &peer, standings, patience, now);
                let all = 0..self.pieces.len();
                let open = all.clone().find(|at| state(*at) == Some(PieceState::Open));
                let next = open.or_else(|| all.clone().find(|at| state(*at).is_some()));
                if let Some(at) = next {
                    flights.extend(self.send(at, &peer, standings, patience, now));
                }
            }
        }
        flights
    }

    /// Whether this peer may be asked for a piece now, and why.
    fn state(
        &self,
        at: usize,
        peer: &FreePeer,
        standings: &StandingTable,
        patience: Duration,
        now: Instant,
    ) -> Option<PieceState> {
        let piece = self.pieces.get(at).filter(|piece| !piece.is_complete())?;
        if piece.tried.contains(&peer.id) {
            return None;
        }
        if let BlockHashOrNumber::Number(number) = piece.start()?
            && (peer.range.latest < number || standings.is_off_branch(&peer.id, now))
        {
            return None;
        }
        let of_piece = || self.out.values().filter(|request| request.piece == piece.id);
        if of_piece().any(|request| request.peer == peer.id) {
            return None;
        }
        let Some(newest) = of_piece().map(|request| request.since).max() else {
            return Some(PieceState::Open);
        };
        let missing = usize::try_from(piece.count).map_or(SEGMENT, |count| count - piece.got.len());
        let is_late = now.duration_since(newest) >= peer.hedge_after(missing, patience);
        is_late.then_some(PieceState::Late)
    }

    fn send(
        &mut self,
        at: usize,
        peer: &FreePeer,
        standings: &mut StandingTable,
        patience: Duration,
        now: Instant,
    ) -> Option<HeaderFlight> {
        let piece = self.pieces.get(at)?;
        let (start, count) = (piece.start()?, piece.count - piece.got.len() as u64);
        for late in self.out.values_mut().filter(|request| request.piece == piece.id) {
            if !late.is_late && now.duration_since(late.since) >= patience {
                late.is_late = true;
                standings.of(late.peer).record(ServiceKind::Headers).fail(now);
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        let (piece, range) = (piece.id, peer.range);
        let request =
            HeaderRequest { peer: peer.id, range, piece, start, count, since: now, is_late: false };
        self.out.insert(id, request);
        standings.of(peer.id).record(ServiceKind::Headers).begin();
        Some(HeaderFlight { id, peer: peer.id, start, count })
    }

    /// Applies the result of a request. Returns offences that are known now.
    pub(crate) fn land(
        &mut self,
        id: u64,
        outcome: HeaderOutcome,
        standings: &mut StandingTable,
        now: Instant,
    ) -> Vec<(PeerId, PeerOffence)> {
        let Some(request) = self.out.remove(&id) else { return Vec::new() };
        let peer = request.peer;
        let record = standings.of(peer).record(ServiceKind::Headers);
        record.end();
        let headers = match outcome {
            HeaderOutcome::Linked(headers) if !headers.is_empty() => headers,
            HeaderOutcome::Busy => {
                record.pause(now);
                return Vec::new();
            }
            other => {
                record.fail(now);
                self.give_up(&request);
                let is_wrong = matches!(other, HeaderOutcome::Wrong);
                return Vec::from_iter(is_wrong.then_some((peer, PeerOffence::WrongData)));
            }
        };
        record.serve(headers.len(), now.duration_since(request.since), now);
        let mut offences = Vec::new();
        if record.judge_length(is_short(&request, &headers), now) {
            offences.push((peer, PeerOffence::ShortAnswer));
        }
        let strayed: Vec<_> =
            self.put(&request, headers).into_iter().chain(self.join_all()).collect();
        offences.extend(blame(strayed, standings, now));
        offences
    }

    /// Records that a peer gave nothing for a piece.
    fn give_up(&mut self, request: &HeaderRequest) {
        let piece = self.pieces.iter_mut().find(|piece| piece.id == request.piece);
        // A peer without a header of this number may have one with this hash.
        if let Some(piece) = piece.filter(|piece| {
            matches!(request.start, BlockHashOrNumber::Hash(_)) || piece.hash.is_none()
        }) {
            piece.tried.push(request.peer);
        }
    }

    /// Stores headers in their piece. Returns the peer if they are of another branch.
    fn put(&mut self, request: &HeaderRequest, headers: Vec<Arc<SealedHeader>>) -> Option<PeerId> {
        let at = self.pieces.iter().position(|piece| piece.id == request.piece)?;
        let piece = &mut self.pieces[at];
        if let Some(hash) = piece.hash {
            let is_by_number = matches!(request.start, BlockHashOrNumber::Number(_));
            if is_by_number && headers.first().is_some_and(|first| first.hash != hash) {
                return Some(request.peer);
            }
            self.arrived += piece.append(&headers) as u64;
            return None;
        }
        let count = headers.len() as u64;
        if !piece.got.is_empty() || count < piece.count.min(FAIR_ANSWER) {
            // Too few to keep without proof: another peer is asked.
            piece.tried.push(request.peer);
            return None;
        }
        self.arrived += count;
        let rest = piece.count.saturating_sub(count);
        let next = piece.top.and_then(|top| top.checked_sub(count));
        (piece.count, piece.got, piece.giver) = (count, headers, Some(request.peer));
        if rest > 0 && next.is_some() {
            let below = self.piece(next, None, rest);
            self.pieces.insert(at + 1, below);
        }
        None
    }
}

/// Peers that gave headers of another branch by number are asked by hash alone for a while.
fn blame(
    strayed: Vec<PeerId>,
    standings: &mut StandingTable,
    now: Instant,
) -> Vec<(PeerId, PeerOffence)> {
    let blamed = strayed.into_iter().map(|peer| {
        standings.of(peer).mark_off_branch(now);
        (peer, PeerOffence::Empty)
    });
    blamed.collect()
}

/// Whether an answer has fewer headers than any client's limit, though the peer's range covers the
/// request.
fn is_short(request: &HeaderRequest, headers: &[Arc<SealedHeader>]) -> bool {
    let Some(top) = headers.first().map(|first| first.header.number) else { return false };
    let there = request.count.min(top.saturating_add(1));
    let range = request.range;
    let has = range.earliest <= top.saturating_add(1) - there && top <= range.latest;
    has && (headers.len() as u64) < there.min(FAIR_ANSWER)
}

#[cfg(test)]
mod tests;
