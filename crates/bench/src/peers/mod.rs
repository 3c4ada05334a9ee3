//! Stores that are not ours, raced for comparison. They are built with the feature `peers` only.

#[cfg(feature = "peers")]
mod firewood;

use crate::state::Entrant;

/// Names of all peers, built or not.
pub const NAMES: [&str; 1] = ["firewood-ethhash"];

/// The peer called `name`; `None` if there is none, or this program was built without it.
pub fn entrant(name: &str) -> Option<Box<dyn Entrant>> {
    #[cfg(feature = "peers")]
    if name == NAMES[0] {
        return Some(Box::new(firewood::Firewood));
    }
    let _ = name;
    None
}
