//! The walk through DNS trees: which entry is read next, and when the walk ends.

use super::{
    DnsResolver,
    tree::{DnsEntry, EntryLabel, TreeRootEntry, TreeUrl},
};
use crate::discovery::record::Enr;
use rand::Rng;
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};
use tracing::debug;

/// Maximum number of trees, with the ones that others link to.
const MAX_TREES: usize = 16;
/// Maximum number of entries that are read of one version of a tree. The largest known tree has
/// about 6,000.
const MAX_ENTRIES: usize = 20_000;
/// Maximum number of entries of a tree that wait to be read.
const MAX_WAITING: usize = 4096;

/// The walk through all trees.
#[derive(Debug)]
pub(super) struct DnsTreeWalk {
    trees: Vec<DnsTree>,
    /// All trees that were ever added: trees that link to each other are walked once.
    known: HashSet<TreeUrl>,
    next: usize,
    /// How long a root is valid.
    root_life: Duration,
}

#[derive(Debug)]
struct DnsTree {
    url: TreeUrl,
    seq: Option<u64>,
    /// When the root was read last.
    asked: Option<Instant>,
    waiting: Vec<(EntryLabel, SubtreeKind)>,
    seen: HashSet<EntryLabel>,
}

/// What the leaves of a subtree are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubtreeKind {
    Records,
    Links,
}

/// The result of a step.
#[derive(Debug)]
pub(super) enum DnsWalkStep {
    Record(Box<Enr>),
    /// Something else than a record was read.
    Walked,
    Failed(String),
    /// There is nothing to read for this long.
    Done(Duration),
}

impl DnsTreeWalk {
    pub(super) fn new(trees: Vec<TreeUrl>, root_life: Duration) -> Self {
        let mut walk = Self { trees: Vec::new(), known: HashSet::new(), next: 0, root_life };
        trees.into_iter().for_each(|url| walk.add(url));
        walk
    }

    fn add(&mut self, url: TreeUrl) {
        if self.trees.len() < MAX_TREES && self.known.insert(url.clone()) {
            self.trees.push(DnsTree {
                url,
                seq: None,
                asked: None,
                waiting: Vec::new(),
                seen: HashSet::new(),
            });
        }
    }

    /// Reads one entry: the next one of a tree, or a root that is due.
    pub(super) async fn step(&mut self, dns: &DnsResolver) -> DnsWalkStep {
        let now = Instant::now();
        for _ in 0..self.trees.len() {
            self.next = (self.next + 1) % self.trees.len();
            let tree = &mut self.trees[self.next];
            let age = tree.asked.map(|asked| now.saturating_duration_since(asked));
            // A due root is read only when its previous version has been walked.
            if tree.waiting.is_empty() && age.is_none_or(|age| age >= self.root_life) {
                return tree.read_root(dns, now).await;
            }
            if tree.waiting.is_empty() {
                continue;
            }
            let at = rand::rng().random_range(0..tree.waiting.len());
            let (label, kind) = tree.waiting.swap_remove(at);
            return match tree.read(dns, &label, kind).await {
                Ok(Some(DnsEntry::Record(record))) => DnsWalkStep::Record(record),
                Ok(Some(DnsEntry::Link(url))) => {
                    self.add(url);
                    DnsWalkStep::Walked
                }
                Ok(_) => DnsWalkStep::Walked,
                Err(error) => DnsWalkStep::Failed(error),
            };
        }
        let until = self.trees.iter().filter_map(|tree| tree.asked).min();
        let until = until.map_or(self.root_life, |asked| asked + self.root_life - now);
        DnsWalkStep::Done(until.max(Duration::from_millis(1)))
    }
}

impl DnsTree {
    async fn read_root(&mut self, dns: &DnsResolver, now: Instant) -> DnsWalkStep {
        self.asked = Some(now);
        let root = dns.text(&self.url.domain).await;
        let root = root.and_then(|text| {
            TreeRootEntry::parse(&text, &self.url.key)
                .map_err(|error| format!("the root of {}: {error}", self.url))
        });
        let root = match root {
            Ok(root) => root,
            Err(error) => return DnsWalkStep::Failed(error),
        };
        if self.seq.is_some_and(|seq| root.seq < seq) {
            return DnsWalkStep::Failed(format!("the root of {} is older than the last", self.url));
        }
        debug!(target: "retrie::network", tree = %self.url, seq = root.seq, "reading a DNS list");
        self.seq = Some(root.seq);
        self.seen.clear();
        self.put(root.records, SubtreeKind::Records);
        self.put(root.links, SubtreeKind::Links);
        DnsWalkStep::Walked
    }

    fn put(&mut self, label: EntryLabel, kind: SubtreeKind) {
        let room = self.seen.len() < MAX_ENTRIES && self.waiting.len() < MAX_WAITING;
        if room && self.seen.insert(label.clone()) {
            self.waiting.push((label, kind));
        }
    }

    /// Reads the entry of a label, if its kind is allowed in this subtree.
    async fn read(
        &mut self,
        dns: &DnsResolver,
        label: &EntryLabel,
        kind: SubtreeKind,
    ) -> Result<Option<DnsEntry>, String> {
        let name = format!("{label}.{}", self.url.domain);
        let text = dns.text(&name).await?;
        if !label.matches(&text) {
            return Err(format!("the entry of {name} does not match its hash"));
        }
        let entry = DnsEntry::parse(&text).map_err(|error| format!("{name}: {error}"))?;
        match (entry, kind) {
            (DnsEntry::Branch(labels), _) => {
                labels.into_iter().for_each(|label| self.put(label, kind));
                Ok(None)
            }
            (entry @ DnsEntry::Record(_), SubtreeKind::Records)
            | (entry @ DnsEntry::Link(_), SubtreeKind::Links) => Ok(Some(entry)),
            _ => Err(format!("the entry of {name} is not allowed in its subtree")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tree::tree_builder, *};
    use crate::discovery::{key::NodeKey, record::LocalEnr};
    use alloy_eip2124::{ForkHash, ForkId};
    use parking_lot::Mutex;
    use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};
    use tokio::net::UdpSocket;

    type DnsZone = BTreeMap<String, String>;

    /// A name server for these TXT records. Other names do not exist.
    async fn serve(zone: Arc<Mutex<DnsZone>>, asked: Arc<Mutex<Vec<String>>>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let (name, end) = question(&buffer[..length]);
                asked.lock().push(name.clone());
                let text = zone.lock().get(&name).cloned();
                let _ = socket.send_to(&answer(&buffer[..end], text), from).await;
            }
        });
        address
    }

    /// The name in a question, and where the question ends.
    fn question(packet: &[u8]) -> (String, usize) {
        let (mut at, mut labels) = (12, Vec::new());
        while packet[at] != 0 {
            let length = usize::from(packet[at]);
            let label = &packet[at + 1..at + 1 + length];
            labels.push(String::from_utf8_lossy(label).to_lowercase());
            at += 1 + length;
        }
        (labels.join("."), at + 5)
    }

    fn answer(question: &[u8], text: Option<String>) -> Vec<u8> {
        let mut packet = question.to_vec();
        // An answer with recursion; code 3 is `does not exist`.
        packet[2] = 0x85;
        packet[3] = if text.is_some() { 0x80 } else { 0x83 };
        packet[4..12].copy_from_slice(&[0, 1, 0, u8::from(text.is_some()), 0, 0, 0, 0]);
        if let Some(text) = text {
            packet.extend_from_slice(&[0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60]);
            let parts: Vec<_> = text.as_bytes().chunks(255).collect();
            let length = text.len() + parts.len();
            packet.extend_from_slice(&(length as u16).to_be_bytes());
            for part in parts {
                packet.push(part.len() as u8);
                packet.extend_from_slice(part);
            }
        }
        packet
    }

    fn records(count: usize) -> Vec<String> {
        let fork = ForkId { hash: ForkHash([1; 4]), next: 0 };
        let record = |_| {
            let udp = ([1, 2, 3, 4], 5).into();
            let key = NodeKey::random();
            LocalEnr::new(&key, Some([1, 2, 3, 4].into()), 6, udp, fork).unwrap()
        };
        (0..count).map(record).map(|record| record.get().to_base64()).collect()
    }

    struct MockDnsServer {
        zone: Arc<Mutex<DnsZone>>,
        asked: Arc<Mutex<Vec<String>>>,
        dns: DnsResolver,
    }

    impl MockDnsServer {
        async fn start(zone: DnsZone) -> Self {
            let (zone, asked) = (Arc::new(Mutex::new(zone)), Arc::default());
            let address = serve(Arc::clone(&zone), Arc::clone(&asked)).await;
            let dns = DnsResolver::new(Some(address), Duration::from_secs(2)).unwrap();
            Self { zone, asked, dns }
        }

        /// Walks until nothing is left. Returns the records and the failures.
        async fn walk(&self, walk: &mut DnsTreeWalk) -> (Vec<String>, Vec<String>) {
            let (mut found, mut failed) = (Vec::new(), Vec::new());
            for _ in 0..10_000 {
                match walk.step(&self.dns).await {
                    DnsWalkStep::Record(record) => found.push(record.to_base64()),
                    DnsWalkStep::Walked => {}
                    DnsWalkStep::Failed(error) => failed.push(error),
                    DnsWalkStep::Done(_) => {
                        found.sort();
                        return (found, failed);
                    }
                }
            }
            panic!("the walk has no end");
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn tree(
        zone: &mut DnsZone,
        key: &NodeKey,
        domain: &str,
        leaves: Vec<String>,
        links: Vec<String>,
    ) {
        let records = tree_builder::grow(zone, domain, leaves, 4);
        let links = tree_builder::grow(zone, domain, links, 4);
        zone.insert(domain.into(), tree_builder::root(key, &records, &links, 1));
    }

    #[tokio::test]
    async fn all_records_of_trees_that_link_to_each_other_are_found_once() {
        let (a, b) = (NodeKey::random(), NodeKey::random());
        let mut all = records(30);
        let mut zone = DnsZone::new();
        let links = |key, domain| vec![tree_builder::url(key, domain).to_string()];
        tree(&mut zone, &a, "a.test", all[..20].to_vec(), links(&b, "b.test"));
        tree(&mut zone, &b, "b.test", all[20..].to_vec(), links(&a, "a.test"));
        let server = MockDnsServer::start(zone).await;
        let mut walk = DnsTreeWalk::new(vec![tree_builder::url(&a, "a.test")], HOUR);
        let (found, failed) = server.walk(&mut walk).await;
        all.sort();
        assert_eq!((found, failed), (all, vec![]));
        let mut asked = server.asked.lock().clone();
        let count = asked.len();
        asked.sort();
        asked.dedup();
        assert_eq!(asked.len(), count, "no name is asked for twice");
    }

    #[tokio::test]
    async fn a_root_of_another_key_and_an_older_one_lead_nowhere() {
        let (key, other) = (NodeKey::random(), NodeKey::random());
        let mut zone = DnsZone::new();
        tree(&mut zone, &other, "a.test", records(3), vec![]);
        let server = MockDnsServer::start(zone).await;
        let mut walk = DnsTreeWalk::new(vec![tree_builder::url(&key, "a.test")], HOUR);
        let (found, failed) = server.walk(&mut walk).await;
        assert!(found.is_empty());
        assert!(failed.len() == 1 && failed[0].contains("not signed"), "{failed:?}");

        // Sequence number 5, then 4.
        let label = tree_builder::grow(&mut server.zone.lock(), "b.test", records(2), 4);
        let root = |seq| tree_builder::root(&key, &label, &label, seq);
        server.zone.lock().insert("b.test".into(), root(5));
        let mut walk = DnsTreeWalk::new(vec![tree_builder::url(&key, "b.test")], Duration::ZERO);
        for _ in 0..4 {
            assert!(!matches!(walk.step(&server.dns).await, DnsWalkStep::Failed(_)));
        }
        server.zone.lock().insert("b.test".into(), root(4));
        let DnsWalkStep::Failed(error) = walk.step(&server.dns).await else {
            panic!("an older root")
        };
        assert!(error.contains("older"), "{error}");
    }

    #[tokio::test]
    async fn entries_that_are_changed_missing_or_out_of_place_are_left_out() {
        let key = NodeKey::random();
        let all = records(9);
        let link = tree_builder::url(&NodeKey::random(), "c.test").to_string();
        let mut zone = DnsZone::new();
        let mut leaves = all.clone();
        // A link in the subtree of records, and an invalid record.
        leaves.extend([link, "enr:AAAA".into()]);
        tree(&mut zone, &key, "a.test", leaves, vec![all[0].clone()]);
        let name = |text: &str| format!("{}.a.test", tree_builder::label(text).to_lowercase());
        zone.insert(name(&all[1]), all[2].clone());
        zone.remove(&name(&all[3]));
        let server = MockDnsServer::start(zone).await;
        let mut walk = DnsTreeWalk::new(vec![tree_builder::url(&key, "a.test")], HOUR);
        let (found, failed) = server.walk(&mut walk).await;
        // The entry is read once, either as a link or as a record.
        let mut good: Vec<_> = all[4..].to_vec();
        good.extend([all[2].clone()]);
        good.extend(found.contains(&all[0]).then(|| all[0].clone()));
        good.sort();
        assert_eq!(found, good);
        assert!((4..=5).contains(&failed.len()), "{failed:#?}");
    }

    #[tokio::test]
    async fn a_tree_without_end_is_left_after_so_many_entries() {
        let key = NodeKey::random();
        let domain = "a.test";
        let mut zone = DnsZone::new();
        // A branch that doubles at each level: 2^40 paths to a few entries.
        let mut label = tree_builder::grow(&mut zone, domain, records(1), 4);
        for _ in 0..40 {
            let text = format!("enrtree-branch:{label},{label}");
            label = tree_builder::label(&text);
            zone.insert(format!("{}.{domain}", label.to_lowercase()), text);
        }
        zone.insert(domain.into(), tree_builder::root(&key, &label, &label, 1));
        let server = MockDnsServer::start(zone).await;
        let mut walk = DnsTreeWalk::new(vec![tree_builder::url(&key, domain)], HOUR);
        server.walk(&mut walk).await;
        assert!(server.asked.lock().len() < 50);

        // A tree of unlimited width.
        let mut tree = DnsTree {
            url: tree_builder::url(&key, domain),
            seq: None,
            asked: None,
            waiting: Vec::new(),
            seen: HashSet::new(),
        };
        let DnsEntry::Branch(labels) = DnsEntry::parse(&format!(
            "enrtree-branch:{}",
            (0..100).map(|at| tree_builder::label(&at.to_string())).collect::<Vec<_>>().join(",")
        ))
        .unwrap() else {
            panic!("a branch")
        };
        for _ in 0..100 {
            labels.iter().for_each(|label| tree.put(label.clone(), SubtreeKind::Records));
        }
        assert_eq!((tree.waiting.len(), tree.seen.len()), (100, 100));
        for at in 0..MAX_ENTRIES * 2 {
            let Ok(DnsEntry::Branch(mut labels)) = DnsEntry::parse(&format!(
                "enrtree-branch:{}",
                tree_builder::label(&format!("more {at}"))
            )) else {
                panic!("a branch")
            };
            tree.put(labels.remove(0), SubtreeKind::Records);
            if at % 3 == 0 {
                tree.waiting.pop();
            }
        }
        assert!(tree.waiting.len() <= MAX_WAITING && tree.seen.len() <= MAX_ENTRIES);
    }

    #[tokio::test]
    async fn links_without_end_lead_to_so_many_trees() {
        let mut zone = DnsZone::new();
        let keys: Vec<_> = (0..40).map(|_| NodeKey::random()).collect();
        for (at, key) in keys.iter().enumerate() {
            let next = keys.get(at + 1);
            let next =
                next.map(|next| tree_builder::url(next, &format!("t{}.test", at + 1)).to_string());
            let links = next.into_iter().collect();
            tree(&mut zone, key, &format!("t{at}.test"), records(1), links);
        }
        let server = MockDnsServer::start(zone).await;
        let mut walk = DnsTreeWalk::new(vec![tree_builder::url(&keys[0], "t0.test")], HOUR);
        let (found, failed) = server.walk(&mut walk).await;
        assert_eq!((found.len(), failed.len()), (MAX_TREES, 0));
    }
}
