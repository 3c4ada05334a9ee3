//! [`SyncTarget`]: the block whose state a state sync downloads, and its headers.

use crate::peer::{StatePeer, StatePeerError};
use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Decodable;
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread,
};

/// Number of headers that BLOCKHASH in the next block can ask for.
const HEADERS: u64 = 256;

/// The target block of a state sync, and the ancestors that later blocks need for BLOCKHASH.
#[derive(Clone, Debug)]
pub struct SyncTarget {
    /// Hash of the block.
    pub hash: B256,
    /// Headers of its ancestors and, last, its own. Each header's hash is the parent hash of the
    /// next one.
    pub headers: Vec<Header>,
}

/// Why the target block was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncTargetError {
    /// No peer knows a block with the trusted root.
    #[error("no peer knows a recent block with the root {root}: {}", reasons.join("; "))]
    NoBlock {
        /// The root.
        root: B256,
        /// What each peer said.
        reasons: Vec<String>,
    },
    /// Peers name different blocks with the trusted root.
    #[error(
        "peers disagree which block has the root {root}: {}",
        blocks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Disagree {
        /// The root.
        root: B256,
        /// The blocks that they name.
        blocks: Vec<B256>,
    },
    /// No peer has the headers.
    #[error(
        "no peer gives the header of block {block} and the {HEADERS} that BLOCKHASH needs: {}",
        reasons.join("; ")
    )]
    NoHeaders {
        /// Hash of the block.
        block: B256,
        /// What each peer gave.
        reasons: Vec<String>,
    },
}

impl SyncTarget {
    /// Finds the block with this hash.
    ///
    /// # Errors
    /// [`SyncTargetError::NoHeaders`] if no peer gives its headers.
    pub fn of_block(peers: &[Arc<dyn StatePeer>], hash: B256) -> Result<Self, SyncTargetError> {
        let mut reasons = match fetch_headers(peers, hash, HEADERS) {
            Ok(headers) => return Ok(Self { hash, headers }),
            Err(reasons) => reasons,
        };
        if peers.is_empty() {
            reasons.push(
                "no peer that hands out states was connected: nodes serve peers that they trust \
                 (--trusted-peers there), or all peers (--rchk.serve all there)"
                    .to_owned(),
            );
        }
        Err(SyncTargetError::NoHeaders { block: hash, reasons })
    }

    /// Finds the block whose state has this root, by the majority of the peers that name one. The
    /// root proves nothing about the header: if the header is wrong, it has no child on the chain.
    ///
    /// # Errors
    /// [`SyncTargetError`].
    pub fn of_root(peers: &[Arc<dyn StatePeer>], root: B256) -> Result<Self, SyncTargetError> {
        let (mut votes, mut reasons) = (BTreeMap::<B256, usize>::new(), Vec::new());
        for (name, answer) in ask_all(peers, move |peer| peer.find_root(root)) {
            match answer {
                Ok(Some(block)) => *votes.entry(block).or_default() += 1,
                Ok(None) => reasons.push(format!("{name}: none")),
                Err(reason) => reasons.push(format!("{name}: {reason}")),
            }
        }
        let most = votes.values().copied().max().unwrap_or_default();
        let mut best = votes.iter().filter(|(_, count)| **count == most);
        match (best.next(), best.next()) {
            (Some((block, _)), None) => Self::of_block(peers, *block),
            (None, _) => Err(SyncTargetError::NoBlock { root, reasons }),
            _ => Err(SyncTargetError::Disagree { root, blocks: votes.into_keys().collect() }),
        }
    }

    /// The block's header.
    pub fn header(&self) -> Option<&Header> {
        self.headers.last()
    }
}

/// The headers of `hash` and of the blocks below it, `count` of them or down to genesis, each the
/// parent of the next one. All peers are asked at once, and the first right answer is enough.
///
/// # Errors
/// What is wrong with the answer of each peer.
pub fn fetch_headers(
    peers: &[Arc<dyn StatePeer>],
    hash: B256,
    count: u64,
) -> Result<Vec<Header>, Vec<String>> {
    let mut reasons = Vec::new();
    for (name, answer) in ask_all(peers, move |peer| peer.headers(hash, count)) {
        match answer.and_then(|headers| checked(hash, &headers, count)) {
            Ok(headers) => return Ok(headers),
            Err(reason) => reasons.push(format!("{name}: {reason}")),
        }
    }
    Err(reasons)
}

/// Asks all peers at once, and yields each answer with the name of its peer as it comes. A slow
/// peer does not delay the others.
fn ask_all<T: Send + 'static>(
    peers: &[Arc<dyn StatePeer>],
    ask: impl Fn(&dyn StatePeer) -> Result<T, StatePeerError> + Send + Sync + Clone + 'static,
) -> impl Iterator<Item = (String, Result<T, String>)> {
    let (answered, answers) = mpsc::channel();
    for peer in peers {
        let (peer, ask, answered) = (peer.clone(), ask.clone(), answered.clone());
        thread::spawn(move || {
            let answer = ask(&*peer).map_err(|error| error.to_string());
            // If the receiver is dropped, the answer is not needed any more.
            drop(answered.send((peer.name().to_owned(), answer)));
        });
    }
    answers.into_iter()
}

/// Decodes the headers, if they are those of the block and of enough ancestors.
fn checked(block: B256, headers: &[Bytes], count: u64) -> Result<Vec<Header>, String> {
    let mut wanted = block;
    let mut checked = Vec::with_capacity(headers.len());
    for rlp in headers.iter().rev().take(count as usize) {
        if keccak256(rlp) != wanted {
            return Err(format!("a header does not have the hash {wanted}"));
        }
        let header = Header::decode(&mut &rlp[..]);
        let header =
            header.map_err(|error| format!("header {wanted} is not valid RLP: {error}"))?;
        wanted = header.parent_hash;
        checked.push(header);
    }
    checked.reverse();
    let needed = checked.last().map_or(1, |header| count.min(header.number.saturating_add(1)));
    if (checked.len() as u64) < needed {
        return Err(format!("{} headers, of {needed}", checked.len()));
    }
    Ok(checked)
}
