//! Counts of what a backend's caches found and what they did not.

use std::{
    ops::{Add, Sub},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Lookups in the caches of a backend, or in the rows that the framework holds in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLookups {
    /// Lookups that found what they wanted in memory.
    pub hits: u64,
    /// Lookups that had to read it.
    pub misses: u64,
}

impl CacheLookups {
    /// The share of hits, 0 to 1; `None` without lookups.
    pub fn hit_rate(self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

impl Sub for CacheLookups {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { hits: self.hits - earlier.hits, misses: self.misses - earlier.misses }
    }
}

impl Add for CacheLookups {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { hits: self.hits + more.hits, misses: self.misses + more.misses }
    }
}

/// Stripes of a counter.
const STRIPES: usize = 16;

/// Counts lookups from any number of threads. Threads that look up different things mostly count in
/// different cache lines of the processor.
#[derive(Debug, Default)]
pub struct LookupCounter([LookupStripe; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct LookupStripe {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl LookupCounter {
    /// Counts a hit. `spread` is any number that differs between the things looked up, such as a byte
    /// of a hash.
    pub fn hit(&self, spread: u8) {
        self.stripe(spread).hits.fetch_add(1, Relaxed);
    }

    /// Counts a miss.
    pub fn miss(&self, spread: u8) {
        self.stripe(spread).misses.fetch_add(1, Relaxed);
    }

    /// The counts so far.
    pub fn lookups(&self) -> CacheLookups {
        let of = |stripe: &LookupStripe| CacheLookups {
            hits: stripe.hits.load(Relaxed),
            misses: stripe.misses.load(Relaxed),
        };
        self.0.iter().map(of).fold(CacheLookups::default(), Add::add)
    }

    const fn stripe(&self, spread: u8) -> &LookupStripe {
        &self.0[spread as usize % STRIPES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_all_stripes_are_counted_and_a_rate_needs_one() {
        let counter = LookupCounter::default();
        assert_eq!(counter.lookups().hit_rate(), None);
        (0..=255).for_each(|spread| counter.hit(spread));
        (0..64).for_each(|spread| counter.miss(spread));
        let lookups = counter.lookups();
        assert_eq!(lookups, CacheLookups { hits: 256, misses: 64 });
        assert_eq!(lookups.hit_rate(), Some(0.8));
        let earlier = CacheLookups { hits: 6, misses: 4 };
        assert_eq!((lookups - earlier) + earlier, lookups);
    }
}
