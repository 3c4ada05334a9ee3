//! Whether those who split had reason to: what a split leads to is counted.

/// A split that is not over.
#[derive(Debug)]
struct Split {
    parent: Option<SplitId>,
    /// Who split; `None` if that was in another run.
    peer: Option<usize>,
    /// Below it, not answered to the end yet.
    left: usize,
    entries: u64,
    least: u64,
}

/// A split, as long as it is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitId(usize);

/// The splits that are not over.
#[derive(Debug, Default)]
pub(crate) struct Splits {
    all: Vec<Option<Split>>,
    free: Vec<usize>,
}

impl Splits {
    /// A node was split into `below`, which an honest peer does from `least` entries on.
    pub(crate) fn begin(
        &mut self,
        parent: Option<SplitId>,
        peer: Option<usize>,
        below: usize,
        least: u64,
    ) -> SplitId {
        let split = Some(Split { parent, peer, left: below, entries: 0, least });
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

    /// Of what is below a split, one was answered with so many entries. Those who split with too few
    /// entries below, as now is known.
    pub(crate) fn answered(&mut self, split: Option<SplitId>, entries: u64) -> Vec<usize> {
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
        let mut splits = Splits::default();
        let top = splits.begin(None, Some(1), 2, 100);
        let below = splits.begin(Some(top), Some(2), 2, 100);
        assert_eq!(splits.answered(Some(top), 60), [0; 0]);
        assert_eq!(splits.answered(Some(below), 20), [0; 0]);
        // Those below it are counted at the one above, too.
        assert_eq!(splits.answered(Some(below), 21), [2]);
        let again = splits.begin(None, None, 1, 100);
        assert_eq!(splits.answered(Some(again), 1), [0; 0]);
        assert_eq!(splits.all.iter().flatten().count(), 0);
        assert!(splits.all.len() <= 2, "places are used again");
    }
}
