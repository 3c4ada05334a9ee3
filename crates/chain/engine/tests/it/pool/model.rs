//! The pool, step by step, against a model that recomputes everything.

use super::fixtures::*;
use alloy_primitives::{Address, B256, U256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_engine::pool::{
    HeadState, HeadStateProvider, PoolConfig, PoolTransaction, SubPoolLimit, TransactionOrigin,
    TransactionPool,
};
use retrie_state::StateError;
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// The expected content of the pool, kept in a simple way: arrival, transaction and hash by sender
/// and nonce.
#[derive(Default)]
struct PoolModel {
    txs: BTreeMap<(Address, u64), (usize, TestTransfer, B256)>,
    arrivals: usize,
}

impl PoolModel {
    fn add(&mut self, world: &HeadFixture, tx: TestTransfer, hash: B256) -> bool {
        let sender = address(tx.from);
        let account = world.accounts[&sender];
        let pooled = self.txs.range((sender, 0)..=(sender, u64::MAX)).count();
        let allowed = tx.nonce >= account.nonce
            && tx.cost() <= account.balance
            && match self.txs.get(&(sender, tx.nonce)) {
                Some((_, old, _)) => {
                    10 * tx.fee >= 11 * old.fee && 10 * tx.tip >= 11 * old.tip && tx.fee > old.fee
                }
                None => pooled < 16,
            };
        if allowed {
            self.txs.insert((sender, tx.nonce), (self.arrivals, tx, hash));
            self.arrivals += 1;
        }
        allowed
    }

    /// Hashes of the executable ones in the order of a block, and of all others.
    fn split(&self, world: &HeadFixture) -> (Vec<B256>, BTreeSet<B256>) {
        let base_fee = u128::from(world.next.base_fee.unwrap());
        let mut rest: BTreeSet<B256> = self.txs.values().map(|(_, _, hash)| *hash).collect();
        let mut chains = vec![];
        for (sender, account) in &world.accounts {
            let mut chain = vec![];
            let mut spent = U256::ZERO;
            for nonce in account.nonce.. {
                let Some((arrival, tx, hash)) = self.txs.get(&(*sender, nonce)) else { break };
                spent += tx.cost();
                if tx.fee < base_fee || spent > account.balance {
                    break;
                }
                rest.remove(hash);
                chain.push((tx.tip.min(tx.fee - base_fee), usize::MAX - *arrival, *hash));
            }
            chain.reverse();
            chains.push(chain);
        }
        let mut order = vec![];
        while let Some((_, _, hash)) =
            chains.iter_mut().max_by_key(|chain| chain.last().copied()).and_then(Vec::pop)
        {
            order.push(hash);
        }
        (order, rest)
    }
}

/// A block: the state after it, and its transactions.
struct ModelBlock {
    world: HeadFixture,
    txs: Vec<TestTransfer>,
}

/// A random child of `parent` with some of the transactions that are offered.
fn random_block(rng: &mut StdRng, parent: &HeadFixture, offered: &[TestTransfer]) -> ModelBlock {
    let mut world = parent.clone();
    let mut txs = vec![];
    for tx in offered.iter().take(rng.random_range(0..12)) {
        let account = world.account_mut(tx.from);
        if account.nonce == tx.nonce && account.balance >= tx.cost() {
            account.nonce += 1;
            account.balance -= tx.cost();
            txs.push(*tx);
        }
    }
    for account in world.accounts.values_mut() {
        if account.balance < U256::from(ETHER) && rng.random_bool(0.5) {
            account.balance += U256::from(5 * ETHER);
        }
    }
    world.next.base_fee = [8, 10, 12, 20].choose(rng).map(|fee| fee * GWEI as u64);
    world.next.number += 1;
    ModelBlock { world, txs }
}

fn random_transfer(rng: &mut StdRng, world: &HeadFixture) -> TestTransfer {
    let from = rng.random_range(0..6);
    let nonce = world.accounts[&address(from)].nonce + rng.random_range(0..20);
    let fee = GWEI * rng.random_range(5..40);
    let tip = if rng.random_bool(0.3) { fee / 2 } else { GWEI * rng.random_range(0..5) };
    let value = ETHER / 10 * rng.random_range(0..20);
    transfer(from, nonce.saturating_sub(2)).fee(fee, tip).value(value)
}

/// Gives an old state first, as a slow thread would see it, and the present one at the next call.
struct StaleHeads<'a> {
    first: Cell<Option<&'a HeadFixture>>,
    now: &'a HeadFixture,
}

impl HeadStateProvider for StaleHeads<'_> {
    fn latest(&self) -> Result<Box<dyn HeadState + '_>, StateError> {
        Ok(Box::new(self.first.take().unwrap_or(self.now)))
    }
}

/// Random transactions, blocks and reorgs; `each` gets pool and model after every step. The model
/// has no limits.
fn storm(
    seed: u64,
    config: PoolConfig,
    mut each: impl FnMut(&TransactionPool, &HeadFixture, &PoolModel),
) {
    let mut rng = StdRng::seed_from_u64(seed);
    let world = HeadFixture::new("prague");
    let pool = world.pool(config);
    let mut model = PoolModel::default();
    let mut seen = vec![world.clone()];
    let mut chain = vec![ModelBlock { world, txs: vec![] }];
    let mut known: HashMap<B256, TestTransfer> = HashMap::new();
    for _ in 0..400 {
        if rng.random_bool(0.85) {
            let world = &chain.last().unwrap().world;
            let tx = random_transfer(&mut rng, world);
            let signed = tx.signed();
            let hash = *signed.tx_hash();
            let is_known = known.insert(hash, tx).is_some() && pool.get(&hash).is_some();
            let allowed = !is_known && model.add(world, tx, hash);
            // The first state may be of any earlier head, also of a reverted branch.
            let stale = &seen[rng.random_range(0..seen.len())];
            let heads = StaleHeads { first: Cell::new(Some(stale)), now: world };
            let result = pool.add(signed, TransactionOrigin::External, &heads);
            if pool.stats().counters.evicted == 0 {
                assert_eq!(result.is_ok(), allowed, "{tx:?}: {result:?}");
            }
        } else {
            // Reverts some blocks, and commits at least one more than that.
            let depth = if rng.random_bool(0.4) { rng.random_range(1..4) } else { 0 };
            let keep = chain.len().saturating_sub(depth).max(1);
            let gone: Vec<ModelBlock> = chain.drain(keep..).collect();
            let blocks = gone.len() + 1;
            let gone: Vec<TestTransfer> = gone.into_iter().flat_map(|block| block.txs).collect();
            let mut hashes = vec![];
            for _ in 0..blocks {
                let mut offered: Vec<_> = pool.best(0, None).map(|tx| known[tx.hash()]).collect();
                offered.extend(gone.iter().filter(|_| rng.random_bool(0.5)));
                let block = random_block(&mut rng, &chain.last().unwrap().world, &offered);
                hashes.extend(block.txs.iter().map(|tx| *tx.signed().tx_hash()));
                chain.push(block);
            }
            let world = &mut chain.last_mut().unwrap().world;
            world.sequence = seen.last().unwrap().sequence + 1;
            seen.push(world.clone());
            let world = &*world;
            model.txs.retain(|(sender, nonce), (_, _, hash)| {
                !hashes.contains(hash) && *nonce >= world.accounts[sender].nonce
            });
            let mut back = gone.clone();
            back.sort_by_key(|tx| tx.nonce);
            for tx in back {
                let hash = *tx.signed().tx_hash();
                if !model.txs.values().any(|(_, _, known)| *known == hash) {
                    model.add(world, tx, hash);
                }
            }
            world.go(&pool, &hashes, gone.iter().map(|tx| mined(&tx.signed())).collect());
        }
        pool.check_invariants().unwrap();
        each(&pool, &chain.last().unwrap().world, &model);
    }
}

#[test]
fn random_transactions_heads_and_reorgs_agree_with_a_model() {
    let mut reinserted = 0;
    for seed in 0..4 {
        storm(seed, PoolConfig::default(), |pool, world, model| {
            let (order, rest) = model.split(world);
            let best = pool.best(world.next.base_fee.unwrap(), None);
            assert_eq!(best.map(|tx| *tx.hash()).collect::<Vec<_>>(), order);
            let content = pool.content();
            let hashes = |txs: &BTreeMap<_, BTreeMap<_, Arc<PoolTransaction>>>| {
                txs.values().flat_map(BTreeMap::values).map(|tx| *tx.hash()).collect()
            };
            let (pending, queued): (BTreeSet<B256>, BTreeSet<B256>) =
                (hashes(&content.pending), hashes(&content.queued));
            assert_eq!(pending, order.into_iter().collect());
            assert_eq!(queued, rest);
            for (sender, account) in &world.accounts {
                let is_here = |nonce: &u64| model.txs.contains_key(&(*sender, *nonce));
                let next = (account.nonce..).find(|nonce| !is_here(nonce));
                assert_eq!(pool.nonce(sender).or(Some(account.nonce)), next);
            }
            reinserted = reinserted.max(pool.stats().counters.reinserted);
        });
    }
    assert!(reinserted > 10, "reorgs gave {reinserted} transactions back");
}

#[test]
fn a_small_pool_stays_within_its_limits() {
    let limit = |max_txs| SubPoolLimit { max_txs, ..Default::default() };
    let config = PoolConfig {
        pending: limit(8),
        basefee: limit(3),
        queued: limit(5),
        local_senders: [address(0)].into_iter().collect(),
        ..Default::default()
    };
    let mut evicted = 0;
    for seed in 10..13 {
        storm(seed, config.clone(), |pool, _, _| {
            evicted = evicted.max(pool.stats().counters.evicted);
        });
    }
    assert!(evicted > 50, "{evicted} evictions");
}

#[test]
fn many_threads_may_use_it() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let signed = |from| (0..16).rev().map(move |nonce| transfer(from, nonce).signed());
    let txs: Vec<Vec<_>> = (0..4).map(|from| signed(from).collect()).collect();
    std::thread::scope(|scope| {
        for txs in &txs {
            let (pool, world) = (&pool, &world);
            scope.spawn(move || {
                for tx in txs {
                    pool.add(tx.clone(), TransactionOrigin::External, world).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for fee in [9, 11, 10].repeat(10) {
                let mut world = world.clone();
                world.next.base_fee = Some(fee * GWEI as u64);
                world.go(&pool, &[], vec![]);
                pool.best(fee * GWEI as u64, None).for_each(drop);
            }
        });
    });
    assert_eq!(status(&pool), (64, 0));
}
