//! Stores that are not ours, raced for comparison. They are built with the feature `peers` only.

#[cfg(feature = "peers")]
mod firewood;
#[cfg(feature = "peers")]
mod nomt;

use crate::state::Entrant;

/// Names of all peers, built or not.
pub const NAMES: [&str; 2] = [FIREWOOD, NOMT];
const FIREWOOD: &str = "firewood-ethhash";
const NOMT: &str = "nomt";

/// The peer called `name`; `None` if there is none, or this program was built without it.
pub fn entrant(name: &str) -> Option<Box<dyn Entrant>> {
    match name {
        #[cfg(feature = "peers")]
        FIREWOOD => Some(Box::new(firewood::Firewood)),
        #[cfg(feature = "peers")]
        NOMT => Some(Box::new(nomt::Nomt)),
        _ => None,
    }
}
