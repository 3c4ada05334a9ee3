//! The second level in memory: one array for all states.

use crate::record::Amt;
use parking_lot::Mutex;
use std::{hint::black_box, mem, sync::Arc};

/// Sub-AMTs by their entry in the root AMT, as one state has them.
///
/// Of all states that lead to one another the one made last has the array, and each of the others
/// what differs from one of them (Baker, *Shallow binding makes functional arrays fast*, 1991). So a
/// block costs what it changes, and so does whoever keeps its state. To go on from a state that has
/// not the array brings it there, back over the blocks between.
///
/// What a state has never changes, whichever leads to which: a reader holds one lock at a time, and
/// where a step is turned round while he is on his way, both sides of it agree on what he looks for.
#[derive(Clone, Debug)]
pub(crate) struct Second(Arc<Node>);

#[derive(Debug)]
struct Node {
    content: Mutex<Content>,
    /// Held by whoever moves the array.
    moving: Arc<Mutex<()>>,
}

/// Some sub-AMTs, by ascending entry.
type Items = Vec<(u16, Amt)>;

#[derive(Debug)]
enum Content {
    Whole(Box<[Amt]>),
    /// As another state, but for these.
    Differs(Items, Second),
}

impl Content {
    fn find(&self, entry: u16) -> Result<Amt, Second> {
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

fn swap(amts: &mut [Amt], items: &mut Items) {
    items.iter_mut().for_each(|(entry, amt)| mem::swap(&mut amts[usize::from(*entry)], amt));
}

impl Second {
    pub(crate) fn new(amts: Vec<Amt>) -> Self {
        let content = Mutex::new(Content::Whole(amts.into()));
        Self(Arc::new(Node { content, moving: Arc::default() }))
    }

    /// The sub-AMT below an entry of the root AMT.
    pub(crate) fn get(&self, entry: u16) -> Amt {
        let mut found = self.0.content.lock().find(entry);
        loop {
            match found {
                Ok(amt) => return amt,
                Err(from) => found = from.0.content.lock().find(entry),
            }
        }
    }

    /// Reads what lies below these entries, so that whoever gets it does not wait.
    pub(crate) fn warm(&self, entries: impl Iterator<Item = u16>) {
        if let Content::Whole(amts) = &*self.0.content.lock() {
            let versions = entries.map(|entry| amts[usize::from(entry)].version);
            black_box(versions.fold(0, u64::wrapping_add));
        }
    }

    /// That of a child, in which these are new, by ascending entry.
    pub(crate) fn child(&self, mut items: Items) -> Self {
        let moving = self.0.moving.clone();
        let alone = moving.lock();
        self.bring();
        let mut here = self.0.content.lock();
        let mut amts = match &mut *here {
            Content::Whole(amts) => mem::take(amts),
            Content::Differs(..) => unreachable!("the array was brought here, and nobody moves it"),
        };
        swap(&mut amts, &mut items);
        let content = Mutex::new(Content::Whole(amts));
        let child = Self(Arc::new(Node { content, moving: moving.clone() }));
        *here = Content::Differs(items, child.clone());
        drop(alone);
        child
    }

    /// Brings the array here. Nobody else may move it meanwhile.
    fn bring(&self) {
        let mut way = vec![self.clone()];
        while let Some(last) = way.last() {
            let next = match &*last.0.content.lock() {
                Content::Whole(_) => break,
                Content::Differs(_, next) => next.clone(),
            };
            way.push(next);
        }
        while let Some(there) = way.pop()
            && let Some(here) = way.last()
        {
            // Who else holds two locks moves the array, too.
            let (mut from, mut to) = (there.0.content.lock(), here.0.content.lock());
            if let (Content::Whole(amts), Content::Differs(items, _)) = (&mut *from, &mut *to) {
                let (mut amts, mut items) = (mem::take(amts), mem::take(items));
                swap(&mut amts, &mut items);
                *to = Content::Whole(amts);
                *from = Content::Differs(items, here.clone());
            }
        }
    }

    /// Bytes of one for `entries` entries, and of what each state keeps of its own at most.
    pub(crate) const fn bytes(entries: u64) -> (u64, u64) {
        (entries * size_of::<Amt>() as u64, entries * size_of::<(u16, Amt)>() as u64)
    }

    /// Bytes of what this state has of its own: next to nothing if it has the array, which all share.
    pub(crate) fn own_bytes(&self) -> u64 {
        match &*self.0.content.lock() {
            Content::Whole(_) => 0,
            Content::Differs(items, _) => size_of_val(&items[..]) as u64,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A long chain must not unwind by recursion.
        let mut content = self.content.get_mut().take();
        while let Content::Differs(_, Second(next)) = content {
            let Some(mut next) = Arc::into_inner(next) else { break };
            content = next.content.get_mut().take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Position;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn amt(version: u64) -> Amt {
        Amt { version, position: Position { block: version, leaf: 1 }, ..Amt::NONE }
    }

    /// Versions of all entries.
    fn all(second: &Second) -> Vec<u64> {
        (0..64).map(|entry| second.get(entry).version).collect()
    }

    #[test]
    fn states_stay_what_they_are_wherever_the_array_goes() {
        let mut random = StdRng::seed_from_u64(3);
        let mut states = vec![(Second::new(vec![Amt::NONE; 64]), vec![0; 64])];
        for version in 1..300 {
            // Mostly on the last one, at times far back; some are given up.
            let back = if random.random_ratio(1, 4) { random.random_range(1..=20) } else { 1 };
            let at = states.len().saturating_sub(back);
            let (parent, mut values) = states[at].clone();
            let mut items: Vec<(u16, Amt)> = Vec::new();
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
        let first = Second::new(vec![amt(1); 64]);
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
        let first = Second::new(vec![amt(1); 2]);
        let mut last = first.clone();
        for version in 0..200_000 {
            last = last.child(vec![(0, amt(version))]);
        }
        drop(last);
        assert_eq!(first.get(0).version, 1);
        drop(first);
    }
}
