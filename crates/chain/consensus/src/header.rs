//! Rules of headers: alone, and against the parent.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, constants::MAXIMUM_EXTRA_DATA_SIZE};
use alloy_eips::{
    calc_next_block_base_fee,
    eip1559::{GAS_LIMIT_BOUND_DIVISOR, INITIAL_BASE_FEE},
    eip4844::DATA_GAS_PER_BLOB,
};
use alloy_primitives::U256;
use reth_primitives_traits::constants::{MAXIMUM_GAS_LIMIT_BLOCK, MINIMUM_GAS_LIMIT};
use retrie_chainspec::{
    ChainSpec, EthereumHardfork, EthereumHardforks,
    primitives::{Header, SealedHeader},
};

use crate::{ConsensusError, next_difficulty};

/// Extra data of the first blocks of the chain that supported the DAO fork (EIP-779).
const DAO_EXTRA_DATA: &[u8] = b"dao-hard-fork";
/// Number of blocks, the fork block included, that the rule on extra data covers.
const DAO_EXTRA_DATA_BLOCKS: u64 = 10;

/// Checks everything about a header that does not depend on another block.
///
/// It checks sizes and limits, the zero fields of proof of stake, the DAO fork's extra data, and
/// that exactly the fields of the forks active at the header's number and time are present. It does
/// not check the proof-of-work seal (nonce and mix hash): this client takes blocks from trusted
/// files and from a consensus client, not from miners. The genesis header is exempt from consensus
/// rules; do not pass it.
///
/// # Errors
/// [`ConsensusError`] naming the broken rule.
pub fn validate_header(spec: &ChainSpec, header: &SealedHeader) -> Result<(), ConsensusError> {
    let header = header.header();
    if header.extra_data.len() > MAXIMUM_EXTRA_DATA_SIZE {
        return Err(ConsensusError::ExtraDataTooLong {
            got: header.extra_data.len(),
            max: MAXIMUM_EXTRA_DATA_SIZE,
        });
    }
    validate_dao_extra_data(spec, header)?;
    if header.gas_limit < MINIMUM_GAS_LIMIT {
        return Err(ConsensusError::GasLimitTooLow {
            got: header.gas_limit,
            min: MINIMUM_GAS_LIMIT,
        });
    }
    if header.gas_limit > MAXIMUM_GAS_LIMIT_BLOCK {
        return Err(ConsensusError::GasLimitTooHigh {
            got: header.gas_limit,
            max: MAXIMUM_GAS_LIMIT_BLOCK,
        });
    }
    if header.gas_used > header.gas_limit {
        return Err(ConsensusError::GasUsedAboveLimit {
            got: header.gas_used,
            limit: header.gas_limit,
        });
    }
    if spec.is_pos(header) {
        validate_pos_zeros(header)?;
    }
    validate_fields(spec, header)?;
    validate_blob_gas_used(spec, header)
}

/// Checks a header against its parent, which must itself be valid (or genesis).
///
/// Call [`validate_header`] as well. Where the merge block of the chain is not known,
/// [`validate_merge`] checks that the change to proof of stake happens at the right block.
///
/// # Errors
/// [`ConsensusError`] naming the broken rule.
pub fn validate_header_against_parent(
    spec: &ChainSpec,
    header: &SealedHeader,
    parent: &SealedHeader,
) -> Result<(), ConsensusError> {
    let parent_hash = parent.hash();
    if header.parent_hash != parent_hash {
        return Err(ConsensusError::ParentHash { got: header.parent_hash, expected: parent_hash });
    }
    if parent.number.checked_add(1) != Some(header.number) {
        let expected = parent.number.saturating_add(1);
        return Err(ConsensusError::Number { got: header.number, expected });
    }
    if header.timestamp <= parent.timestamp {
        return Err(ConsensusError::Timestamp { got: header.timestamp, parent: parent.timestamp });
    }
    validate_gas_limit_change(spec, header, parent)?;
    if spec.is_pos(header) {
        // Also where the merge block is known: `validate_header` may not have run.
        validate_pos_zeros(header)?;
    } else if spec.is_pos(parent) {
        return Err(ConsensusError::NonZeroDifficulty { got: header.difficulty });
    } else {
        let expected = next_difficulty(spec, parent, header.timestamp);
        if header.difficulty != expected {
            return Err(ConsensusError::Difficulty { got: header.difficulty, expected });
        }
    }
    if let Some(expected) = next_base_fee(spec, parent)? {
        let got = required(header.base_fee_per_gas, "baseFeePerGas", EthereumHardfork::London)?;
        if got != expected {
            return Err(ConsensusError::BaseFee { got, expected });
        }
    }
    if let Some(expected) = next_excess_blob_gas(spec, parent, header.timestamp)? {
        let got = required(header.excess_blob_gas, "excessBlobGas", EthereumHardfork::Cancun)?;
        if got != expected {
            return Err(ConsensusError::ExcessBlobGas { got, expected });
        }
    }
    Ok(())
}

/// Checks that the chain changes to proof of stake exactly where the total difficulty says so
/// (EIP-3675): a block follows proof of stake if and only if its parent's total difficulty reaches
/// the terminal one.
///
/// # Errors
/// [`ConsensusError::ProofOfWorkAfterMerge`] or [`ConsensusError::ProofOfStakeBeforeMerge`].
pub fn validate_merge(
    spec: &ChainSpec,
    header: &Header,
    parent_total_difficulty: U256,
) -> Result<(), ConsensusError> {
    let Some(terminal) = spec.terminal_total_difficulty() else { return Ok(()) };
    match (spec.is_pos(header), parent_total_difficulty >= terminal) {
        (true, false) => {
            Err(ConsensusError::ProofOfStakeBeforeMerge { parent_total_difficulty, terminal })
        }
        (false, true) => {
            Err(ConsensusError::ProofOfWorkAfterMerge { parent_total_difficulty, terminal })
        }
        _ => Ok(()),
    }
}

/// Checks that a newly received block is not from the future.
///
/// `now` and `allowed` are seconds; clients tolerate 15 s before the merge and leave the question
/// to the consensus layer after it. Files of old blocks need no such check.
///
/// # Errors
/// [`ConsensusError::FutureTimestamp`].
pub fn validate_not_from_future(
    header: &Header,
    now: u64,
    allowed: u64,
) -> Result<(), ConsensusError> {
    if header.timestamp > now.saturating_add(allowed) {
        return Err(ConsensusError::FutureTimestamp { got: header.timestamp, now, allowed });
    }
    Ok(())
}

/// Base fee in wei that a child of `parent` must have (EIP-1559); `None` before London.
///
/// # Errors
/// [`ConsensusError::MissingField`] or [`ConsensusError::BaseFeeOverflow`] for a parent that
/// cannot have a child.
pub fn next_base_fee(spec: &ChainSpec, parent: &Header) -> Result<Option<u64>, ConsensusError> {
    if !spec.is_london_active_at_block(parent.number.saturating_add(1)) {
        return Ok(None);
    }
    if !spec.is_london_active_at_block(parent.number) {
        return Ok(Some(INITIAL_BASE_FEE));
    }
    let base_fee = required(parent.base_fee_per_gas, "baseFeePerGas", EthereumHardfork::London)?;
    // A full block raises the fee by an eighth, at least by one wei.
    if base_fee.checked_add(base_fee / 8 + 1).is_none() {
        return Err(ConsensusError::BaseFeeOverflow { parent: base_fee });
    }
    let params = spec.base_fee_params();
    Ok(Some(calc_next_block_base_fee(parent.gas_used, parent.gas_limit, base_fee, params)))
}

/// Excess blob gas that a child of `parent` with this timestamp (seconds) must have (EIP-4844;
/// EIP-7918 from Osaka on); `None` before Cancun.
///
/// # Errors
/// [`ConsensusError::ExcessBlobGasOverflow`] for a parent that cannot have a child.
pub fn next_excess_blob_gas(
    spec: &ChainSpec,
    parent: &Header,
    timestamp: u64,
) -> Result<Option<u64>, ConsensusError> {
    let Some(params) = spec.blob_params_at_timestamp(timestamp) else { return Ok(None) };
    // The parent of the first Cancun block has neither field; both count as zero.
    let excess = parent.excess_blob_gas.unwrap_or_default();
    let used = parent.blob_gas_used.unwrap_or_default();
    if excess.checked_add(used).is_none() || used.checked_mul(params.max_blob_count).is_none() {
        return Err(ConsensusError::ExcessBlobGasOverflow { excess, used });
    }
    let base_fee = parent.base_fee_per_gas.unwrap_or_default();
    // The reserve price of EIP-7918 is part of the parameters; before Osaka it is zero.
    Ok(Some(params.next_block_excess_blob_gas_osaka(excess, used, base_fee)))
}

fn validate_dao_extra_data(spec: &ChainSpec, header: &Header) -> Result<(), ConsensusError> {
    let Some(dao) = spec.dao_fork() else { return Ok(()) };
    let covered = dao.block..dao.block.saturating_add(DAO_EXTRA_DATA_BLOCKS);
    if covered.contains(&header.number)
        && (header.extra_data.as_ref() == DAO_EXTRA_DATA) != dao.support
    {
        let got = header.extra_data.clone();
        return Err(ConsensusError::DaoExtraData { got, support: dao.support });
    }
    Ok(())
}

/// The fields of proof of work are constants after the merge (EIP-3675).
fn validate_pos_zeros(header: &Header) -> Result<(), ConsensusError> {
    if !header.difficulty.is_zero() {
        return Err(ConsensusError::NonZeroDifficulty { got: header.difficulty });
    }
    if !header.nonce.is_zero() {
        return Err(ConsensusError::NonZeroNonce { got: u64::from_be_bytes(header.nonce.0) });
    }
    if header.ommers_hash != EMPTY_OMMER_ROOT_HASH {
        return Err(ConsensusError::OmmersAfterMerge { got: header.ommers_hash });
    }
    Ok(())
}

/// Each field that a fork added is present if and only if that fork is active.
fn validate_fields(spec: &ChainSpec, header: &Header) -> Result<(), ConsensusError> {
    use EthereumHardfork::{Amsterdam, Cancun, London, Prague, Shanghai};
    let time = header.timestamp;
    let london = spec.is_london_active_at_block(header.number);
    let shanghai = spec.is_shanghai_active_at_timestamp(time);
    let cancun = spec.is_cancun_active_at_timestamp(time);
    let prague = spec.is_prague_active_at_timestamp(time);
    let amsterdam = spec.is_amsterdam_active_at_timestamp(time);
    for (field, fork, active, present) in [
        ("baseFeePerGas", London, london, header.base_fee_per_gas.is_some()),
        ("withdrawalsRoot", Shanghai, shanghai, header.withdrawals_root.is_some()),
        ("blobGasUsed", Cancun, cancun, header.blob_gas_used.is_some()),
        ("excessBlobGas", Cancun, cancun, header.excess_blob_gas.is_some()),
        ("parentBeaconBlockRoot", Cancun, cancun, header.parent_beacon_block_root.is_some()),
        ("requestsHash", Prague, prague, header.requests_hash.is_some()),
        ("blockAccessListHash", Amsterdam, amsterdam, header.block_access_list_hash.is_some()),
        ("slotNumber", Amsterdam, amsterdam, header.slot_number.is_some()),
    ] {
        match (active, present) {
            (true, false) => return Err(ConsensusError::MissingField { field, fork }),
            (false, true) => return Err(ConsensusError::UnexpectedField { field, fork }),
            _ => {}
        }
    }
    Ok(())
}

fn validate_blob_gas_used(spec: &ChainSpec, header: &Header) -> Result<(), ConsensusError> {
    let (Some(got), Some(params)) =
        (header.blob_gas_used, spec.blob_params_at_timestamp(header.timestamp))
    else {
        return Ok(());
    };
    if got % DATA_GAS_PER_BLOB != 0 {
        return Err(ConsensusError::BlobGasNotMultiple { got, per_blob: DATA_GAS_PER_BLOB });
    }
    let max = params.max_blob_gas_per_block();
    if got > max {
        return Err(ConsensusError::BlobGasAboveMax { got, max });
    }
    Ok(())
}

fn validate_gas_limit_change(
    spec: &ChainSpec,
    header: &Header,
    parent: &Header,
) -> Result<(), ConsensusError> {
    // The first block of London doubles the limit, so that the target stays (EIP-1559).
    let elasticity = if spec.is_london_active_at_block(header.number)
        && !spec.is_london_active_at_block(parent.number)
    {
        spec.base_fee_params().elasticity_multiplier
    } else {
        1
    };
    let elasticity = u64::try_from(elasticity).unwrap_or(u64::MAX);
    let parent_limit = parent.gas_limit.saturating_mul(elasticity);
    let bound = parent_limit / GAS_LIMIT_BOUND_DIVISOR;
    if header.gas_limit.abs_diff(parent_limit) >= bound {
        return Err(ConsensusError::GasLimitChange {
            got: header.gas_limit,
            parent: parent_limit,
            bound,
        });
    }
    Ok(())
}

fn required<T>(
    field: Option<T>,
    name: &'static str,
    fork: EthereumHardfork,
) -> Result<T, ConsensusError> {
    field.ok_or(ConsensusError::MissingField { field: name, fork })
}
