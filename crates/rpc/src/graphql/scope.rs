//! [`QueryScope`]: what the resolvers of one query share.

use super::{budget::QueryBudget, scalars::LongScalar};
use crate::{RpcContext, RpcError};
use alloy_eips::{BlockId, BlockNumberOrTag};
use async_graphql::{Context, Result};
use retrie_engine::LiveView;
use std::sync::Arc;

/// The node, one view of its chain, and what the query may still use.
pub(super) struct QueryScope {
    pub(super) rpc: RpcContext,
    pub(super) view: LiveView,
    pub(super) budget: Arc<QueryBudget>,
}

impl QueryScope {
    /// The scope of the query that a field belongs to.
    pub(super) fn of<'a>(context: &Context<'a>) -> Result<&'a Self> {
        context.data::<Self>()
    }
}

/// The state that an argument `block` names; that of the head without one.
pub(super) fn state_of(block: Option<LongScalar>) -> BlockId {
    block.map_or_else(BlockId::latest, |LongScalar(number)| BlockId::number(number))
}

/// A block number as a tag of a filter.
pub(super) fn number_of(block: Option<LongScalar>) -> Option<BlockNumberOrTag> {
    block.map(|LongScalar(number)| BlockNumberOrTag::Number(number))
}

/// The error of an argument.
pub(super) fn wrong_argument(reason: impl Into<String>) -> RpcError {
    RpcError::InvalidParams(reason.into())
}
