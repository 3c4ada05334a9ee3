//! All ways to get the tree from the same peers, seed after seed.

use super::{
    SyncError, TreeSetting,
    fetch::{self, Fetched, Wanted, Way},
    link::{Greeting, Link},
};
use crate::{random::Random, trees::Tree};
use std::{sync::atomic::AtomicBool, time::Duration};

/// Bytes of an element in a message, beside its value.
const BESIDE: u64 = 12;

/// What is raced.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The tree.
    pub tree: TreeSetting,
    /// How many peers lie; which ones is up to the seed.
    pub byzantine: usize,
    /// Times from a question to the first byte of its answer. The seed deals them out.
    pub delays: Vec<Duration>,
    /// Bytes a second of each peer's line.
    pub speed: u64,
    /// Whether peers have made the baseline's messages beforehand.
    pub snapshots: bool,
    /// How many times all ways are gone.
    pub seeds: u64,
}

/// What came of one way, seed by seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The way.
    pub way: Way,
    /// One a seed.
    pub fetched: Vec<Fetched>,
}

/// Gets the tree from the peers on these ports. All ways are gone one after the other with the same liars and
/// delays, for one seed after the other; `tell` is called after each seed.
///
/// # Errors
/// If a peer cannot be reached, all lie, or what was checked is wrong; [`SyncError::Stopped`].
pub fn race(
    setting: &Setting,
    ports: &[u16],
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&[Outcome]),
) -> Result<Vec<Outcome>, SyncError> {
    let (mut bavl, mut avlplus) = setting.tree.trees();
    let wanted = Wanted { chunk: setting.tree.chunk, bavl: bavl.root(), avlplus: avlplus.root() };
    drop((bavl, avlplus));
    let chunk_bytes = setting.tree.chunk as u64 * (setting.tree.bytes as u64 + BESIDE);
    let mut outcomes = Way::ALL.map(|way| Outcome { way, fetched: Vec::new() });
    for seed in 0..setting.seeds {
        let mut random = Random::new(setting.tree.seed ^ (seed + 1).wrapping_mul(0x9e37_79b9));
        let lies = shuffled((0..ports.len()).map(|n| n < setting.byzantine), &mut random);
        let delays = setting.delays.iter().cycle().take(ports.len()).copied();
        let delays = shuffled(delays, &mut random);
        let liars_seed = random.next();
        let drops = random.next();
        for n in 0..outcomes.len() {
            // None is always the one behind another.
            let at = (n + seed as usize) % outcomes.len();
            let outcome = &mut outcomes[at];
            let open = |(peer, port): (usize, &u16)| {
                let greeting = Greeting {
                    kind: outcome.way.kind(),
                    delay: delays[peer],
                    speed: setting.speed,
                    lies: lies[peer],
                    seed: liars_seed.wrapping_add(peer as u64),
                };
                let link = Link::open(peer, *port, &greeting, chunk_bytes);
                link.map_err(|source| SyncError::Peer { peer, source })
            };
            let links = || ports.iter().enumerate().map(open).collect();
            let random = &mut Random::new(drops);
            let fetched = fetch::fetch(outcome.way, &wanted, links, random, stop)?;
            outcome.fetched.push(fetched);
        }
        tell(&outcomes);
    }
    Ok(outcomes.into())
}

fn shuffled<T>(items: impl Iterator<Item = T>, random: &mut Random) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::peer;
    use std::sync::{atomic::Ordering, mpsc};

    const TREE: TreeSetting = TreeSetting { elements: 2000, bytes: 64, chunk: 16, seed: 5 };

    /// With peers that are threads instead of processes.
    fn with_peers<T>(
        count: usize,
        snapshots: bool,
        ask: impl FnOnce(&[u16], &AtomicBool) -> T,
    ) -> T {
        let (stop, (told, ports)) = (AtomicBool::new(false), mpsc::channel());
        std::thread::scope(|scope| {
            for _ in 0..count {
                let (told, stop) = (told.clone(), &stop);
                scope.spawn(move || {
                    let tell = |port| told.send(port).unwrap();
                    peer::serve(TREE, snapshots, stop, tell).unwrap();
                });
            }
            let ports: Vec<u16> = ports.iter().take(count).collect();
            let came = ask(&ports, &stop);
            stop.store(true, Ordering::Relaxed);
            came
        })
    }

    fn raced(byzantine: usize, seeds: u64) -> [Outcome; 3] {
        let setting = Setting {
            tree: TREE,
            byzantine,
            delays: [1, 2, 5].map(Duration::from_millis).into(),
            speed: 20_000_000,
            snapshots: byzantine > 0,
            seeds,
        };
        let mut told = 0;
        let outcomes = with_peers(4, setting.snapshots, |ports, stop| {
            race(&setting, ports, stop, &mut |_| told += 1).unwrap()
        });
        assert_eq!(told, seeds);
        outcomes.try_into().unwrap()
    }

    #[test]
    fn the_tree_comes_whoever_lies_and_a_liar_costs_the_baseline_rounds_and_bavl_chunks() {
        for outcome in raced(0, 2) {
            let chunks = if outcome.way == Way::Bavl { 126..260 } else { 125..126 };
            assert!(outcome.fetched.iter().all(|fetched| fetched.rounds == 1
                && chunks.contains(&fetched.chunks)
                && fetched.serialize > Duration::ZERO
                && fetched.total >= fetched.transfer));
        }
        let most = |outcome: &Outcome| outcome.fetched.iter().map(|one| one.rounds).max();
        let [avlplus, rational, bavl] = raced(3, 6);
        assert!(most(&avlplus) > Some(2) && most(&rational) > Some(1));
        assert_eq!(most(&bavl), Some(1));
    }

    #[test]
    fn where_all_lie_there_is_no_tree() {
        let (mut bavl, mut avlplus) = TREE.trees();
        let wanted = Wanted { chunk: TREE.chunk, bavl: bavl.root(), avlplus: avlplus.root() };
        with_peers(2, false, |ports, stop| {
            for way in [Way::Bavl, Way::Rational] {
                let greeting = Greeting {
                    kind: way.kind(),
                    delay: Duration::ZERO,
                    speed: 20_000_000,
                    lies: true,
                    seed: 3,
                };
                let links = || {
                    let open =
                        |(peer, port): (usize, &u16)| Link::open(peer, *port, &greeting, 1200);
                    Ok(ports.iter().enumerate().map(open).map(Result::unwrap).collect())
                };
                let fetched = fetch::fetch(way, &wanted, links, &mut Random::new(1), stop);
                let is_clear = matches!(fetched, Err(SyncError::NoPeers { peers: 2 }));
                // A line that was hung up on has nothing to give either.
                assert!(is_clear || matches!(fetched, Err(SyncError::Peer { .. })), "{fetched:?}");
            }
        });
    }

    #[test]
    fn what_is_shuffled_stays() {
        let mut items = shuffled(0..50, &mut Random::new(3));
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
