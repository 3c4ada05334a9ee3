//! Several runs into one.

use super::{
    Cursor, Run, RunBuilder, RunInfo,
    build::{PAUSE_EVERY, Pause},
};
use retrie_state::StateError;
use std::sync::Arc;

/// What a merge drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cutoff {
    /// Of a key's pairs at or before this block only the newest stays.
    pub(crate) block: u64,
    /// No older run is left: a deletion that the newest pair is need not stay either.
    pub(crate) is_deepest: bool,
}

/// Merges `inputs`, no two of which have the same pair, into `out`. With a `cutoff` old pairs are
/// dropped; `None` if none is left. `pause` is called every thousand pairs or so; an error of it
/// ends the merge without a trace.
pub(crate) fn merge(
    inputs: &[Arc<Run>],
    cutoff: Option<Cutoff>,
    mut out: RunBuilder,
    pause: Pause<'_>,
) -> Result<Option<RunInfo>, StateError> {
    let mut queue = Queue::default();
    for run in inputs {
        queue.add(run.cursor_from_start())?;
    }
    let (mut read, mut held) = (0u64, Held::default());
    while let Some(first) = queue.first() {
        if read.is_multiple_of(PAUSE_EVERY) {
            pause()?;
        }
        read += 1;
        let pair = first.pair();
        match cutoff {
            None => out.push(pair.key, pair.block, pair.value, None)?,
            Some(cutoff) => {
                let is_old = pair.block <= cutoff.block;
                if held.is_some && !(is_old && held.key == pair.key) {
                    held.release(cutoff, &mut out)?;
                }
                if is_old {
                    held.hold(pair.key, pair.block, pair.value);
                } else {
                    out.push(pair.key, pair.block, pair.value, None)?;
                }
            }
        }
        queue.advance()?;
    }
    if let Some(cutoff) = cutoff {
        held.release(cutoff, &mut out)?;
    }
    if out.pairs() == 0 {
        return Ok(None);
    }
    out.finish_pausing(pause).map(Some)
}

/// The newest pair of a key up to the cutoff so far.
#[derive(Default)]
struct Held {
    is_some: bool,
    key: Vec<u8>,
    block: u64,
    value: Vec<u8>,
    present: bool,
}

impl Held {
    fn hold(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.value.clear();
        self.value.extend_from_slice(value.unwrap_or_default());
        (self.is_some, self.block, self.present) = (true, block, value.is_some());
    }

    fn release(&mut self, cutoff: Cutoff, out: &mut RunBuilder) -> Result<(), StateError> {
        let stays = self.is_some && (self.present || !cutoff.is_deepest);
        self.is_some = false;
        match stays {
            true => out.push(&self.key, self.block, self.present.then_some(&*self.value), None),
            false => Ok(()),
        }
    }
}

/// Cursors in the order of their pairs.
#[derive(Default)]
struct Queue<'a> {
    cursors: Vec<Cursor<'a>>,
    /// Those that have a pair, the lowest last.
    order: Vec<usize>,
}

impl<'a> Queue<'a> {
    fn add(&mut self, cursor: Cursor<'a>) -> Result<(), StateError> {
        self.cursors.push(cursor);
        self.step(self.cursors.len() - 1)
    }

    fn first(&self) -> Option<&Cursor<'a>> {
        self.order.last().map(|at| &self.cursors[*at])
    }

    /// Goes on behind the first pair.
    fn advance(&mut self) -> Result<(), StateError> {
        match self.order.pop() {
            Some(at) => self.step(at),
            None => Ok(()),
        }
    }

    fn step(&mut self, at: usize) -> Result<(), StateError> {
        if self.cursors[at].advance()? {
            let key = |at: usize| {
                let pair = self.cursors[at].pair();
                (pair.key, pair.block)
            };
            let new = key(at);
            let place = self.order.partition_point(|other| key(*other) > new);
            self.order.insert(place, at);
        }
        Ok(())
    }
}
