//! Block witnesses without a store: what an opened one answers.

use crate::{AccountKey, BackendDelta, BackendKey, StateValue, WitnessError};
use alloc::{boxed::Box, vec::Vec};
use alloy_primitives::B256;
use core::fmt;

/// A block witness that was checked against the root of the block's parent: a part of that state,
/// from which the block is executed and the next root computed. It is pure, and holds no more memory
/// than a small multiple of the witness's bytes.
///
/// All that it answers follows from the root, however the witness was made. A witness that was made
/// for other reads or another delta gives an error that names what is missing, never a wrong answer.
pub trait OpenedWitness: fmt::Debug + Send + Sync {
    /// The value of `key` before the block, `None` if it is absent.
    ///
    /// # Errors
    /// [`WitnessError::Unproven`] if the witness shows neither.
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError>;

    /// The slots of `account` that are set before the block, in slot order.
    ///
    /// # Errors
    /// [`WitnessError::Unlisted`] if the witness does not show that there are no others; most
    /// structures never can.
    fn slots_of(&self, account: &AccountKey) -> Result<Vec<(B256, StateValue)>, WitnessError> {
        Err(WitnessError::Unlisted { account: *account })
    }

    /// Whether [`apply`](Self::apply) removes the whole storage of an account that the delta
    /// [wipes](crate::StateDelta::wiped), named or not. Otherwise the delta must name each of its
    /// slots.
    fn wipes_unnamed_slots(&self) -> bool {
        false
    }

    /// The root after block `number`, the child of the block whose state this is, if the block
    /// changes the state by `delta`. It may be called any number of times; nothing here changes.
    ///
    /// # Errors
    /// A [`WitnessError`] if the witness shows other previous values, or does not reach so far.
    fn apply(&self, number: u64, delta: &BackendDelta) -> Result<B256, WitnessError>;
}

/// Checks that `delta` starts from the values that `witness` shows.
///
/// # Errors
/// [`WitnessError::OtherValue`], [`WitnessError::Unproven`].
pub fn check_previous(
    witness: &(impl OpenedWitness + ?Sized),
    delta: &BackendDelta,
) -> Result<(), WitnessError> {
    for change in delta.changes() {
        if witness.value(&change.key)? != change.previous {
            return Err(WitnessError::OtherValue { key: change.key });
        }
    }
    Ok(())
}

/// What opening a witness gives.
pub type WitnessResult = Result<Box<dyn OpenedWitness>, WitnessError>;
