//! [`Origin`]: the block whose state is fetched, and its headers.

use crate::peer::{Peer, PeerError};
use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Decodable;
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread,
};

/// Headers that BLOCKHASH in the next block can ask for.
const HEADERS: u64 = 256;

/// A block, and as many of its ancestors as the blocks after it ask for.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Hash of the block.
    pub hash: B256,
    /// Its ancestors' headers and, last, its own. Each has the hash that the next one names.
    pub headers: Vec<Header>,
}

/// Why nothing is known of the block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OriginError {
    /// No peer knows a block with the trusted root.
    #[error("no peer knows a recent block with the root {root}: {}", reasons.join("; "))]
    NoBlock {
        /// The root.
        root: B256,
        /// Of each peer, what it said.
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
        /// What they name.
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
        /// Of each peer, what it gave.
        reasons: Vec<String>,
    },
}

impl Origin {
    /// The block with this hash.
    ///
    /// # Errors
    /// [`OriginError::NoHeaders`] if no peer gives its headers.
    pub fn of_block(peers: &[Arc<dyn Peer>], hash: B256) -> Result<Self, OriginError> {
        let mut reasons = Vec::new();
        // The first one that is right will do.
        for (name, answer) in ask_all(peers, move |peer| peer.headers(hash, HEADERS)) {
            match answer.and_then(|headers| checked(hash, &headers)) {
                Ok(headers) => return Ok(Self { hash, headers }),
                Err(reason) => reasons.push(format!("{name}: {reason}")),
            }
        }
        if peers.is_empty() {
            reasons.push(
                "no peer that hands out states was there: nodes hand them out to peers that they trust \
                 (--trusted-peers there), or to all (--rchk.serve all there)"
                    .to_owned(),
            );
        }
        Err(OriginError::NoHeaders { block: hash, reasons })
    }

    /// The block whose state has this root, as most of the peers that know one say. Of its header the
    /// root shows nothing: a wrong one has no child that the chain follows.
    ///
    /// # Errors
    /// [`OriginError`].
    pub fn of_root(peers: &[Arc<dyn Peer>], root: B256) -> Result<Self, OriginError> {
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
            (None, _) => Err(OriginError::NoBlock { root, reasons }),
            _ => Err(OriginError::Disagree { root, blocks: votes.into_keys().collect() }),
        }
    }

    /// The block's header.
    pub fn header(&self) -> Option<&Header> {
        self.headers.last()
    }
}

/// What all peers answer, each with its name, as they do: nobody waits for one who is silent before another
/// one is asked.
fn ask_all<T: Send + 'static>(
    peers: &[Arc<dyn Peer>],
    ask: impl Fn(&dyn Peer) -> Result<T, PeerError> + Send + Sync + Clone + 'static,
) -> impl Iterator<Item = (String, Result<T, String>)> {
    let (answered, answers) = mpsc::channel();
    for peer in peers {
        let (peer, ask, answered) = (peer.clone(), ask.clone(), answered.clone());
        thread::spawn(move || {
            let answer = ask(&*peer).map_err(|error| error.to_string());
            // Nobody may wait for it any more.
            drop(answered.send((peer.name().to_owned(), answer)));
        });
    }
    answers.into_iter()
}

/// The headers, if they are the block's and those of enough ancestors.
fn checked(block: B256, headers: &[Bytes]) -> Result<Vec<Header>, String> {
    let mut wanted = block;
    let mut checked = Vec::with_capacity(headers.len());
    for rlp in headers.iter().rev().take(HEADERS as usize) {
        if keccak256(rlp) != wanted {
            return Err(format!("a header does not have the hash {wanted}"));
        }
        let header = Header::decode(&mut &rlp[..]);
        let header =
            header.map_err(|error| format!("header {wanted} is no RLP of one: {error}"))?;
        wanted = header.parent_hash;
        checked.push(header);
    }
    checked.reverse();
    let needed = checked.last().map_or(1, |header| HEADERS.min(header.number.saturating_add(1)));
    if (checked.len() as u64) < needed {
        return Err(format!("{} headers, of {needed}", checked.len()));
    }
    Ok(checked)
}
