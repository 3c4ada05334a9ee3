//! The roots of the schema: what is asked, and the one change.

use super::{
    block::{BlockEntry, BlockObject},
    log::{FilterCriteria, LogObject},
    pending::PendingObject,
    scalars::{BigIntScalar, BytesScalar, LongScalar, WordScalar},
    scope::{QueryScope, wrong_argument},
    transaction::TransactionObject,
};
use crate::{RpcResult, context::ResolveBlock, eth};
use alloy_eips::BlockId;
use alloy_rpc_types_eth::SyncStatus;
use async_graphql::{Context, Object, Result, SimpleObject};

/// Most blocks of one list.
const MAX_BLOCKS: u64 = 1024;

/// What can be asked.
pub(super) struct QueryObject;

/// Blocks, transactions, logs and the node.
#[Object(name = "Query")]
impl QueryObject {
    /// A block by its number or its hash; the head without either. A block that is not known is an
    /// error.
    async fn block(
        &self,
        context: &Context<'_>,
        number: Option<LongScalar>,
        hash: Option<WordScalar>,
    ) -> Result<Option<BlockObject>> {
        let scope = QueryScope::of(context)?;
        let (id, name) = match (number, hash) {
            (Some(_), Some(_)) => {
                let reason = "only one of number or hash must be specified";
                return Err(wrong_argument(reason).into());
            }
            (Some(LongScalar(number)), None) => (BlockId::number(number), number.to_string()),
            (None, Some(WordScalar(hash))) => (BlockId::from(hash), hash.to_string()),
            (None, None) => (BlockId::latest(), String::new()),
        };
        let header = scope.view.find(id)?;
        let unknown = || wrong_argument(format!("block {name} was not found"));
        Ok(Some(BlockObject(BlockEntry::new(header.ok_or_else(unknown)?))))
    }

    /// The canonical blocks of a range, both ends included; up to the head without `to`.
    async fn blocks(
        &self,
        context: &Context<'_>,
        from: Option<LongScalar>,
        to: Option<LongScalar>,
    ) -> Result<Vec<BlockObject>> {
        let from = from.ok_or_else(|| wrong_argument("from block number must be specified"))?;
        Ok(blocks(QueryScope::of(context)?, from, to)?)
    }

    /// The pending state.
    async fn pending(&self) -> PendingObject {
        PendingObject
    }

    /// A transaction by its hash: canonical, or in the pool.
    async fn transaction(
        &self,
        context: &Context<'_>,
        hash: WordScalar,
    ) -> Result<Option<TransactionObject>> {
        Ok(TransactionObject::find(QueryScope::of(context)?, &hash.0)?)
    }

    /// The logs of canonical blocks that match a filter.
    async fn logs(&self, context: &Context<'_>, filter: FilterCriteria) -> Result<Vec<LogObject>> {
        Ok(filter.search(QueryScope::of(context)?)?)
    }

    /// A price of gas in wei that gets a transaction mined soon.
    async fn gas_price(&self, context: &Context<'_>) -> Result<BigIntScalar> {
        let QueryScope { rpc, view, .. } = QueryScope::of(context)?;
        Ok(BigIntScalar(eth::gas_price(rpc, view)?))
    }

    /// A tip for each unit of gas in wei that gets a transaction mined soon.
    async fn max_priority_fee_per_gas(&self, context: &Context<'_>) -> Result<BigIntScalar> {
        let QueryScope { rpc, view, .. } = QueryScope::of(context)?;
        Ok(BigIntScalar::of(eth::tip(rpc, view)?))
    }

    /// The version of `eth` that the node speaks with its peers.
    async fn protocol_version(&self, context: &Context<'_>) -> Result<LongScalar> {
        Ok(LongScalar(eth::protocol_version(&QueryScope::of(context)?.rpc)?))
    }

    /// The progress of the node's sync; null if it is in sync.
    async fn syncing(&self, context: &Context<'_>) -> Result<Option<SyncState>> {
        Ok(match eth::syncing(&QueryScope::of(context)?.rpc) {
            SyncStatus::None => None,
            SyncStatus::Info(info) => Some(SyncState {
                starting_block: LongScalar(info.starting_block.saturating_to()),
                current_block: LongScalar(info.current_block.saturating_to()),
                highest_block: LongScalar(info.highest_block.saturating_to()),
            }),
        })
    }

    /// The id of the chain (EIP-155).
    #[graphql(name = "chainID")]
    async fn chain_id(&self, context: &Context<'_>) -> Result<BigIntScalar> {
        Ok(BigIntScalar::of(QueryScope::of(context)?.rpc.live.spec().chain_id()))
    }
}

fn blocks(
    scope: &QueryScope,
    LongScalar(from): LongScalar,
    to: Option<LongScalar>,
) -> RpcResult<Vec<BlockObject>> {
    let head = scope.view.head().number;
    let to = to.map_or(head, |LongScalar(to)| to);
    if to < from {
        return Err(wrong_argument(format!("from {from} is after to {to}")));
    }
    let to = to.min(head);
    let count = to.saturating_add(1).saturating_sub(from);
    if count > MAX_BLOCKS {
        let reason = format!("blocks {from} to {to} are more than {MAX_BLOCKS}");
        return Err(wrong_argument(reason));
    }
    let mut blocks = Vec::with_capacity(count as usize);
    for number in from..=to {
        // Old blocks may not be there.
        let header = scope.view.header_by_number(number)?;
        blocks.extend(header.map(|header| BlockObject(BlockEntry::new(header))));
    }
    Ok(blocks)
}

/// The progress of a sync.
#[derive(Debug, SimpleObject)]
pub(super) struct SyncState {
    /// The block at which it started.
    starting_block: LongScalar,
    /// The block that it has reached.
    current_block: LongScalar,
    /// The highest known block.
    highest_block: LongScalar,
}

/// What can be changed.
pub(super) struct MutationObject;

/// Transactions that the node receives.
#[Object(name = "Mutation")]
impl MutationObject {
    /// Adds a signed transaction to the pool, and returns its hash.
    async fn send_raw_transaction(
        &self,
        context: &Context<'_>,
        data: BytesScalar,
    ) -> Result<WordScalar> {
        let QueryScope { rpc, .. } = QueryScope::of(context)?;
        Ok(WordScalar(eth::send_signed(rpc, &data.0).await?))
    }
}
