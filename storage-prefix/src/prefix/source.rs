//! The rows of a trie, as a source of branches.

use super::{
    branch_row::{self, BranchPlace, DecodedBranch, DecodedChild},
    layout::PrefixLayout,
    pack,
    record::table,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::{AccountKey, NodeRead, StateError};
use retrie_storage_mpt::{
    Trie,
    trie::{Branch, BranchChildren, BranchLink, NodeLink, NodeSource},
};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The rows of the account trie, or of the storage trie of an account, in any layout.
#[derive(Clone, Copy)]
pub(super) struct PrefixSource<'a> {
    view: &'a dyn NodeRead,
    layout: PrefixLayout,
    trie: Option<AccountKey>,
}

impl fmt::Debug for PrefixSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixSource").field("trie", &self.trie).finish_non_exhaustive()
    }
}

impl<'a> PrefixSource<'a> {
    pub(super) const fn new(
        view: &'a dyn NodeRead,
        layout: PrefixLayout,
        trie: Option<AccountKey>,
    ) -> Self {
        Self { view, layout, trie }
    }

    fn corrupt(&self, what: impl fmt::Display) -> StateError {
        let of = self.trie.map_or_else(String::new, |trie| format!(" of the trie {trie:?}"));
        StateError::corrupt(table(self.trie).name, format!("{what}{of}"))
    }

    const fn place<'b>(&self, path: &'b Nibbles, version: u64) -> BranchPlace<'b> {
        BranchPlace { path, version, has_stamps: self.trie.is_none() }
    }

    fn pack(&self, version: u64, group: &Nibbles) -> Result<Option<Bytes>, StateError> {
        let (table, key) = (table(self.trie), pack::key(version, self.trie, group));
        let Some(stored) = self.view.get(table, &self.layout.key(&key))? else { return Ok(None) };
        let pack = self.layout.unpadded(stored);
        pack.map(Some).ok_or_else(|| StateError::corrupt(table.name, "a row is not padded"))
    }

    /// The storage trie whose root's row has this version; its root must be `root`.
    pub(super) fn storage(&self, root: B256, version: u64) -> Result<Trie<u64>, StateError> {
        let corrupt = |what: &str| {
            let of = self.trie.unwrap_or(AccountKey::MIN);
            let what = format!("{what} the root of the storage of {of} in version {version}");
            StateError::corrupt(table(self.trie).name, what)
        };
        let pack = self.pack(version, &Nibbles::new())?.ok_or_else(|| corrupt("no row for"))?;
        let row = pack::find(&pack, pack::ROOT_TAG).ok_or_else(|| corrupt("malformed row of"))?;
        let row = pack.slice_ref(row.ok_or_else(|| corrupt("no row for"))?);
        let link = branch_row::decode_root(&row, root, version, self.trie.is_none())
            .ok_or_else(|| corrupt("malformed row of"))?;
        let trie = Trie::from_root(Some(link));
        if trie.hash() == root { Ok(trie) } else { Err(corrupt("another hash has")) }
    }

    /// The branch at `path` in this version, and the versions of the older rows that it builds on,
    /// the newest first.
    fn decoded(
        &self,
        packs: &mut ReadPacks<'_, 'a>,
        path: &Nibbles,
        version: u64,
    ) -> Result<(DecodedBranch, Vec<u64>), StateError> {
        let malformed = || self.corrupt(format_args!("malformed row of the branch at {path:?}"));
        let (mut deltas, mut bases) = (Vec::new(), Vec::new());
        let mut at = version;
        let mut branch = loop {
            let (pack, row) = packs.row(path, at)?;
            let (place, row) = (self.place(path, at), pack.slice_ref(row));
            let Some(base) = place.base_of(&row).ok_or_else(malformed)? else {
                break place.decode_whole(&row).ok_or_else(malformed)?;
            };
            if deltas.len() == branch_row::MAX_DELTAS {
                return Err(malformed());
            }
            deltas.push((at, row));
            bases.push(base);
            at = base;
        };
        for (version, row) in deltas.iter().rev() {
            self.place(path, *version).apply_delta(row, &mut branch).ok_or_else(malformed)?;
        }
        Ok((branch, bases))
    }
}

/// The packs that a load has read, as children are often in the pack of their parent.
struct ReadPacks<'s, 'a> {
    source: &'s PrefixSource<'a>,
    read: Vec<(u64, Nibbles, Bytes)>,
}

impl ReadPacks<'_, '_> {
    /// The row of the branch at `path` in this version, and the pack that it is in.
    fn row(&mut self, path: &Nibbles, version: u64) -> Result<(&Bytes, &[u8]), StateError> {
        let (source, group) = (self.source, pack::group(path));
        let missing = || {
            let what = format_args!("no row for the branch at {path:?} in version {version:?}");
            source.corrupt(what)
        };
        let read = self.read.iter().position(|(of, at, _)| *of == version && *at == group);
        let at = match read {
            Some(at) => at,
            None => {
                let pack = source.pack(version, &group)?.ok_or_else(missing)?;
                self.read.push((version, group, pack));
                self.read.len() - 1
            }
        };
        let pack = &self.read[at].2;
        let row = pack::find(pack, pack::tag(path)).ok_or_else(|| {
            source.corrupt(format_args!("malformed row of the branch at {path:?}"))
        })?;
        Ok((pack, row.ok_or_else(missing)?))
    }
}

impl NodeSource for PrefixSource<'_> {
    type Stamp = u64;

    fn load(&self, path: &Nibbles, link: &BranchLink<u64>) -> Result<Arc<Branch<u64>>, StateError> {
        let mut packs = ReadPacks { source: self, read: Vec::new() };
        let (branch, bases) = self.decoded(&mut packs, path, link.stamp())?;
        if !branch.is_of(link.reference()) {
            let what = format_args!("the branch at {path:?} is not the one its parent names");
            return Err(self.corrupt(what));
        }
        let mut children = BranchChildren::default();
        for (nibble, (child, to)) in (0u8..).zip(branch.children.into_iter().zip(&mut children)) {
            *to = match child {
                None => None,
                Some(DecodedChild::Leaf(leaf)) => Some(NodeLink::Leaf(leaf)),
                Some(DecodedChild::Branch { path: child, reference, stamp }) => {
                    let reference = match reference {
                        Some(reference) => reference,
                        None => self.reference(&mut packs, &child, stamp)?,
                    };
                    let slot = branch_row::slot_of(path, nibble);
                    Some(NodeLink::Branch(BranchLink::new(&slot, &child, reference, stamp)))
                }
            };
        }
        let branch = Branch::new(children, link.reference().clone(), link.stamp());
        Ok(Arc::new(branch.with_bases(bases)))
    }

    fn resolve(&self, path: &Nibbles, _: &RlpNode) -> Result<NodeLink<u64>, StateError> {
        Err(self.corrupt(format_args!("unresolved node at {path:?}")))
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<u64>) -> bool {
        branch_row::is_dense(path, branch)
    }
}

impl PrefixSource<'_> {
    /// The reference in the row of the branch at `path` in this version.
    fn reference(
        &self,
        packs: &mut ReadPacks<'_, '_>,
        path: &Nibbles,
        version: u64,
    ) -> Result<RlpNode, StateError> {
        let (_, row) = packs.row(path, version)?;
        self.place(path, version)
            .reference_in(row)
            .ok_or_else(|| self.corrupt(format_args!("malformed row of the branch at {path:?}")))
    }
}

/// A source that keeps the uppermost branches it loads, for proofs of several keys.
#[derive(Debug)]
pub(super) struct ProofSource<'a> {
    rows: PrefixSource<'a>,
    upper: Mutex<Vec<(Nibbles, Arc<Branch<u64>>)>>,
}

/// Longest path of a branch that a [`ProofSource`] keeps, in nibbles.
const UPPER_DEPTH: usize = 1;

impl<'a> From<PrefixSource<'a>> for ProofSource<'a> {
    fn from(rows: PrefixSource<'a>) -> Self {
        Self { rows, upper: Mutex::default() }
    }
}

impl ProofSource<'_> {
    fn upper(&self) -> MutexGuard<'_, Vec<(Nibbles, Arc<Branch<u64>>)>> {
        // A panic leaves whole entries behind.
        self.upper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeSource for ProofSource<'_> {
    type Stamp = u64;

    fn load(&self, path: &Nibbles, link: &BranchLink<u64>) -> Result<Arc<Branch<u64>>, StateError> {
        if path.len() > UPPER_DEPTH {
            return self.rows.load(path, link);
        }
        let is_same = |at: &Nibbles, branch: &Branch<u64>| {
            (at, branch.stamp(), branch.reference()) == (path, link.stamp(), link.reference())
        };
        let found = self.upper().iter().find(|(at, branch)| is_same(at, branch)).cloned();
        if let Some((_, branch)) = found {
            return Ok(branch);
        }
        let branch = self.rows.load(path, link)?;
        self.upper().push((*path, branch.clone()));
        Ok(branch)
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<NodeLink<u64>, StateError> {
        self.rows.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<u64>) -> bool {
        self.rows.keep(path, branch)
    }
}
