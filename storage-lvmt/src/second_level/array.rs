//! The second level in memory: one array, shared by all states.

use crate::record::SubAmt;
use parking_lot::Mutex;
use std::{hint::black_box, mem, sync::Arc};

/// The sub-AMTs of one state, by their entry in the root AMT.
///
/// Among the states that descend from each other, the newest one owns the array, and each other
/// state holds its differences from a neighbour (Baker, *Shallow binding makes functional arrays
/// fast*, 1991). So a block costs only its changes, and so does keeping its state. A block on a
/// state that does not own the array first moves the array there, over the blocks in between.
///
/// The content of a state never changes, in whichever direction the differences point. A reader
/// holds one lock at a time. If another thread turns a difference around meanwhile, both sides of
/// it give the reader the same value.
#[derive(Clone, Debug)]
pub(crate) struct LevelArray(Arc<ArrayNode>);

#[derive(Debug)]
struct ArrayNode {
    content: Mutex<ArrayContent>,
    /// Locked by the thread that moves the array.
    moving: Arc<Mutex<()>>,
}

/// Some sub-AMTs, by ascending entry.
type AmtItems = Vec<(u16, SubAmt)>;

#[derive(Debug)]
enum ArrayContent {
    Whole(Box<[SubAmt]>),
    /// The content of another state, except for these items.
    Differs(AmtItems, LevelArray),
}

impl ArrayContent {
    fn find(&self, entry: u16) -> Result<SubAmt, LevelArray> {
        match self {
            Self::Whole(amts) => Ok(amts[usize::from(entry)]),
            Self::Differs(items, from) => match items.binary_search_by_key(&entry, |item| item.0) {
                Ok(at) => Ok(items[at].1),
                Err(_) => Err(from.clone()),
            },
        }
    }

    fn take(&mut self) -> Self {
        mem::replace(self, Self::Whole(Box::default()))
    }
}

fn swap(amts: &mut [SubAmt], items: &mut AmtItems) {
    items.iter_mut().for_each(|(entry, amt)| mem::swap(&mut amts[usize::from(*entry)], amt));
}

impl LevelArray {
    pub(crate) fn new(amts: Vec<SubAmt>) -> Self {
        let content = Mutex::new(ArrayContent::Whole(amts.into()));
        Self(Arc::new(ArrayNode { content, moving: Arc::default() }))
    }

    /// The sub-AMT below an entry of the root AMT.
    pub(crate) fn get(&self, entry: u16) -> SubAmt {
        let mut found = self.0.content.lock().find(entry);
        loop {
            match found {
                Ok(amt) => return amt,
                Err(from) => found = from.0.content.lock().find(entry),
            }
        }
    }

    /// Reads the sub-AMTs below these entries, so that they are in the processor's cache
    /// afterwards.
    pub(crate) fn warm(&self, entries: impl Iterator<Item = u16>) {
        if let ArrayContent::Whole(amts) = &*self.0.content.lock() {
            let versions = entries.map(|entry| amts[usize::from(entry)].version);
            black_box(versions.fold(0, u64::wrapping_add));
        }
    }

    /// The array of a child state, in which `items` (by ascending entry) are new.
    pub(crate) fn child(&self, mut items: AmtItems) -> Self {
        let moving = self.0.moving.clone();
        let alone = moving.lock();
        self.move_array_here();
        let mut here = self.0.content.lock();
        let mut amts = match &mut *here {
            ArrayContent::Whole(amts) => mem::take(amts),
            ArrayContent::Differs(..) => unreachable!("the array is here, and `moving` is locked"),
        };
        swap(&mut amts, &mut items);
        let content = Mutex::new(ArrayContent::Whole(amts));
        let child = Self(Arc::new(ArrayNode { content, moving: moving.clone() }));
        *here = ArrayContent::Differs(items, child.clone());
        drop(alone);
        child
    }

    /// Moves the array here. The caller holds the lock `moving`.
    fn move_array_here(&self) {
        let mut way = vec![self.clone()];
        while let Some(last) = way.last() {
            let next = match &*last.0.content.lock() {
                ArrayContent::Whole(_) => break,
                ArrayContent::Differs(_, next) => next.clone(),
            };
            way.push(next);
        }
        while let Some(there) = way.pop()
            && let Some(here) = way.last()
        {
            // Only the thread that moves the array holds two locks.
            let (mut from, mut to) = (there.0.content.lock(), here.0.content.lock());
            if let (ArrayContent::Whole(amts), ArrayContent::Differs(items, _)) =
                (&mut *from, &mut *to)
            {
                let (mut amts, mut items) = (mem::take(amts), mem::take(items));
                swap(&mut amts, &mut items);
                *to = ArrayContent::Whole(amts);
                *from = ArrayContent::Differs(items, here.clone());
            }
        }
    }

    /// Bytes of an array of `entries` entries, and at most of each state's own differences.
    pub(crate) const fn bytes(entries: u64) -> (u64, u64) {
        (entries * size_of::<SubAmt>() as u64, entries * size_of::<(u16, SubAmt)>() as u64)
    }

    /// Bytes of this state's own differences: zero if it owns the array.
    pub(crate) fn own_bytes(&self) -> u64 {
        match &*self.0.content.lock() {
            ArrayContent::Whole(_) => 0,
            ArrayContent::Differs(items, _) => size_of_val(&items[..]) as u64,
        }
    }
}

impl Drop for ArrayNode {
    fn drop(&mut self) {
        // Drop long chains in a loop: recursion would overflow the stack.
        let mut content = self.content.get_mut().take();
        while let ArrayContent::Differs(_, LevelArray(next)) = content {
            let Some(mut next) = Arc::into_inner(next) else { break };
            content = next.content.get_mut().take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TuplePosition;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn amt(version: u64) -> SubAmt {
        SubAmt { version, position: TuplePosition { block: version, leaf: 1 }, ..SubAmt::NONE }
    }

    /// Versions of all entries.
    fn all(second: &LevelArray) -> Vec<u64> {
        (0..64).map(|entry| second.get(entry).version).collect()
    }

    #[test]
    fn states_stay_what_they_are_wherever_the_array_goes() {
        let mut random = StdRng::seed_from_u64(3);
        let mut states = vec![(LevelArray::new(vec![SubAmt::NONE; 64]), vec![0; 64])];
        for version in 1..300 {
            // Mostly on the last state, sometimes far back; some states are dropped.
            let back = if random.random_ratio(1, 4) { random.random_range(1..=20) } else { 1 };
            let at = states.len().saturating_sub(back);
            let (parent, mut values) = states[at].clone();
            let mut items: Vec<(u16, SubAmt)> = Vec::new();
            for entry in 0..64 {
                if random.random_ratio(1, 9) {
                    items.push((entry, amt(version)));
                    values[usize::from(entry)] = version;
                }
            }
            states.push((parent.child(items), values));
            if random.random_ratio(1, 3) {
                let gone = random.random_range(0..states.len());
                states.remove(gone);
            }
            for (second, values) in &states {
                assert_eq!(all(second), *values);
            }
        }
    }

    #[test]
    fn readers_of_old_states_see_no_move() {
        let first = LevelArray::new(vec![amt(1); 64]);
        let second = first.child((0..32).map(|entry| (entry, amt(2))).collect());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for n in 0..20_000 {
                        let of = if n % 2 == 0 { &first } else { &second };
                        drop(of.child(vec![(5, amt(9)), (40, amt(9))]));
                    }
                });
            }
            for entry in (0..64).cycle().take(100_000) {
                assert_eq!(first.get(entry).version, 1);
                assert_eq!(second.get(entry).version, if entry < 32 { 2 } else { 1 });
            }
        });
    }

    #[test]
    fn a_long_chain_ends_without_recursion() {
        let first = LevelArray::new(vec![amt(1); 2]);
        let mut last = first.clone();
        for version in 0..200_000 {
            last = last.child(vec![(0, amt(version))]);
        }
        drop(last);
        assert_eq!(first.get(0).version, 1);
        drop(first);
    }
}
