//! Blob schedules: which blob parameters hold when (EIP-7840, EIP-7892).

use std::collections::BTreeMap;

use alloy_eips::{
    BlobScheduleBlobParams,
    eip4844::BLOB_TX_MIN_BLOB_GASPRICE,
    eip7594::MAX_BLOBS_PER_TX_FUSAKA,
    eip7840::{BLOB_BASE_COST, BlobParams},
};
use alloy_hardforks::EthereumHardfork;

/// A number that is not allowed as a blob parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("blob parameter {field} is {got}, expected {expected}")]
pub struct BlobParamsError {
    /// Name of the number in a genesis file.
    pub field: &'static str,
    /// Its value.
    pub got: u64,
    /// The allowed range.
    pub expected: &'static str,
}

/// Blob parameters as genesis files and test suites state them: target and maximum number of
/// blobs of a block and the update fraction of the blob base fee.
///
/// # Errors
/// [`BlobParamsError`] for numbers with which fees or limits could not be computed.
pub fn blob_params(
    target: u64,
    max: u64,
    update_fraction: u64,
) -> Result<BlobParams, BlobParamsError> {
    // The bound keeps the blob gas of a block far inside 64 bits.
    if max == 0 || max > 1 << 20 {
        return Err(BlobParamsError { field: "max", got: max, expected: "1 to 1048576 blobs" });
    }
    if target > max {
        return Err(BlobParamsError { field: "target", got: target, expected: "at most max" });
    }
    if update_fraction == 0 {
        let expected = "a positive number";
        return Err(BlobParamsError { field: "baseFeeUpdateFraction", got: 0, expected });
    }
    Ok(BlobParams {
        target_blob_count: target,
        max_blob_count: max,
        update_fraction: u128::from(update_fraction),
        min_blob_fee: BLOB_TX_MIN_BLOB_GASPRICE,
        max_blobs_per_tx: max,
        blob_base_cost: 0,
    })
}

/// A blob-parameter-only fork has no entry, and mainnet has no parameters for it either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fork {0} is scheduled, but has no blob parameters")]
pub struct MissingBlobParams(pub EthereumHardfork);

/// Assembles a schedule from the parameters of each fork.
///
/// `activation` gives the time (seconds) of forks from Osaka on, where scheduled. Cancun, Prague,
/// Osaka, BPO1 and BPO2 default to mainnet's parameters; Amsterdam and later forks without an
/// entry keep the parameters before them.
///
/// # Errors
/// [`MissingBlobParams`] for BPO3 to BPO5 without an entry.
pub fn blob_schedule(
    activation: impl Fn(EthereumHardfork) -> Option<u64>,
    entries: &BTreeMap<EthereumHardfork, BlobParams>,
) -> Result<BlobScheduleBlobParams, MissingBlobParams> {
    use EthereumHardfork as Fork;
    // From Osaka on a transaction carries at most six blobs (EIP-7594) and blob fees are bounded
    // below by execution fees (EIP-7918).
    let fusaka = |params: BlobParams| {
        params.with_max_blobs_per_tx(MAX_BLOBS_PER_TX_FUSAKA).with_blob_base_cost(BLOB_BASE_COST)
    };
    let entry = |fork: Fork| entries.get(&fork).copied();
    let mut scheduled = Vec::new();
    for (fork, default) in [
        (Fork::Bpo1, Some(BlobParams::bpo1())),
        (Fork::Bpo2, Some(BlobParams::bpo2())),
        (Fork::Bpo3, None),
        (Fork::Bpo4, None),
        (Fork::Bpo5, None),
    ] {
        let Some(at) = activation(fork) else { continue };
        let params = entry(fork).map(fusaka).or(default).ok_or(MissingBlobParams(fork))?;
        scheduled.push((at, params));
    }
    for fork in [Fork::Amsterdam, Fork::Bogota] {
        scheduled.extend(activation(fork).zip(entry(fork).map(fusaka)));
    }
    // Stable: of forks at the same time the later one in protocol order wins.
    scheduled.sort_by_key(|(at, _)| *at);
    Ok(BlobScheduleBlobParams {
        cancun: entry(Fork::Cancun).unwrap_or_else(BlobParams::cancun),
        prague: entry(Fork::Prague).unwrap_or_else(BlobParams::prague),
        osaka: entry(Fork::Osaka).map_or_else(BlobParams::osaka, fusaka),
        scheduled,
    })
}
