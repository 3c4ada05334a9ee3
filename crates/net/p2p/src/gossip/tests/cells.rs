//! Blobs that travel apart from their transactions (eth/72).

use super::*;
use alloy_eips::{
    eip4844::Blob,
    eip7594::{BYTES_PER_CELL, BlobTransactionSidecarEip7594, Cell},
};
use retrie_chainspec::CELLS_PER_BLOB;

/// Length of a transaction as eth/72 sends it.
pub(super) fn size_without_blobs(transaction: &PooledTransaction) -> Option<u64> {
    sidecar(transaction)?;
    Some(elided(transaction).encode_2718_len() as u64)
}

fn sidecar(transaction: &PooledTransaction) -> Option<&BlobTransactionSidecarEip7594> {
    let PooledTransaction::Eip4844(signed) = transaction else { return None };
    signed.tx().sidecar.as_eip7594()
}

fn elided(transaction: &PooledTransaction) -> PooledTransaction {
    transaction.clone().map_eip4844(|mut tx| {
        tx.sidecar.clear_eip7594_blobs();
        tx
    })
}

/// A transaction whose blobs have different cells.
fn with_blobs(nonce: u64, blobs: usize) -> PooledTransaction {
    let blob = |at: usize| {
        let mut blob = Blob::ZERO;
        for (index, cell) in blob.chunks_mut(BYTES_PER_CELL).enumerate() {
            cell.fill((64 * at + index) as u8);
        }
        blob
    };
    let sidecar = BlobTransactionSidecarEip7594 {
        blobs: (0..blobs).map(blob).collect(),
        commitments: vec![Default::default(); blobs],
        cell_proofs: vec![Default::default(); 128 * blobs],
    };
    let blob_versioned_hashes = sidecar.versioned_hashes().collect();
    let tx = TxEip4844 { nonce, blob_versioned_hashes, ..TxEip4844::default() };
    let sidecar = BlobTransactionSidecarVariant::Eip7594(sidecar);
    TxEip4844WithSidecar { tx, sidecar }.into_signed(SIGNATURE).into()
}

/// What eth/72 announces.
fn told(all: &[PooledTransaction], cells: CellMask) -> TxGossip {
    let size = |one: &PooledTransaction| {
        size_without_blobs(one).unwrap_or_else(|| one.encode_2718_len() as u64)
    };
    TxGossip::Hashes(NewPooledTransactionHashes {
        types: all.iter().map(Typed2718::ty).collect(),
        sizes: all.iter().map(size).collect(),
        hashes: all.iter().map(|one| *one.tx_hash()).collect(),
        cells,
    })
}

/// A peer with these transactions, which leaves out this many cells of each.
#[derive(Debug)]
struct CellHolder(Vec<PooledTransaction>, usize);

impl EthRequestHandler for CellHolder {
    fn answer(&self, _: &PeerInfo, request: EthRequest) -> EthResponse {
        let find = |hash: &B256| self.0.iter().find(|one| one.tx_hash() == hash);
        match request {
            EthRequest::PooledTransactions(hashes) => {
                let found = hashes.iter().filter_map(find).map(elided);
                EthResponse::PooledTransactions(found.collect())
            }
            EthRequest::Cells { hashes, mask } => {
                assert_eq!(mask, CellMask::BLOB);
                let cells_of = |hash: &B256| {
                    let blobs = &sidecar(find(hash)?)?.blobs;
                    let cell = |at: usize| {
                        let first = at / blobs.len() * BYTES_PER_CELL;
                        Cell::from_slice(&blobs[at % blobs.len()][first..first + BYTES_PER_CELL])
                    };
                    let count = CELLS_PER_BLOB * blobs.len() - self.1;
                    Some((*hash, (0..count).map(cell).collect()))
                };
                EthResponse::Cells { cells: hashes.iter().filter_map(cells_of).collect(), mask }
            }
            other => other.empty_response(),
        }
    }
}

fn connect(world: &GossipHarness, name: u8, serve: impl EthRequestHandler + 'static) -> PeerId {
    let (version, manner) = (EthVersion::Eth72, PeerBehaviour::Honest);
    world.peers.connect_speaking(version, name, manner, Arc::new(serve), BlockRange::default())
}

#[tokio::test]
async fn blobs_are_joined_from_the_cells_of_a_provider() {
    let world = GossipHarness::start();
    let all = [with_blobs(1, 1), with_blobs(2, 3), transaction(3)];
    let sampler = connect(&world, 1, CellHolder(all.to_vec(), 0));
    let provider = connect(&world, 2, CellHolder(all.to_vec(), 0));
    // One cell is missing from what makes up a blob.
    let mut some = [0xff_u8; 16];
    some[7] = 0x7f;
    world.hear(sampler, told(&all[..2], some.into()));
    world.hear(provider, told(&all, CellMask::ALL));
    until(|| world.pool.len() == 3).await;
    assert!(all.iter().all(|one| world.pool.pooled(one.tx_hash()).as_ref() == Some(one)));
    assert!(world.peers.requests(sampler).is_empty());
    assert!(world.peers.reports().is_empty());
}

#[tokio::test]
async fn a_peer_without_all_cells_costs_time_and_no_transaction() {
    let world = GossipHarness::start();
    let one = with_blobs(1, 2);
    let lacking = connect(&world, 1, CellHolder(vec![one.clone()], 1));
    let whole = connect(&world, 2, CellHolder(vec![one.clone()], 0));
    world.hear(lacking, told(std::slice::from_ref(&one), CellMask::ALL));
    until(|| world.peers.requests(lacking).len() == 2).await;
    world.hear(whole, told(std::slice::from_ref(&one), CellMask::ALL));
    until(|| world.pool.len() == 1).await;
    assert_eq!(world.pool.pooled(one.tx_hash()), Some(one));
    assert_eq!(world.pool.added(), 1);
}

/// No more than 16 blobs are in memory for one peer: it is asked again for the others.
#[tokio::test]
async fn blobs_of_a_peer_are_fetched_a_few_at_a_time() {
    // The peer is not late, however slow a debug build copies blobs.
    let patience = Duration::from_secs(20);
    let world =
        GossipHarness::with_options(MockPool::new(), GossipOptions { patience, ..options() });
    let all: Vec<_> = (0..20).map(|nonce| with_blobs(nonce, 1)).collect();
    let peer = connect(&world, 1, CellHolder(all.clone(), 0));
    world.hear(peer, told(&all, CellMask::ALL));
    until(|| world.pool.len() == 20).await;
    for request in world.peers.requests(peer) {
        if let EthRequest::Cells { hashes, .. } = request {
            assert!(hashes.len() <= 16, "{}", hashes.len());
        }
    }
    // A sidecar without the proofs of its blobs is judged as it is: nothing is fetched for it.
    let bare = with_blobs(99, 6).map_eip4844(|mut tx| {
        if let BlobTransactionSidecarVariant::Eip7594(sidecar) = &mut tx.sidecar {
            sidecar.cell_proofs.clear();
        }
        tx
    });
    let liar = connect(&world, 2, CellHolder(vec![bare.clone()], 0));
    world.hear(liar, told(std::slice::from_ref(&bare), CellMask::ALL));
    until(|| world.pool.len() == 21).await;
    let asked = [EthRequest::PooledTransactions(vec![*bare.tx_hash()])];
    assert_eq!(world.peers.requests(liar), asked);
    assert!(world.peers.reports().is_empty());
}

/// As geth's tests demand: a peer is to blame before it is asked for cells.
#[tokio::test]
async fn a_wrong_announcement_is_found_before_cells_are_fetched() {
    let world = GossipHarness::start();
    let all = [with_blobs(1, 2), with_blobs(2, 2)];
    // It has no cells: if it were asked for some, it would lack transactions, and not be to blame.
    let liar = connect(&world, 1, TxHolder(all.iter().map(elided).collect()));
    let TxGossip::Hashes(mut wrong) = told(&all, CellMask::ALL) else { unreachable!() };
    wrong.sizes[1] += 10;
    world.hear(liar, TxGossip::Hashes(wrong));
    until(|| !world.peers.reports().is_empty()).await;
    assert_eq!(world.peers.reports(), [(liar, PeerOffence::BadAnnouncement)]);
    assert_eq!(world.pool.added(), 0);
}

#[tokio::test]
async fn announcements_name_all_cells_and_sizes_without_blobs() {
    let world = GossipHarness::start();
    let (one, old) = (with_blobs(1, 2), blob_transaction(2));
    let next = connect(&world, 1, CellHolder(Vec::new(), 0));
    let before = world.connect(2, PeerBehaviour::Honest, TxHolder(Vec::new()));
    world.pool.put(one.clone());
    let mut heard = Vec::new();
    for (peer, elides) in [(next, true), (before, false)] {
        until(|| {
            heard = world.peers.take_gossip(peer);
            !heard.is_empty()
        })
        .await;
        let size = if elides { size_without_blobs(&one).unwrap() } else { announced(&one).size };
        let cells = if elides { CellMask::ALL } else { CellMask::default() };
        let expected = NewPooledTransactionHashes {
            types: vec![3],
            sizes: vec![size],
            hashes: vec![*one.tx_hash()],
            cells,
        };
        assert_eq!(heard, [TxGossip::Hashes(expected)]);
    }
    // A sidecar with one proof a blob does not come apart.
    world.pool.put(old.clone());
    until(|| {
        heard = world.peers.take_gossip(next);
        !heard.is_empty()
    })
    .await;
    let [TxGossip::Hashes(known)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((known.sizes[0], known.cells), (announced(&old).size, CellMask::ALL));
}
