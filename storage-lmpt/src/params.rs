//! When there is a boundary: settled when a datadir is made, as roots depend on it.

use parking_lot::Mutex;
use std::{collections::BTreeSet, fmt, str::FromStr};

/// The parameters of a store. What they decide depends on the chain's content alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Most blocks of a delta, at least 1.
    pub interval: u64,
    /// Keys of a delta after which it takes no more blocks than `least`, at least 1. A bound on
    /// memory: a delta may have more keys if so many come within that many blocks.
    pub keys: u64,
    /// Blocks of a delta before which its keys do not count, at least 1. Twice the retention leaves
    /// a merge the second half to be settled in.
    pub least: u64,
}

impl Default for Params {
    /// The paper's interval; twice the default retention.
    fn default() -> Self {
        Self { interval: 1000, keys: 1 << 19, least: 256 }
    }
}

/// A parameter outside of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter `{name}` of lmpt is 0, it must be at least 1")]
pub struct ParamsError {
    /// Its name.
    pub name: &'static str,
}

/// Text that is no [`Params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are no parameters of lmpt")]
pub struct UnknownParams;

impl Params {
    /// The same, if every parameter is in its range.
    ///
    /// # Errors
    /// The first one that is not.
    pub const fn checked(self) -> Result<Self, ParamsError> {
        let name = match self {
            Self { interval: 0, .. } => "merge-interval",
            Self { keys: 0, .. } => "merge-keys",
            Self { least: 0, .. } => "merge-least",
            _ => return Ok(self),
        };
        Err(ParamsError { name })
    }

    /// Whether the block comes with a new delta, if the delta before it has `blocks` blocks and `keys`
    /// keys.
    pub(crate) const fn is_boundary(&self, blocks: u64, keys: u64) -> bool {
        blocks >= self.interval || (keys >= self.keys && blocks >= self.least)
    }

    /// What datadirs are stamped with. Proofs are not: a root says all that they depend on.
    pub(crate) fn stamp(&self) -> &'static str {
        // Stamps live as long as the program, and there are few.
        static STAMPS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let stamp = self.to_string();
        let mut known = STAMPS.lock();
        if let Some(known) = known.get(&*stamp) {
            return known;
        }
        let stamp = Box::leak(stamp.into_boxed_str());
        known.insert(stamp);
        stamp
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interval, keys, least } = self;
        write!(f, "interval={interval},keys={keys},least={least}")
    }
}

impl FromStr for Params {
    type Err = UnknownParams;

    /// Reads the text back that it displays as, and no other.
    fn from_str(text: &str) -> Result<Self, UnknownParams> {
        let mut parts = text.split(',');
        let mut number = |name: &str| {
            let (found, number) = parts.next()?.split_once('=')?;
            number.parse::<u64>().ok().filter(|_| found == name)
        };
        let read = number("interval").zip(number("keys")).zip(number("least"));
        let params = read.map(|((interval, keys), least)| Self { interval, keys, least });
        let params = params.and_then(|params| params.checked().ok());
        params.filter(|params| params.to_string() == text).ok_or(UnknownParams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_read_back_and_nothing_else_does() {
        let params = Params { interval: 7, keys: 9, least: 1 };
        assert_eq!(params.to_string().parse(), Ok(params));
        assert_eq!(params.stamp(), "interval=7,keys=9,least=1");
        assert!(std::ptr::eq(params.stamp(), params.stamp()));
        for wrong in [
            "",
            "interval=7",
            "interval=7,keys=9",
            "interval=07,keys=9,least=1",
            "interval=0,keys=9,least=1",
            "interval=7,keys=9,least=1,",
            "keys=9,interval=7,least=1",
        ] {
            assert_eq!(wrong.parse::<Params>(), Err(UnknownParams), "{wrong}");
        }
        let none = Params { least: 0, ..params };
        assert_eq!(none.checked(), Err(ParamsError { name: "merge-least" }));
    }

    #[test]
    fn a_boundary_comes_after_an_interval_or_with_many_keys_when_it_may() {
        let params = Params { interval: 10, keys: 100, least: 4 };
        let boundaries = [(9, 99), (10, 0), (3, 1_000), (4, 99), (4, 100), (9, 100)]
            .map(|(blocks, keys)| params.is_boundary(blocks, keys));
        assert_eq!(boundaries, [false, true, false, false, true, true]);
        let larger = Params { least: 20, ..params };
        assert!(larger.is_boundary(10, 0) && !larger.is_boundary(9, 1_000));
    }
}
