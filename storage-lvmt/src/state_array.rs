//! Arrays in memory of which each state has its own content: one array, shared by all states.

use parking_lot::Mutex;
use std::{hint::black_box, mem, sync::Arc};

/// The array of one state.
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
pub(crate) struct StateArray<T>(Arc<ArrayNode<T>>);

#[derive(Debug)]
struct ArrayNode<T> {
    content: Mutex<ArrayContent<T>>,
    /// Locked by the thread that moves the array.
    moving: Arc<Mutex<()>>,
}

/// Some items, by ascending index.
type ArrayItems<T> = Vec<(u32, T)>;

#[derive(Debug)]
enum ArrayContent<T> {
    Whole(Box<[T]>),
    /// The content of another state, except for these items.
    Differs(ArrayItems<T>, StateArray<T>),
}

impl<T: Copy> ArrayContent<T> {
    fn find(&self, index: u32) -> Result<T, StateArray<T>> {
        match self {
            Self::Whole(array) => Ok(array[index as usize]),
            Self::Differs(items, from) => match items.binary_search_by_key(&index, |item| item.0) {
                Ok(at) => Ok(items[at].1),
                Err(_) => Err(from.clone()),
            },
        }
    }
}

impl<T> ArrayContent<T> {
    fn take(&mut self) -> Self {
        mem::replace(self, Self::Whole(Box::default()))
    }
}

fn swap<T>(array: &mut [T], items: &mut ArrayItems<T>) {
    items.iter_mut().for_each(|(index, item)| mem::swap(&mut array[*index as usize], item));
}

impl<T: Copy> StateArray<T> {
    pub(crate) fn new(items: Vec<T>) -> Self {
        let content = Mutex::new(ArrayContent::Whole(items.into()));
        Self(Arc::new(ArrayNode { content, moving: Arc::default() }))
    }

    /// The item at `index`, which must be within the array.
    pub(crate) fn get(&self, index: u32) -> T {
        let mut found = self.0.content.lock().find(index);
        loop {
            match found {
                Ok(item) => return item,
                Err(from) => found = from.0.content.lock().find(index),
            }
        }
    }

    /// Reads a part of the items at `indices`, so that they are in the processor's cache
    /// afterwards.
    pub(crate) fn warm(&self, indices: impl Iterator<Item = u32>, part: impl Fn(&T) -> u64) {
        if let ArrayContent::Whole(array) = &*self.0.content.lock() {
            let parts = indices.map(|index| part(&array[index as usize]));
            black_box(parts.fold(0, u64::wrapping_add));
        }
    }

    /// The array of a child state, in which `items` (by ascending index) are new.
    pub(crate) fn child(&self, mut items: ArrayItems<T>) -> Self {
        if items.is_empty() {
            return self.clone();
        }
        let moving = self.0.moving.clone();
        let alone = moving.lock();
        self.move_array_here();
        let mut here = self.0.content.lock();
        let mut array = match &mut *here {
            ArrayContent::Whole(array) => mem::take(array),
            ArrayContent::Differs(..) => unreachable!("the array is here, and `moving` is locked"),
        };
        swap(&mut array, &mut items);
        let content = Mutex::new(ArrayContent::Whole(array));
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
            if let (ArrayContent::Whole(array), ArrayContent::Differs(items, _)) =
                (&mut *from, &mut *to)
            {
                let (mut array, mut items) = (mem::take(array), mem::take(items));
                swap(&mut array, &mut items);
                *to = ArrayContent::Whole(array);
                *from = ArrayContent::Differs(items, here.clone());
            }
        }
    }

    /// Bytes of an array of `len` items.
    pub(crate) const fn bytes(len: u64) -> u64 {
        len * size_of::<T>() as u64
    }

    /// Bytes of the differences of a state in `items` items.
    pub(crate) const fn difference_bytes(items: u64) -> u64 {
        items * size_of::<(u32, T)>() as u64
    }

    /// Bytes of this state's own differences: zero if it owns the array.
    pub(crate) fn own_bytes(&self) -> u64 {
        match &*self.0.content.lock() {
            ArrayContent::Whole(_) => 0,
            ArrayContent::Differs(items, _) => size_of_val(&items[..]) as u64,
        }
    }
}

impl<T> Drop for ArrayNode<T> {
    fn drop(&mut self) {
        // Drop long chains in a loop: recursion would overflow the stack.
        let mut content = self.content.get_mut().take();
        while let ArrayContent::Differs(_, StateArray(next)) = content {
            let Some(mut next) = Arc::into_inner(next) else { break };
            content = next.content.get_mut().take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn all(array: &StateArray<u64>) -> Vec<u64> {
        (0..64).map(|index| array.get(index)).collect()
    }

    #[test]
    fn states_stay_what_they_are_wherever_the_array_goes() {
        let mut random = StdRng::seed_from_u64(3);
        let mut states = vec![(StateArray::new(vec![0; 64]), vec![0; 64])];
        for version in 1..300 {
            // Mostly on the last state, sometimes far back; some states are dropped.
            let back = if random.random_ratio(1, 4) { random.random_range(1..=20) } else { 1 };
            let at = states.len().saturating_sub(back);
            let (parent, mut values) = states[at].clone();
            let mut items = Vec::new();
            for index in 0..64 {
                if random.random_ratio(1, 9) {
                    items.push((index, version));
                    values[index as usize] = version;
                }
            }
            states.push((parent.child(items), values));
            if random.random_ratio(1, 3) {
                let gone = random.random_range(0..states.len());
                states.remove(gone);
            }
            for (array, values) in &states {
                assert_eq!(all(array), *values);
            }
        }
    }

    #[test]
    fn readers_of_old_states_see_no_move() {
        let first = StateArray::new(vec![1; 64]);
        let second = first.child((0..32).map(|index| (index, 2)).collect());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for n in 0..20_000 {
                        let of = if n % 2 == 0 { &first } else { &second };
                        drop(of.child(vec![(5, 9), (40, 9)]));
                    }
                });
            }
            for index in (0..64).cycle().take(100_000) {
                assert_eq!(first.get(index), 1);
                assert_eq!(second.get(index), if index < 32 { 2 } else { 1 });
            }
        });
    }

    #[test]
    fn a_long_chain_ends_without_recursion() {
        let first = StateArray::new(vec![1; 2]);
        let mut last = first.clone();
        for version in 0..200_000 {
            last = last.child(vec![(0, version)]);
        }
        drop(last);
        assert_eq!(first.get(0), 1);
        drop(first);
    }
}
