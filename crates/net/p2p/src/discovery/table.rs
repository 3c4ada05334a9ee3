//! The table of known nodes: buckets by distance (Kademlia), with limits that keep one network from
//! filling it.
//!
//! A node is *live* if it has answered from its address. Only live nodes are passed on to other
//! nodes. A full bucket accepts no node: a new node waits among the replacements until a node of
//! the bucket does not answer. So an attacker has to wait for honest nodes to go away.

use super::{
    enode::Enode,
    net::{Subnet, is_local},
};
use crate::eth::PeerId;
use alloy_primitives::B256;
use rand::{Rng, seq::IteratorRandom};
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// Maximum number of nodes in a bucket.
pub(super) const BUCKET_NODES: usize = 16;
/// Maximum number of nodes that wait for room in a bucket.
pub(super) const BUCKET_REPLACEMENTS: usize = 10;
/// Number of buckets: one for each of the largest distances, and one for all smaller ones. Half of
/// all nodes are in the furthest bucket, so the other buckets would stay empty.
pub(super) const BUCKETS: usize = 17;
/// Maximum number of nodes and replacements of one subnet in a bucket.
pub(super) const BUCKET_SUBNET: usize = 2;
/// Maximum number of nodes and replacements of one subnet in the table.
pub(super) const TABLE_SUBNET: usize = 10;
/// Maximum number of requests in a row that a node may leave unanswered.
const MAX_FAILURES: u32 = 4;

/// A node in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableEntry {
    pub(super) node: Enode,
    pub(super) hash: B256,
    /// Number of passed checks; a failed check costs two thirds of them. A node with 0 is not live.
    pub(super) checks: u32,
    /// Unanswered requests in a row.
    failures: u32,
    /// When it answered or failed a check last, or was added.
    seen: Instant,
}

#[derive(Debug, Default)]
struct KBucket {
    nodes: Vec<TableEntry>,
    replacements: Vec<TableEntry>,
    subnets: SubnetCounts,
}

/// The number of nodes in each subnet. Local addresses are not counted.
#[derive(Debug, Default)]
struct SubnetCounts(HashMap<Subnet, usize>);

impl SubnetCounts {
    fn has_room(&self, node: &Enode, limit: usize) -> bool {
        is_local(node.ip) || self.0.get(&Subnet::of(node.ip)).is_none_or(|count| *count < limit)
    }

    fn add(&mut self, node: &Enode) {
        if !is_local(node.ip) {
            *self.0.entry(Subnet::of(node.ip)).or_default() += 1;
        }
    }

    fn remove(&mut self, node: &Enode) {
        let subnet = Subnet::of(node.ip);
        if let Some(count) = self.0.get_mut(&subnet).filter(|_| !is_local(node.ip)) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&subnet);
            }
        }
    }
}

/// The result of adding a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertOutcome {
    /// It is in the table now.
    New,
    /// It waits for room.
    Waits,
    /// It was in the table or among the replacements.
    Known,
    /// It is this node itself, its subnet has reached a limit, or there is no place.
    Refused,
}

/// The Kademlia table of nodes.
#[derive(Debug)]
pub(super) struct NodeTable {
    local: B256,
    buckets: Vec<KBucket>,
    subnets: SubnetCounts,
}

impl NodeTable {
    pub(super) fn new(local: B256) -> Self {
        let buckets = std::iter::repeat_with(KBucket::default).take(BUCKETS).collect();
        Self { local, buckets, subnets: SubnetCounts::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.nodes.len()).sum()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &TableEntry> {
        self.buckets.iter().flat_map(|bucket| &bucket.nodes)
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &TableEntry> {
        self.nodes().filter(|entry| entry.checks > 0)
    }

    #[cfg(test)]
    pub(super) fn get(&self, id: &PeerId) -> Option<&TableEntry> {
        let hash = alloy_primitives::keccak256(id);
        let nodes = &self.buckets[bucket_of(&self.local, &hash)?].nodes;
        nodes.iter().find(|entry| entry.node.id == *id)
    }

    /// Adds a node that another node has named, or that has sent a request.
    pub(super) fn add(&mut self, node: Enode, now: Instant) -> InsertOutcome {
        let hash = node.hash();
        let Some(index) = bucket_of(&self.local, &hash) else { return InsertOutcome::Refused };
        let bucket = &mut self.buckets[index];
        let known = |entry: &TableEntry| entry.node.id == node.id;
        if bucket.nodes.iter().any(known) {
            return InsertOutcome::Known;
        }
        if let Some(at) = bucket.replacements.iter().position(known) {
            // The newest one goes to the end, and is dropped last.
            bucket.replacements[at..].rotate_left(1);
            return InsertOutcome::Known;
        }
        if !(bucket.subnets.has_room(&node, BUCKET_SUBNET)
            && self.subnets.has_room(&node, TABLE_SUBNET))
        {
            return InsertOutcome::Refused;
        }
        let room = bucket.nodes.len() < BUCKET_NODES;
        if !room && bucket.replacements.len() == BUCKET_REPLACEMENTS {
            // The oldest replacement is dropped for the new one.
            let oldest = bucket.replacements.remove(0);
            bucket.subnets.remove(&oldest.node);
            self.subnets.remove(&oldest.node);
        }
        bucket.subnets.add(&node);
        self.subnets.add(&node);
        let entry = TableEntry { node, hash, checks: 0, failures: 0, seen: now };
        if room {
            bucket.nodes.push(entry);
            InsertOutcome::New
        } else {
            bucket.replacements.push(entry);
            InsertOutcome::Waits
        }
    }

    /// Records an answer of a node from the address in `node`. The address becomes the node's, if
    /// its subnet has room. Adds the node if it is not in the table.
    pub(super) fn answered(&mut self, node: Enode, now: Instant) {
        self.add(node, now);
        let Some(index) = bucket_of(&self.local, &node.hash()) else { return };
        let bucket = &mut self.buckets[index];
        let Some(entry) = bucket.nodes.iter_mut().find(|entry| entry.node.id == node.id) else {
            return;
        };
        let old = entry.node;
        if old.udp_address() != node.udp_address() {
            bucket.subnets.remove(&old);
            self.subnets.remove(&old);
            if !(bucket.subnets.has_room(&node, BUCKET_SUBNET)
                && self.subnets.has_room(&node, TABLE_SUBNET))
            {
                bucket.subnets.add(&old);
                self.subnets.add(&old);
                return;
            }
            bucket.subnets.add(&node);
            self.subnets.add(&node);
            entry.checks = 0;
        }
        // Only the node's record may change its TCP port.
        entry.node = Enode { tcp: if old.ip == node.ip { old.tcp } else { node.tcp }, ..node };
        entry.checks = entry.checks.saturating_add(1);
        entry.failures = 0;
        entry.seen = now;
    }

    /// Sets the TCP port that the node's record has.
    pub(super) fn set_tcp(&mut self, id: &PeerId, tcp: u16) {
        self.with(id, |entry| entry.node.tcp = tcp);
    }

    /// Records a failed check. After a few of them a replacement takes the node's place.
    pub(super) fn failed_check(&mut self, id: &PeerId, now: Instant) {
        let mut gone = false;
        self.with(id, |entry| {
            entry.checks /= 3;
            entry.seen = now;
            gone = entry.checks == 0;
        });
        if gone {
            self.remove(id);
        }
    }

    /// Records an unanswered request.
    pub(super) fn failed_request(&mut self, id: &PeerId) {
        let mut gone = false;
        self.with(id, |entry| {
            entry.failures += 1;
            gone = entry.failures > MAX_FAILURES;
        });
        if gone {
            self.remove(id);
        }
    }

    fn with(&mut self, id: &PeerId, act: impl FnOnce(&mut TableEntry)) {
        let hash = alloy_primitives::keccak256(id);
        if let Some(index) = bucket_of(&self.local, &hash) {
            let nodes = &mut self.buckets[index].nodes;
            if let Some(entry) = nodes.iter_mut().find(|entry| entry.node.id == *id) {
                act(entry);
            }
        }
    }

    /// Removes a node, and moves a random replacement into its place: an attacker cannot queue for
    /// it.
    fn remove(&mut self, id: &PeerId) {
        let hash = alloy_primitives::keccak256(id);
        let Some(index) = bucket_of(&self.local, &hash) else { return };
        let bucket = &mut self.buckets[index];
        let Some(at) = bucket.nodes.iter().position(|entry| entry.node.id == *id) else { return };
        let gone = bucket.nodes.remove(at);
        bucket.subnets.remove(&gone.node);
        self.subnets.remove(&gone.node);
        if !bucket.replacements.is_empty() {
            let next = rand::rng().random_range(0..bucket.replacements.len());
            bucket.nodes.push(bucket.replacements.remove(next));
        }
    }

    /// The nodes that are closest to a target, the closest first; only live ones if `live` is set.
    pub(super) fn closest(&self, target: &B256, count: usize, live: bool) -> Vec<Enode> {
        let all = self.nodes().filter(|entry| !live || entry.checks > 0);
        let mut nearest: BTreeMap<B256, Enode> = BTreeMap::new();
        for entry in all {
            nearest.insert(entry.hash ^ *target, entry.node);
            if nearest.len() > count {
                nearest.pop_last();
            }
        }
        nearest.into_values().collect()
    }

    /// A random node that was last seen `age` ago or earlier, among the live or the other ones.
    pub(super) fn due(&self, live: bool, age: Duration, now: Instant) -> Option<Enode> {
        self.nodes()
            .filter(|entry| (entry.checks > 0) == live)
            .filter(|entry| now.saturating_duration_since(entry.seen) >= age)
            .choose(&mut rand::rng())
            .map(|entry| entry.node)
    }
}

/// The logarithmic distance between two hashes in bits: 0 to 256.
pub(super) fn log_distance(a: &B256, b: &B256) -> usize {
    let distance = *a ^ *b;
    let zeros = distance.iter().take_while(|byte| **byte == 0).count();
    distance.get(zeros).map_or(0, |byte| 256 - 8 * zeros - byte.leading_zeros() as usize)
}

/// The bucket of a node; `None` for this node itself.
fn bucket_of(local: &B256, hash: &B256) -> Option<usize> {
    let distance = log_distance(local, hash);
    (distance > 0).then(|| distance.saturating_sub(256 - BUCKETS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng, seq::IndexedRandom};

    fn node(rng: &mut StdRng, ip: [u8; 4]) -> Enode {
        let mut id = PeerId::ZERO;
        rng.fill(&mut id.0[..]);
        Enode { id, ip: ip.into(), tcp: 1, udp: 2 }
    }

    #[test]
    fn distances_are_counted_in_bits() {
        let zero = B256::ZERO;
        let bit = |at: usize| {
            let mut hash = B256::ZERO;
            hash[31 - at / 8] = 1 << (at % 8);
            hash
        };
        assert_eq!(log_distance(&zero, &zero), 0);
        assert_eq!(bucket_of(&zero, &zero), None);
        for at in 0..256 {
            assert_eq!(log_distance(&zero, &bit(at)), at + 1);
            assert_eq!(bucket_of(&zero, &bit(at)), Some((at + 1).saturating_sub(240)));
        }
    }

    /// Checks all invariants of the table.
    fn check(table: &NodeTable) {
        let mut all: HashMap<Subnet, usize> = HashMap::new();
        let mut ids = std::collections::HashSet::new();
        for (index, bucket) in table.buckets.iter().enumerate() {
            assert!(bucket.nodes.len() <= BUCKET_NODES);
            assert!(bucket.replacements.len() <= BUCKET_REPLACEMENTS);
            assert!(bucket.nodes.len() == BUCKET_NODES || bucket.replacements.is_empty());
            let mut here: HashMap<Subnet, usize> = HashMap::new();
            for entry in bucket.nodes.iter().chain(&bucket.replacements) {
                assert!(ids.insert(entry.node.id), "twice in the table");
                assert_eq!(entry.hash, entry.node.hash());
                assert_eq!(bucket_of(&table.local, &entry.hash), Some(index));
                if !is_local(entry.node.ip) {
                    *here.entry(Subnet::of(entry.node.ip)).or_default() += 1;
                    *all.entry(Subnet::of(entry.node.ip)).or_default() += 1;
                }
            }
            assert!(here.values().all(|count| *count <= BUCKET_SUBNET));
            assert_eq!(here, bucket.subnets.0);
        }
        assert!(all.values().all(|count| *count <= TABLE_SUBNET));
        assert_eq!(all, table.subnets.0);
    }

    #[test]
    fn limits_hold_whatever_happens() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut table = NodeTable::new(B256::repeat_byte(0x55));
        let mut known: Vec<Enode> = Vec::new();
        let mut now = Instant::now();
        let (mut refused, mut waited, mut moved) = (0, 0, 0);
        for _ in 0..20_000 {
            now += Duration::from_millis(10);
            match rng.random_range(0..10) {
                0..4 => {
                    // A few networks, so that the limits are reached; some nodes are local.
                    let ip = match rng.random_range(0..8) {
                        0 => [10, 0, 0, rng.random()],
                        _ => [8, 8, rng.random_range(0..60), rng.random()],
                    };
                    let node = node(&mut rng, ip);
                    match table.add(node, now) {
                        InsertOutcome::Refused => refused += 1,
                        InsertOutcome::Waits => waited += 1,
                        InsertOutcome::New => assert_eq!(table.get(&node.id).unwrap().checks, 0),
                        InsertOutcome::Known => panic!("ids are random"),
                    }
                    known.push(node);
                }
                4..7 => {
                    if let Some(mut node) = known.choose(&mut rng).copied() {
                        if rng.random_bool(0.3) {
                            node.ip = [9, 9, rng.random_range(0..9), 1].into();
                        }
                        let before = table.get(&node.id).cloned();
                        table.answered(node, now);
                        if let (Some(before), Some(after)) = (before, table.get(&node.id)) {
                            if after.node.ip != before.node.ip {
                                moved += 1;
                                assert_eq!(after.checks, 1, "a new place is checked anew");
                            } else if before.node.ip == node.ip {
                                assert_eq!(after.checks, before.checks + 1);
                            } else {
                                assert_eq!(*after, before, "no room where it has moved");
                            }
                        }
                    }
                }
                7 => {
                    if let Some(node) = known.choose(&mut rng) {
                        let before = table.get(&node.id).cloned();
                        table.failed_check(&node.id, now);
                        let after = table.get(&node.id).map(|entry| entry.checks);
                        let left = before.map(|entry| entry.checks / 3).filter(|left| *left > 0);
                        assert_eq!(after, left);
                    }
                }
                _ => {
                    if let Some(node) = known.choose(&mut rng) {
                        table.failed_request(&node.id);
                    }
                }
            }
            check(&table);
        }
        assert!(refused > 100 && waited > 100 && moved > 10, "{refused} {waited} {moved}");
        assert!(table.len() > 60);
    }

    #[test]
    fn a_full_bucket_keeps_its_nodes_until_one_fails() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut table = NodeTable::new(B256::ZERO);
        let now = Instant::now();
        let mut far = std::iter::repeat_with(|| node(&mut rng, [127, 0, 0, 1]))
            .filter(|node| log_distance(&B256::ZERO, &node.hash()) == 256);
        let first: Vec<_> = far.by_ref().take(BUCKET_NODES).collect();
        for node in &first {
            assert_eq!(table.add(*node, now), InsertOutcome::New);
            table.answered(*node, now);
        }
        let later: Vec<_> = far.take(BUCKET_REPLACEMENTS + 5).collect();
        for node in &later {
            assert_eq!(table.add(*node, now), InsertOutcome::Waits);
            table.answered(*node, now);
            assert!(table.get(&node.id).is_none(), "who waits is not in the table");
        }
        assert!(first.iter().all(|node| table.get(&node.id).is_some()));
        table.failed_check(&first[3].id, now);
        assert!(table.get(&first[3].id).is_none());
        let new: Vec<_> = table.nodes().filter(|entry| entry.checks == 0).collect();
        assert_eq!(new.len(), 1);
        assert!(later[5..].contains(&new[0].node), "the oldest news were dropped");
        check(&table);
    }

    #[test]
    fn requests_without_answers_end_in_removal_and_one_answer_makes_good() {
        let mut rng = StdRng::seed_from_u64(2);
        let mut table = NodeTable::new(B256::ZERO);
        let now = Instant::now();
        let node = node(&mut rng, [1, 2, 3, 4]);
        table.answered(node, now);
        for _ in 0..MAX_FAILURES {
            table.failed_request(&node.id);
        }
        table.answered(node, now);
        for _ in 0..MAX_FAILURES {
            table.failed_request(&node.id);
        }
        assert!(table.get(&node.id).is_some());
        table.failed_request(&node.id);
        assert!(table.get(&node.id).is_none());
        check(&table);
    }

    #[test]
    fn the_closest_are_those_of_a_full_sort_and_live() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut table = NodeTable::new(B256::repeat_byte(9));
        let now = Instant::now();
        for _ in 0..400 {
            let node = node(&mut rng, [10, 0, 0, 1]);
            table.add(node, now);
            if rng.random_bool(0.5) {
                table.answered(node, now);
            }
        }
        for _ in 0..50 {
            let target = B256::from(rng.random::<[u8; 32]>());
            let mut live: Vec<_> = table.live().cloned().collect();
            live.sort_by_key(|entry| entry.hash ^ target);
            let expected: Vec<_> = live.iter().take(16).map(|entry| entry.node).collect();
            assert_eq!(table.closest(&target, 16, true), expected);
        }
        assert!(table.closest(&B256::ZERO, 1000, false).len() > table.live().count());
    }

    #[test]
    fn checks_are_due_by_age_and_kind() {
        let mut rng = StdRng::seed_from_u64(4);
        let mut table = NodeTable::new(B256::ZERO);
        let (now, age) = (Instant::now(), Duration::from_secs(3));
        let node = node(&mut rng, [1, 2, 3, 4]);
        table.add(node, now);
        assert_eq!(table.due(false, age, now), None);
        assert_eq!(table.due(false, age, now + age), Some(node));
        assert_eq!(table.due(true, age, now + age), None);
        table.answered(node, now + age);
        assert_eq!(table.due(true, age, now + age * 2), Some(node));
    }
}
