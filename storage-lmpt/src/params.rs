//! When a block is a boundary. The parameters are fixed when a datadir is created, because roots
//! depend on them.

use parking_lot::Mutex;
use std::{collections::BTreeSet, fmt, str::FromStr};

/// The parameters of a store. Boundaries depend only on them and on the content of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmptParams {
    /// Most blocks of a delta, at least 1.
    pub interval: u64,
    /// If a delta has this number of keys, at least 1, it gets no blocks beyond `least`. It bounds
    /// memory: a delta has more keys only if they come within `least` blocks.
    pub keys: u64,
    /// The number of blocks of a delta, at least 1, before which its keys do not count. If it is
    /// twice the retention, rows of a merge can be written ahead during the second half.
    pub least: u64,
}

impl Default for LmptParams {
    /// The paper's interval, and twice the default retention.
    fn default() -> Self {
        Self { interval: 1000, keys: 1 << 19, least: 256 }
    }
}

/// A parameter outside of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter `{name}` of lmpt is 0, it must be at least 1")]
pub struct ParamsError {
    /// The name of the parameter.
    pub name: &'static str,
}

/// A text that is no encoding of [`LmptParams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are no parameters of lmpt")]
pub struct UnknownParams;

impl LmptParams {
    /// The same parameters, if each is in its range.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub const fn checked(self) -> Result<Self, ParamsError> {
        let name = match self {
            Self { interval: 0, .. } => "merge-interval",
            Self { keys: 0, .. } => "merge-keys",
            Self { least: 0, .. } => "merge-least",
            _ => return Ok(self),
        };
        Err(ParamsError { name })
    }

    /// Whether the next block is a boundary, if the delta has `blocks` blocks and `keys` keys.
    pub(crate) const fn is_boundary(&self, blocks: u64, keys: u64) -> bool {
        blocks >= self.interval || (keys >= self.keys && blocks >= self.least)
    }

    /// The text that datadirs are stamped with. Proofs are not stamped: a root determines all that
    /// they depend on.
    pub(crate) fn stamp(&self) -> &'static str {
        // A stamp is never freed, and there are few.
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

impl fmt::Display for LmptParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interval, keys, least } = self;
        write!(f, "interval={interval},keys={keys},least={least}")
    }
}

impl FromStr for LmptParams {
    type Err = UnknownParams;

    /// Parses the text of `Display`, and no other text.
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
        let params = LmptParams { interval: 7, keys: 9, least: 1 };
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
            assert_eq!(wrong.parse::<LmptParams>(), Err(UnknownParams), "{wrong}");
        }
        let none = LmptParams { least: 0, ..params };
        assert_eq!(none.checked(), Err(ParamsError { name: "merge-least" }));
    }

    #[test]
    fn a_boundary_comes_after_an_interval_or_with_many_keys_when_it_may() {
        let params = LmptParams { interval: 10, keys: 100, least: 4 };
        let boundaries = [(9, 99), (10, 0), (3, 1_000), (4, 99), (4, 100), (9, 100)]
            .map(|(blocks, keys)| params.is_boundary(blocks, keys));
        assert_eq!(boundaries, [false, true, false, false, true, true]);
        let larger = LmptParams { least: 20, ..params };
        assert!(larger.is_boundary(10, 0) && !larger.is_boundary(9, 1_000));
    }
}
