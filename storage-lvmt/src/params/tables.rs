//! The prover's parameters: tables of points, in memory or mapped from a file.

use super::{ParamsError, VerifierParams};
use crate::{amt::SLOTS, point::G1Point};
use alloy_primitives::B256;
use ark_bn254::G1Affine;
use ark_ec::AffineRepr;
use memmap2::Mmap;
use std::{
    fmt,
    ops::{ControlFlow, Range},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};
use zerocopy::FromBytes;

/// A phase of making parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupPhase {
    /// Reading and checking the powers of a ceremony.
    Powers,
    /// Points for updating commitments.
    Commitments,
    /// Points for updating quotients.
    Quotients,
}

/// Callback of long work: phase, steps done, all steps. Its result may stop the work.
pub type SetupProgress<'a> = &'a (dyn Fn(SetupPhase, u64, u64) -> ControlFlow<()> + Sync);

/// All public parameters of AMTs of one height h, with n = 2^h entries.
pub struct LvmtParams {
    verifier: VerifierParams,
    insecure: bool,
    /// `[entry][slot]`.
    increments: PointTable,
    /// `[entry][slot][depth]`: an update needs all depths of one slot, which so lie side by side.
    quotients: Option<PointTable>,
    half_power: OnceLock<G1Point>,
}

/// Counts the steps of a phase, from any thread.
pub(super) struct ProgressMeter<'a> {
    progress: SetupProgress<'a>,
    phase: SetupPhase,
    done: AtomicU64,
    total: u64,
}

impl<'a> ProgressMeter<'a> {
    pub(super) fn new(progress: SetupProgress<'a>, phase: SetupPhase, total: usize) -> Self {
        Self { progress, phase, done: AtomicU64::new(0), total: total as u64 }
    }

    /// Adds `steps` steps and calls the callback.
    pub(super) fn add(&self, steps: usize) -> Result<(), ParamsError> {
        let done = self.done.fetch_add(steps as u64, Ordering::Relaxed) + steps as u64;
        match (self.progress)(self.phase, done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ParamsError::Stopped),
        }
    }
}

impl LvmtParams {
    /// The verifier's part.
    pub fn verifier(&self) -> &VerifierParams {
        &self.verifier
    }

    /// The height h.
    pub fn height(&self) -> u8 {
        self.verifier.height()
    }

    /// Identifies the parameters: the verifier's [digest](VerifierParams::digest).
    pub fn digest(&self) -> B256 {
        self.verifier.digest()
    }

    /// Whether these are the development parameters, whose tau is public.
    pub fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// The point that the commitment grows by when the version in `slot` of `entry` grows by one:
    /// 2^(40 slot) \[I_e(tau)\], where I_e is one at x_e and zero at all other domain points.
    ///
    /// # Panics
    /// If there is no such entry or slot.
    #[inline]
    pub fn increment(&self, entry: u32, slot: usize) -> &G1Point {
        assert!(slot < SLOTS);
        &self.increments.points()[entry as usize * SLOTS + slot]
    }

    /// \[tau^(n/2)\]: the polynomial x^(n/2) is one at the first half of the entries, and minus one at
    /// the others. It is made at first use, of n/2 points.
    pub(crate) fn half_power(&self) -> G1Point {
        *self.half_power.get_or_init(|| {
            let half = 1u32 << (self.height() - 1);
            // The sum of all increments is one.
            let minus_one = -G1Point::from(G1Affine::generator());
            let mut terms: Vec<(u32, G1Point)> =
                (0..half).flat_map(|entry| [(0, *self.increment(entry, 0)); 2]).collect();
            let mut sum = [minus_one];
            crate::point::sum(&mut sum, &mut terms);
            sum[0]
        })
    }

    /// Whether there are points for updating quotients. Proofs need them.
    pub fn has_quotients(&self) -> bool {
        self.quotients.is_some()
    }

    /// The point that the quotient of node (`depth`, entry >> (h - depth)) grows by when the
    /// version in `slot` of `entry` grows by one.
    ///
    /// # Panics
    /// If there is no such depth, entry or slot, or there are [no quotients](Self::has_quotients).
    #[inline]
    pub fn quotient_increment(&self, depth: usize, entry: u32, slot: usize) -> &G1Point {
        &self.quotient_increments(entry, slot)[depth]
    }

    /// [`quotient_increment`](Self::quotient_increment) of all h depths, root first.
    #[inline]
    pub fn quotient_increments(&self, entry: u32, slot: usize) -> &[G1Point] {
        assert!(slot < SLOTS);
        let height = usize::from(self.height());
        let start = (entry as usize * SLOTS + slot) * height;
        let quotients = self.quotients.as_ref().expect("the caller has asked `has_quotients`");
        &quotients.points()[start..start + height]
    }

    /// Bytes of the tables, in memory or mapped from a file. Mapped tables occupy the page cache,
    /// because blocks and proofs read all over them.
    pub(crate) fn bytes(&self) -> u64 {
        let tables = [Some(&self.increments), self.quotients.as_ref()];
        tables.into_iter().flatten().map(|table| size_of_val(table.points()) as u64).sum()
    }

    /// Parameters over complete tables.
    pub(super) fn from_tables(
        verifier: VerifierParams,
        increments: PointTable,
        quotients: Option<PointTable>,
    ) -> Self {
        let insecure = verifier.is_insecure();
        let points = SLOTS << verifier.height();
        assert_eq!(increments.points().len(), points);
        if let Some(quotients) = &quotients {
            assert_eq!(quotients.points().len(), points * usize::from(verifier.height()));
        }
        Self { verifier, insecure, increments, quotients, half_power: OnceLock::new() }
    }

    /// The tables as a file stores them.
    pub(super) fn tables(&self) -> (&[G1Point], Option<&[G1Point]>) {
        (self.increments.points(), self.quotients.as_ref().map(PointTable::points))
    }
}

impl fmt::Debug for LvmtParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LvmtParams")
            .field("height", &self.height())
            .field("digest", &self.digest())
            .field("insecure", &self.insecure)
            .field("quotients", &self.has_quotients())
            .finish_non_exhaustive()
    }
}

/// A table of points.
pub(super) enum PointTable {
    /// Made in memory.
    Owned(Vec<G1Point>),
    /// These bytes of a mapped file.
    Mapped(Arc<Mmap>, Range<usize>),
}

impl PointTable {
    #[inline]
    pub(super) fn points(&self) -> &[G1Point] {
        match self {
            Self::Owned(points) => points,
            Self::Mapped(map, bytes) => <[G1Point]>::ref_from_bytes(&map[bytes.clone()])
                .expect("the loader chose aligned and whole points"),
        }
    }
}
