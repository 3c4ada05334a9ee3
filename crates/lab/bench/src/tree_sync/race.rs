//! Races methods to fetch the tree from the same peers, seed after seed.

use super::{
    ServedTreeConfig, TreeSyncError,
    fetch::{self, ExpectedRoots, FetchMethod, FetchStats},
    link::{PeerGreeting, PeerLink},
};
use crate::{random::SplitMix64, trees::AuthenticatedTree};
use std::{sync::atomic::AtomicBool, time::Duration};

/// Bytes of an element in a message, in addition to its value.
const BESIDE: u64 = 12;

/// The parameters of the race.
#[derive(Clone, Debug)]
pub struct FetchRaceConfig {
    /// The tree.
    pub tree: ServedTreeConfig,
    /// Methods, each at most once.
    pub methods: Vec<FetchMethod>,
    /// Number of lying peers. The seed selects them.
    pub byzantine: usize,
    /// Delays from a request to the first byte of its answer. The seed assigns them to peers.
    pub delays: Vec<Duration>,
    /// Bandwidth of each peer in bytes per second.
    pub speed: u64,
    /// Whether peers make the baseline's messages in advance.
    pub snapshots: bool,
    /// Number of seeds; each method runs once per seed.
    pub seeds: u64,
}

/// The results of one method, seed by seed.
#[derive(Clone, Debug)]
pub struct FetchOutcome {
    /// The method.
    pub way: FetchMethod,
    /// One entry per seed.
    pub fetched: Vec<FetchStats>,
}

/// Fetches the tree from the peers on these ports. For each seed all methods run one after the
/// other, with the same liars and delays. `tell` is called after each seed.
///
/// # Errors
/// If a peer cannot be reached, all peers lie, or a checked tree is wrong;
/// [`TreeSyncError::Stopped`].
pub fn race(
    setting: &FetchRaceConfig,
    ports: &[u16],
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&[FetchOutcome]),
) -> Result<Vec<FetchOutcome>, TreeSyncError> {
    let (mut bavl, mut avlplus) = setting.tree.trees();
    let wanted =
        ExpectedRoots { chunk: setting.tree.chunk, bavl: bavl.root(), avlplus: avlplus.root() };
    drop((bavl, avlplus));
    let chunk_bytes = setting.tree.chunk as u64 * (setting.tree.bytes as u64 + BESIDE);
    let new = |way: &FetchMethod| FetchOutcome { way: *way, fetched: Vec::new() };
    let mut outcomes: Vec<_> = setting.methods.iter().map(new).collect();
    for seed in 0..setting.seeds {
        let mut random = SplitMix64::new(setting.tree.seed ^ (seed + 1).wrapping_mul(0x9e37_79b9));
        let lies = shuffled((0..ports.len()).map(|n| n < setting.byzantine), &mut random);
        let delays = setting.delays.iter().cycle().take(ports.len()).copied();
        let delays = shuffled(delays, &mut random);
        let liars_seed = random.next();
        let drops = random.next();
        for n in 0..outcomes.len() {
            // Rotated, so that no method always follows the same one.
            let at = (n + seed as usize) % outcomes.len();
            let outcome = &mut outcomes[at];
            let open = |(peer, port): (usize, &u16)| {
                let greeting = PeerGreeting {
                    kind: outcome.way.kind(),
                    delay: delays[peer],
                    speed: setting.speed,
                    lies: lies[peer],
                    seed: liars_seed.wrapping_add(peer as u64),
                };
                let link = PeerLink::open(peer, *port, &greeting, chunk_bytes);
                link.map_err(|source| TreeSyncError::Peer { peer, source })
            };
            let links = || ports.iter().enumerate().map(open).collect();
            let random = &mut SplitMix64::new(drops);
            let fetched = fetch::fetch(outcome.way, &wanted, &lies, links, random, stop)?;
            outcome.fetched.push(fetched);
        }
        tell(&outcomes);
    }
    Ok(outcomes)
}

fn shuffled<T>(items: impl Iterator<Item = T>, random: &mut SplitMix64) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_sync::{fetch::BaselinePolicy, peer};
    use std::sync::{atomic::Ordering, mpsc};

    const TREE: ServedTreeConfig =
        ServedTreeConfig { elements: 2000, bytes: 64, chunk: 16, seed: 5 };

    /// Starts peers as threads instead of processes.
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

    const ALL: [FetchMethod; 4] = [
        FetchMethod::AvlPlus(BaselinePolicy::Refetch),
        FetchMethod::AvlPlus(BaselinePolicy::DropRandom),
        FetchMethod::AvlPlus(BaselinePolicy::Rational),
        FetchMethod::Bavl,
    ];

    fn raced<const M: usize>(
        methods: [FetchMethod; M],
        byzantine: usize,
        seeds: u64,
    ) -> [FetchOutcome; M] {
        let setting = FetchRaceConfig {
            tree: TREE,
            methods: methods.into(),
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
        for outcome in raced(ALL, 0, 2) {
            let chunks = if outcome.way == FetchMethod::Bavl { 126..260 } else { 125..126 };
            assert!(outcome.fetched.iter().all(|fetched| fetched.rounds == 1
                && chunks.contains(&fetched.chunks)
                && fetched.serialize > Duration::ZERO
                && fetched.total >= fetched.transfer));
        }
        let most = |outcome: &FetchOutcome| outcome.fetched.iter().map(|one| one.rounds).max();
        let [refetch, random, rational, bavl] = raced(ALL, 3, 6);
        assert!(most(&random) > Some(2) && most(&rational) > Some(1));
        assert!((Some(2)..=Some(4)).contains(&most(&refetch)), "a round for each liar, and one");
        assert_eq!(most(&bavl), Some(1));
    }

    #[test]
    fn one_liar_costs_refetch_twice_as_many_chunks() {
        let [refetch] = raced([FetchMethod::AvlPlus(BaselinePolicy::Refetch)], 1, 4);
        let all = &refetch.fetched;
        assert!(all.iter().all(|one| one.chunks == 125 * u64::from(one.rounds)), "{all:?}");
        // A liar that serves a few chunks may tell the truth in all of them.
        assert_eq!(all.iter().map(|one| one.rounds).max(), Some(2));
    }

    #[test]
    fn where_all_lie_there_is_no_tree() {
        let (mut bavl, mut avlplus) = TREE.trees();
        let wanted =
            ExpectedRoots { chunk: TREE.chunk, bavl: bavl.root(), avlplus: avlplus.root() };
        with_peers(2, false, |ports, stop| {
            for way in [FetchMethod::Bavl, FetchMethod::AvlPlus(BaselinePolicy::Rational)] {
                let greeting = PeerGreeting {
                    kind: way.kind(),
                    delay: Duration::ZERO,
                    speed: 20_000_000,
                    lies: true,
                    seed: 3,
                };
                let links = || {
                    let open =
                        |(peer, port): (usize, &u16)| PeerLink::open(peer, *port, &greeting, 1200);
                    Ok(ports.iter().enumerate().map(open).map(Result::unwrap).collect())
                };
                let lies = [true; 2];
                let random = &mut SplitMix64::new(1);
                let fetched = fetch::fetch(way, &wanted, &lies, links, random, stop);
                let is_clear = matches!(fetched, Err(TreeSyncError::NoPeers { peers: 2 }));
                // A closed connection is a valid result too.
                assert!(
                    is_clear || matches!(fetched, Err(TreeSyncError::Peer { .. })),
                    "{fetched:?}"
                );
            }
        });
    }

    #[test]
    fn what_is_shuffled_stays() {
        let mut items = shuffled(0..50, &mut SplitMix64::new(3));
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
