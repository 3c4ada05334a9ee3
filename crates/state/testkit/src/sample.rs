//! How much a long test does: by default a fixed sample, which is the same in every run; with
//! `RETRIE_LONG=1` everything (`scripts/soak/tests`).

use std::{env, panic::Location};

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

/// One in `share` of these cases. Which ones depends on the line of the caller, so that tests with the
/// same cases together see all of them.
#[track_caller]
pub fn of<T>(cases: Vec<T>, share: usize) -> Vec<T> {
    let share = share.max(1);
    let shift = share - Location::caller().line() as usize % share;
    let taken = |n: usize| takes(n + shift, share);
    cases.into_iter().enumerate().filter(|(n, _)| taken(*n)).map(|(_, case)| case).collect()
}
