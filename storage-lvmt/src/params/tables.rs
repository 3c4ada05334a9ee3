//! The prover's parameters: tables of points, in memory or mapped from a file.

use super::{ParamsError, VerifierParams};
use crate::{amt::SLOTS, point::Point};
use alloy_primitives::B256;
use memmap2::Mmap;
use std::{
    fmt,
    ops::{ControlFlow, Range},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use zerocopy::FromBytes;

/// A step of long work on parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading and checking the powers of a ceremony.
    Powers,
    /// Points for updating commitments.
    Commitments,
    /// Points for updating quotients.
    Quotients,
}

/// Hears how far long work is: phase, steps done, steps in all; and may stop it.
pub type Progress<'a> = &'a (dyn Fn(Phase, u64, u64) -> ControlFlow<()> + Sync);

/// All public parameters of AMTs of one height h, with n = 2^h entries.
pub struct Params {
    verifier: VerifierParams,
    insecure: bool,
    /// `[entry][slot]`.
    increments: Table,
    /// `[entry][slot][depth]`: an update needs all depths of one slot, which so lie side by side.
    quotients: Option<Table>,
}

/// Counts the steps of a phase, on any thread.
pub(super) struct Meter<'a> {
    progress: Progress<'a>,
    phase: Phase,
    done: AtomicU64,
    total: u64,
}

impl<'a> Meter<'a> {
    pub(super) fn new(progress: Progress<'a>, phase: Phase, total: usize) -> Self {
        Self { progress, phase, done: AtomicU64::new(0), total: total as u64 }
    }

    /// So many steps more are done.
    pub(super) fn add(&self, steps: usize) -> Result<(), ParamsError> {
        let done = self.done.fetch_add(steps as u64, Ordering::Relaxed) + steps as u64;
        match (self.progress)(self.phase, done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ParamsError::Stopped),
        }
    }
}

impl Params {
    /// The verifier's part.
    pub fn verifier(&self) -> &VerifierParams {
        &self.verifier
    }

    /// The height h.
    pub fn height(&self) -> u8 {
        self.verifier.height()
    }

    /// Names the parameters: the verifier's [digest](VerifierParams::digest).
    pub fn digest(&self) -> B256 {
        self.verifier.digest()
    }

    /// Are these the development parameters, whose tau everybody knows?
    pub fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// What the commitment grows by when the version in `slot` of `entry` grows by one:
    /// 2^(40 slot) \[I_e(tau)\], where I_e is one at x_e and zero at all other domain points.
    ///
    /// # Panics
    /// If there is no such entry or slot.
    #[inline]
    pub fn increment(&self, entry: u32, slot: usize) -> &Point {
        assert!(slot < SLOTS);
        &self.increments.points()[entry as usize * SLOTS + slot]
    }

    /// Are there points for updating quotients? Without them there are no proofs.
    pub fn has_quotients(&self) -> bool {
        self.quotients.is_some()
    }

    /// What the quotient of node (`depth`, entry >> (h - depth)) grows by when the version in
    /// `slot` of `entry` grows by one.
    ///
    /// # Panics
    /// If there is no such depth, entry or slot, or [no quotients](Self::has_quotients) at all.
    #[inline]
    pub fn quotient_increment(&self, depth: usize, entry: u32, slot: usize) -> &Point {
        &self.quotient_increments(entry, slot)[depth]
    }

    /// [`quotient_increment`](Self::quotient_increment) of all h depths, root first.
    #[inline]
    pub fn quotient_increments(&self, entry: u32, slot: usize) -> &[Point] {
        assert!(slot < SLOTS);
        let height = usize::from(self.height());
        let start = (entry as usize * SLOTS + slot) * height;
        let quotients = self.quotients.as_ref().expect("the caller has asked `has_quotients`");
        &quotients.points()[start..start + height]
    }

    /// Bytes of the tables, whether they are made in memory or mapped from a file, which takes them
    /// from the page cache: blocks and proofs read all over them.
    pub(crate) fn bytes(&self) -> u64 {
        let tables = [Some(&self.increments), self.quotients.as_ref()];
        tables.into_iter().flatten().map(|table| size_of_val(table.points()) as u64).sum()
    }

    /// Parameters over whole tables.
    pub(super) fn from_tables(
        verifier: VerifierParams,
        increments: Table,
        quotients: Option<Table>,
    ) -> Self {
        let insecure = verifier.is_insecure();
        let points = SLOTS << verifier.height();
        assert_eq!(increments.points().len(), points);
        if let Some(quotients) = &quotients {
            assert_eq!(quotients.points().len(), points * usize::from(verifier.height()));
        }
        Self { verifier, insecure, increments, quotients }
    }

    /// The tables as they are in a file.
    pub(super) fn tables(&self) -> (&[Point], Option<&[Point]>) {
        (self.increments.points(), self.quotients.as_ref().map(Table::points))
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Params")
            .field("height", &self.height())
            .field("digest", &self.digest())
            .field("insecure", &self.insecure)
            .field("quotients", &self.has_quotients())
            .finish_non_exhaustive()
    }
}

/// Many points.
pub(super) enum Table {
    /// Made in memory.
    Owned(Vec<Point>),
    /// These bytes of a file.
    Mapped(Arc<Mmap>, Range<usize>),
}

impl Table {
    #[inline]
    pub(super) fn points(&self) -> &[Point] {
        match self {
            Self::Owned(points) => points,
            Self::Mapped(map, bytes) => <[Point]>::ref_from_bytes(&map[bytes.clone()])
                .expect("the loader chose aligned and whole points"),
        }
    }
}
