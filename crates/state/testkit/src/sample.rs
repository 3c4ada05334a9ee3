//! How much a long test does: by default a fixed sample, which is the same in every run; with
//! `RETRIE_LONG=1` everything (`scripts/soak/tests`).

use std::env;

/// Whether long tests do everything.
pub fn is_everything() -> bool {
    env::var("RETRIE_LONG").is_ok_and(|value| value == "1")
}

/// `sample` by default, `everything` with `RETRIE_LONG=1`.
pub fn or_all<T>(sample: T, everything: T) -> T {
    if is_everything() { everything } else { sample }
}

/// Whether case `n` belongs to the sample of one case in `share`.
pub fn takes(n: usize, share: usize) -> bool {
    is_everything() || n.is_multiple_of(share.max(1))
}
