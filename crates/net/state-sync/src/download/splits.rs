//! Checks that a peer splits a part of the state only if the part is large: counts the entries that
//! are found below each split.

/// A split whose children are not all answered.
#[derive(Debug)]
struct OpenSplit {
    parent: Option<SplitId>,
    /// The peer that split; `None` if that was before a restart.
    peer: Option<usize>,
    /// Children that are not fully answered yet.
    left: usize,
    entries: u64,
    least: u64,
}

/// Id of a split that is not finished. Ids are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitId(usize);

/// All splits that are not finished.
#[derive(Debug, Default)]
pub(super) struct SplitLedger {
    all: Vec<Option<OpenSplit>>,
    free: Vec<usize>,
}

impl SplitLedger {
    /// Records that a node was split into `below` children. An honest peer splits only from `least`
    /// entries on.
    pub(super) fn begin(
        &mut self,
        parent: Option<SplitId>,
        peer: Option<usize>,
        below: usize,
        least: u64,
    ) -> SplitId {
        let split = Some(OpenSplit { parent, peer, left: below, entries: 0, least });
        let at = match self.free.pop() {
            Some(at) => {
                self.all[at] = split;
                at
            }
            None => {
                self.all.push(split);
                self.all.len() - 1
            }
        };
        SplitId(at)
    }

    /// Records that one child of a split was answered with `entries` entries. Returns the peers
    /// that are now known to have split with fewer entries than the minimum.
    pub(super) fn answered(&mut self, split: Option<SplitId>, entries: u64) -> Vec<usize> {
        let (mut next, mut entries, mut liars) = (split, entries, Vec::new());
        while let Some(SplitId(at)) = next {
            let Some(split) = self.all.get_mut(at).and_then(Option::as_mut) else { break };
            split.entries = split.entries.saturating_add(entries);
            split.left = split.left.saturating_sub(1);
            if split.left > 0 {
                break;
            }
            if split.entries < split.least {
                liars.extend(split.peer);
            }
            entries = split.entries;
            next = split.parent;
            self.all[at] = None;
            self.free.push(at);
        }
        liars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_splits_too_little_is_found() {
        let mut splits = SplitLedger::default();
        let top = splits.begin(None, Some(1), 2, 100);
        let below = splits.begin(Some(top), Some(2), 2, 100);
        assert_eq!(splits.answered(Some(top), 60), [0; 0]);
        assert_eq!(splits.answered(Some(below), 20), [0; 0]);
        // The entries below an inner split count for the outer one, too.
        assert_eq!(splits.answered(Some(below), 21), [2]);
        let again = splits.begin(None, None, 1, 100);
        assert_eq!(splits.answered(Some(again), 1), [0; 0]);
        assert_eq!(splits.all.iter().flatten().count(), 0);
        assert!(splits.all.len() <= 2, "places are used again");
    }
}
