//! The fetcher without a network.

use super::*;
use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_primitives::{Bytes, Signature, U256};

const MS: Duration = Duration::from_millis(1);

fn peer(name: u8) -> PeerId {
    PeerId::repeat_byte(name)
}

fn transaction(nonce: u64, bytes: usize) -> PooledTransaction {
    let signature = Signature::new(U256::ONE, U256::ONE, false);
    let tx = TxLegacy { nonce, input: Bytes::from(vec![0; bytes]), ..TxLegacy::default() };
    tx.into_signed(signature).into()
}

fn announced(transaction: &PooledTransaction) -> TxAnnouncement {
    let size = transaction.encode_2718_len() as u64;
    TxAnnouncement { hash: *transaction.tx_hash(), ty: transaction.ty(), size }
}

fn made(number: u64) -> TxAnnouncement {
    TxAnnouncement { hash: B256::from(U256::from(number)), ty: 2, size: 200 }
}

/// The requests that are due: peer and hashes.
fn asks(book: &mut TxFetcher, now: Instant) -> Vec<(PeerId, Vec<B256>)> {
    let requests = book.requests(Duration::ZERO, now).into_iter();
    requests.map(|request| (request.peer, request.hashes)).collect()
}

/// Regression: each hash beyond 4,096 iterated over all of them; 200,000 took minutes.
#[test]
fn announcements_beyond_the_budget_cost_nothing() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    let noted = (0..200_000).filter(|number| book.announce(peer(1), made(*number), now)).count();
    assert_eq!((noted, book.len(), book.has_room(&peer(1))), (MOST_PENDING, MOST_PENDING, false));
    assert!(now.elapsed() < Duration::from_secs(10), "{:?}", now.elapsed());
    assert!(book.announce(peer(2), made(1 << 40), now), "of others");
}

/// Regression: each request iterated over all announcements of its peer.
#[test]
fn a_request_goes_through_no_more_than_it_asks_for() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    for number in 0..MOST_PENDING as u64 {
        book.announce(peer(1), made(number), now);
    }
    let queued = |book: &TxFetcher| book.peers[&peer(1)].queue.len();
    assert_eq!(asks(&mut book, now)[0].1.len(), MOST_ASKED);
    assert_eq!(queued(&book), MOST_PENDING - MOST_ASKED);
    // Nothing is due yet for a peer that has announced later.
    for number in 0..MOST_PENDING as u64 {
        book.announce(peer(2), made(10_000 + number), now + MS);
    }
    assert!(book.requests(MS * 10, now + MS).is_empty());
    assert_eq!(book.peers[&peer(2)].queue.len(), MOST_PENDING);
}

#[test]
fn what_is_done_makes_room_for_all_who_have_announced_it() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    for round in 0..20 {
        for number in 0..MOST_PENDING as u64 {
            let one = made((round << 32) + number);
            assert!(book.announce(peer(1), one, now) && book.announce(peer(2), one, now));
            book.forget(&one.hash);
        }
        assert_eq!(book.len(), 0);
        for part in book.peers.values() {
            assert!(part.claims.is_empty() && part.queue.len() <= 2 * MOST_PENDING);
        }
    }
}

#[test]
fn a_peer_is_asked_for_no_more_while_what_it_has_sent_waits_for_the_pool() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    let all: Vec<_> = (0..3).map(|nonce| transaction(nonce, ENOUGH as usize)).collect();
    for one in &all {
        book.announce(peer(1), announced(one), now);
    }
    for one in &all {
        let requests = book.requests(Duration::ZERO, now);
        assert_eq!(requests[0].hashes, [*one.tx_hash()]);
        let size = one.encode_2718_len();
        assert!(requests[0].bytes >= size && requests[0].bytes <= 3 * size);
        let answer = FetchOutcome::Transactions(vec![one.clone()]);
        assert_eq!(book.answer(peer(1), answer, now).transactions.len(), 1);
        assert_eq!(asks(&mut book, now), []);
        book.release(&peer(1), one.tx_hash());
        book.forget(one.tx_hash());
    }
    assert_eq!((book.len(), book.peers[&peer(1)].fetched_bytes), (0, 0));
}

#[test]
fn another_is_asked_for_what_waits_too_long_for_the_pool_or_was_spoilt() {
    let one = transaction(1, 10);
    let hash = *one.tx_hash();
    for is_spoilt in [false, true] {
        let mut book = TxFetcher::default();
        let now = Instant::now();
        book.announce(peer(1), announced(&one), now);
        assert_eq!(asks(&mut book, now), [(peer(1), vec![hash])]);
        book.announce(peer(2), announced(&one), now);
        book.answer(peer(1), FetchOutcome::Transactions(vec![one.clone()]), now);
        assert!(book.give_up(MS * 5, now + MS * 4).is_empty());
        assert_eq!(asks(&mut book, now + MS * 4), []);
        if is_spoilt {
            book.release(&peer(1), &hash);
            book.reject(peer(1), &hash);
        } else {
            assert!(book.give_up(MS * 5, now + MS * 5).is_empty(), "it has answered");
        }
        assert_eq!(asks(&mut book, now + MS * 5), [(peer(2), vec![hash])]);
        // When the second peer leaves, no peer has it.
        book.disconnected(peer(2));
        assert_eq!(book.len(), 0);
    }
}

/// Regression: the pool refuses a transaction that comes before its predecessor; it was not
/// requested again.
#[test]
fn what_comes_too_early_is_asked_for_later() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    let one = transaction(2, 10);
    let hash = *one.tx_hash();
    book.announce(peer(1), announced(&one), now);
    asks(&mut book, now);
    book.announce(peer(2), announced(&one), now);
    book.answer(peer(1), FetchOutcome::Transactions(vec![one.clone()]), now);
    book.release(&peer(1), &hash);
    book.postpone(peer(1), &hash, now);
    assert_eq!(asks(&mut book, now + PAUSE - MS), []);
    assert_eq!(asks(&mut book, now + PAUSE), [(peer(2), vec![hash])]);
    // An unrequested transaction cannot pause the hash.
    book.postpone(peer(3), &hash, now + PAUSE);
    let later = now + PAUSE + MS;
    book.answer(peer(2), FetchOutcome::Transactions(vec![one]), later);
    book.postpone(peer(2), &hash, later);
    assert_eq!(book.len(), 0, "none is left");
}

#[test]
fn who_lets_us_wait_for_one_hash_again_and_again_is_asked_no_more() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    let victim = made(7);
    let all: Vec<_> = (0..10).map(|nonce| transaction(nonce, 10)).collect();
    let mut asked = 0;
    for one in &all {
        book.announce(peer(1), announced(one), now);
        if asked == 0 {
            book.announce(peer(1), victim, now);
        }
        for (_, hashes) in asks(&mut book, now) {
            asked += usize::from(hashes.contains(&victim.hash));
        }
        // Before the victim's announcement, or that one would be first.
        let part = book.peers.get_mut(&peer(1)).unwrap();
        if let Some(request) = &mut part.under_way {
            request.asked.sort_by_key(|one| one.hash == victim.hash);
        }
        book.answer(peer(1), FetchOutcome::Transactions(vec![one.clone()]), now);
        book.release(&peer(1), one.tx_hash());
        book.forget(one.tx_hash());
    }
    assert_eq!(asked, 1 + LEFT_OUT as usize);
    assert_eq!(book.len(), 0);
}

/// Regression: each silent announcer delayed a transaction by 5 s.
#[test]
fn the_next_one_that_is_silent_is_waited_for_half_as_long() {
    let mut book = TxFetcher::default();
    let start = Instant::now();
    let patience = Duration::from_secs(5);
    for name in 1..=9 {
        book.announce(peer(name), made(1), start);
    }
    let mut now = start;
    for _ in 0..9 {
        assert_eq!(asks(&mut book, now).len(), 1);
        while book.give_up(patience, now).is_empty() {
            now += MS * 5;
        }
    }
    let waited = now - start;
    assert!(waited < Duration::from_secs(13), "{waited:?}");
    assert_eq!(book.len(), 0);
}

#[test]
fn who_leaves_while_the_pool_judges_is_replaced() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    let one = transaction(1, 10);
    book.announce(peer(1), announced(&one), now);
    asks(&mut book, now);
    // A late delivery: the peer does not claim the hash any more.
    book.give_up(MS, now + MS);
    book.announce(peer(2), announced(&one), now);
    book.answer(peer(1), FetchOutcome::Transactions(vec![one.clone()]), now);
    assert_eq!(asks(&mut book, now), []);
    book.disconnected(peer(1));
    assert_eq!(asks(&mut book, now), [(peer(2), vec![*one.tx_hash()])]);
}

#[test]
fn hashes_are_asked_for_again_in_the_order_in_which_they_were_announced() {
    let mut book = TxFetcher::default();
    let now = Instant::now();
    let all: Vec<B256> = (0..10).map(|number| made(number).hash).collect();
    for number in 0..10 {
        book.announce(peer(1), made(number), now);
    }
    assert_eq!(asks(&mut book, now), [(peer(1), all.clone())]);
    book.answer(peer(1), FetchOutcome::Busy, now);
    assert_eq!(asks(&mut book, now + REST - MS), []);
    assert_eq!(asks(&mut book, now + REST), [(peer(1), all)]);
}
