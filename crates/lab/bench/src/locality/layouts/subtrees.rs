//! P: the size of the subtrees into which DupTree++ and `blocked` cut a tree.

use std::{fmt, str::FromStr};

/// P of DupTree++ (section 4.1.2): the number of leaves of each subtree, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubtreeLeaves {
    /// log2 P: levels of a subtree, without its root.
    levels: u32,
}

/// log2 of the largest P.
pub(super) const MAX_LEVELS: u32 = 12;

impl SubtreeLeaves {
    /// 32: log n as a power of two, for 2^17 to 2^32 leaves (section 5.1.1).
    pub const DEFAULT: Self = Self { levels: 5 };

    /// P.
    pub const fn count(self) -> u64 {
        1 << self.levels
    }

    /// log2 P.
    pub(in crate::locality) const fn levels(self) -> u32 {
        self.levels
    }

    /// The layers of log P levels, from the top of a tree of `height`: the height of the lowest
    /// level of each, and the height above its highest level. The topmost layer has the remaining
    /// levels.
    pub(super) fn layers(self, height: u32) -> impl Iterator<Item = (u32, u32)> {
        let levels = self.levels;
        let count = height.div_ceil(levels);
        (0..count).rev().map(move |layer| (layer * levels, ((layer + 1) * levels).min(height)))
    }

    /// All of them.
    #[cfg(test)]
    pub(in crate::locality) fn all() -> impl Iterator<Item = Self> {
        (1..=MAX_LEVELS).map(|levels| Self { levels })
    }

    /// Its place among all P, from 0.
    pub(super) const fn index(self) -> usize {
        self.levels as usize - 1
    }

    /// The value at this [`index`](Self::index).
    pub(super) const fn at(index: usize) -> Self {
        Self { levels: index as u32 + 1 }
    }
}

impl fmt::Display for SubtreeLeaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count())
    }
}

/// P is not a power of two, or too small or large.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("P is a power of two from 2 to {most}, and not `{0}`", most = 1 << MAX_LEVELS)]
pub struct WrongSubtreeLeaves(String);

impl FromStr for SubtreeLeaves {
    type Err = WrongSubtreeLeaves;

    fn from_str(text: &str) -> Result<Self, WrongSubtreeLeaves> {
        let levels = text.parse().ok().filter(|p: &u64| p.is_power_of_two()).map(u64::ilog2);
        let levels = levels.filter(|levels| (1..=MAX_LEVELS).contains(levels));
        levels.map(|levels| Self { levels }).ok_or_else(|| WrongSubtreeLeaves(text.into()))
    }
}
