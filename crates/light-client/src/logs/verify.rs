//! Verifies that an answer of `state_getLogs` has all logs of its range.
//!
//! ```text
//!  trusted hash --> last header --> its parent --> .. --> first header: the range of the filter
//!                       |
//!                       +- bloom without a match: the block has no such log
//!                       '- bloom with a match: all receipts --> receipts root of the header
//!                                                   '--> matching logs: those that are stated
//! ```

use super::{
    receipts::BloomlessReceipt,
    response::{HeaderWithReceipts, LogsResponse},
};
use crate::{HeaderFault, LightClientError, LogsFault, header};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use alloy_primitives::{B256, Bloom};
use alloy_rlp::Decodable;
use alloy_rpc_types_eth::{BlockNumberOrTag, Filter, FilterBlockOption, Log};
use core::ops::RangeInclusive;
use retrie_state::BlockRef;

/// All logs of a range of blocks that match a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "these logs were proven; what the answer says besides was not"]
pub struct CompleteLogs {
    /// Numbers of the blocks.
    pub blocks: RangeInclusive<u64>,
    /// Hash of the parent of the first block: the trusted hash for the range before this one.
    pub parent: B256,
    /// The logs, in the order of the chain.
    pub logs: Vec<VerifiedLog>,
}

/// A log of a trusted chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedLog {
    /// Address, topics and data.
    pub log: alloy_primitives::Log,
    /// Its block.
    pub block: BlockRef,
    /// Time of the block, in seconds since 1970.
    pub timestamp: u64,
    /// Index of its transaction in the block.
    pub transaction_index: u64,
    /// Hash of its transaction; `None` if it is not shown: no receipt has it.
    pub transaction_hash: Option<B256>,
    /// Index among all logs of the block.
    pub log_index: u64,
}

impl VerifiedLog {
    fn is_stated_by(&self, stated: &Log) -> bool {
        stated.inner == self.log
            && stated.block_number == Some(self.block.number)
            && stated.block_hash == Some(self.block.hash)
            && stated.block_timestamp == Some(self.timestamp)
            && stated.transaction_index == Some(self.transaction_index)
            && stated.log_index == Some(self.log_index)
            && self.transaction_hash.is_none_or(|hash| stated.transaction_hash == Some(hash))
            && !stated.removed
    }
}

/// Verifies the answer of `state_getLogs` to `filter`: every log that matches, and no other, in the
/// blocks of its range, the last of which has the `trusted` hash.
///
/// A bound of the filter is a number, or a tag that stands for the trusted block: `latest`, `safe`
/// or `finalized`.
///
/// # Errors
/// A [`LightClientError`] if the headers do not lead to the trusted block or are not those of the
/// range, if receipts are missing, superfluous or not those of a header, or if the answer states
/// other logs.
pub fn verify_logs(
    response: &LogsResponse,
    filter: &Filter,
    trusted: B256,
) -> Result<CompleteLogs, LightClientError> {
    let LogsResponse { version, logs: stated, blocks } = response;
    if *version != LogsResponse::VERSION {
        return Err(LightClientError::LogsVersion { version: *version });
    }
    let headers = open_chain(blocks, trusted)?;
    let (range, parent) = check_range(filter, &headers, trusted)?;
    let mut logs = Vec::new();
    for (header, block) in headers.iter().zip(blocks) {
        let found = matching_logs(filter, header, block.receipts.as_ref().map(|rlp| &rlp[..]))
            .map_err(|fault| LightClientError::Logs { block: header.block.number, fault })?;
        logs.extend(found);
    }
    match first_difference(stated, &logs, *range.end()) {
        Some(block) => Err(LightClientError::Logs { block, fault: LogsFault::StatedLogs }),
        None => Ok(CompleteLogs { blocks: range, parent, logs }),
    }
}

/// What a header says of the logs of its block.
pub(super) struct LogsHeader {
    pub(super) block: BlockRef,
    parent: B256,
    pub(super) receipts_root: B256,
    bloom: Bloom,
    pub(super) timestamp: u64,
}

impl LogsHeader {
    pub(super) fn open(hash: B256, rlp: &[u8]) -> Result<Self, HeaderFault> {
        header::read(&hash, rlp, |mut fields| {
            let fields = &mut fields;
            let parent = B256::decode(fields)?;
            // Ommers, beneficiary, state, transactions.
            header::skip(fields, 4)?;
            let (receipts_root, bloom) = (B256::decode(fields)?, Bloom::decode(fields)?);
            // Difficulty.
            header::skip(fields, 1)?;
            let number = u64::decode(fields)?;
            // Gas limit, gas used.
            header::skip(fields, 2)?;
            let timestamp = u64::decode(fields)?;
            let block = BlockRef::new(number, hash);
            Ok(Self { block, parent, receipts_root, bloom, timestamp })
        })
    }
}

/// Reads headers, oldest first. The last one has the trusted hash, each other one is the parent of
/// the next one.
fn open_chain(
    blocks: &[HeaderWithReceipts],
    trusted: B256,
) -> Result<Vec<LogsHeader>, LightClientError> {
    let mut headers = Vec::<LogsHeader>::with_capacity(blocks.len());
    for block in blocks.iter().rev() {
        let child = headers.last();
        let hash = child.map_or(trusted, |child| child.parent);
        let refused = |fault| LightClientError::Header { hash, fault };
        let header = LogsHeader::open(hash, &block.header).map_err(refused)?;
        let number = header.block.number;
        if child.is_some_and(|child| child.block.number.checked_sub(1) != Some(number)) {
            return Err(refused(HeaderFault::OtherNumber(number)));
        }
        headers.push(header);
    }
    headers.reverse();
    Ok(headers)
}

/// The blocks from the first to the last header, and the parent of the first one, if the filter asks
/// for these.
fn check_range(
    filter: &Filter,
    headers: &[LogsHeader],
    trusted: B256,
) -> Result<(RangeInclusive<u64>, B256), LightClientError> {
    let (Some(oldest), Some(last)) = (headers.first(), headers.last()) else {
        let fault = HeaderFault::Malformed;
        return Err(LightClientError::Header { hash: trusted, fault });
    };
    let (first, last) = (oldest.block.number, last.block.number);
    let is_asked = match filter.block_option {
        FilterBlockOption::AtBlockHash(hash) => hash == trusted && first == last,
        FilterBlockOption::Range { from_block, to_block } => {
            let bound = |tag: Option<BlockNumberOrTag>| match tag.unwrap_or_default() {
                BlockNumberOrTag::Number(number) => Some(number),
                BlockNumberOrTag::Earliest | BlockNumberOrTag::Pending => None,
                _ => Some(last),
            };
            bound(from_block) == Some(first) && bound(to_block) == Some(last)
        }
    };
    if is_asked {
        return Ok((first..=last, oldest.parent));
    }
    let shown = format!("blocks {first} to {last}, hash {trusted}");
    Err(LightClientError::OtherRange { asked: asked_blocks(&filter.block_option), shown })
}

pub(super) fn asked_blocks(asked: &FilterBlockOption) -> String {
    let bound = |tag: &Option<BlockNumberOrTag>| match tag.unwrap_or_default() {
        BlockNumberOrTag::Number(number) => number.to_string(),
        tag @ (BlockNumberOrTag::Earliest | BlockNumberOrTag::Pending) => {
            format!("{tag}, which must be given as a number,")
        }
        tag => tag.to_string(),
    };
    match asked {
        FilterBlockOption::AtBlockHash(hash) => format!("block {hash}"),
        FilterBlockOption::Range { from_block, to_block } => {
            format!("blocks {} to {}", bound(from_block), bound(to_block))
        }
    }
}

/// The logs of a block that match the filter, from all its receipts. There are receipts if, and only
/// if, the bloom of the header matches.
fn matching_logs(
    filter: &Filter,
    header: &LogsHeader,
    receipts: Option<&[u8]>,
) -> Result<Vec<VerifiedLog>, LogsFault> {
    // A zero bloom, which matches a filter without conditions, is that of no log.
    let matches = !header.bloom.is_zero() && filter.matches_bloom(header.bloom);
    let receipts = match (matches, receipts) {
        (false, None) => return Ok(Vec::new()),
        (false, Some(_)) => return Err(LogsFault::SurplusReceipts),
        (true, None) => return Err(LogsFault::MissingReceipts),
        (true, Some(receipts)) => receipts,
    };
    let receipts = BloomlessReceipt::decode_list(receipts);
    let receipts = receipts.map_err(|_| LogsFault::MalformedReceipts)?;
    let root = BloomlessReceipt::root(&receipts);
    if root != header.receipts_root {
        return Err(LogsFault::ReceiptsRoot(root));
    }
    let all = (0..).zip(receipts).flat_map(|(transaction_index, receipt)| {
        receipt.logs.into_iter().map(move |log| (transaction_index, log))
    });
    let matching = (0..).zip(all).filter(|(_, (_, log))| filter.matches(log));
    let verified = |(log_index, (transaction_index, log))| {
        let (block, timestamp) = (header.block, header.timestamp);
        let transaction_hash = None;
        VerifiedLog { log, block, timestamp, transaction_index, transaction_hash, log_index }
    };
    Ok(matching.map(verified).collect())
}

/// The block of the first log that is only stated or only shown; `last` if that log names no block.
pub(super) fn first_difference(stated: &[Log], shown: &[VerifiedLog], last: u64) -> Option<u64> {
    let differs = |at: &usize| match (stated.get(*at), shown.get(*at)) {
        (Some(stated), Some(shown)) => !shown.is_stated_by(stated),
        _ => true,
    };
    let at = (0..stated.len().max(shown.len())).find(differs)?;
    let of_shown = shown.get(at).map(|log| log.block.number);
    let of_stated = || stated.get(at).and_then(|log| log.block_number);
    Some(of_shown.or_else(of_stated).unwrap_or(last))
}
