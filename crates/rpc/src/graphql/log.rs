//! Logs, and filters that select them.

use super::{
    account::AccountObject,
    block::BlockEntry,
    scalars::{AddressScalar, BytesScalar, LongScalar, WordScalar},
    scope::{QueryScope, number_of, state_of, wrong_argument},
    transaction::TransactionObject,
};
use crate::{RpcError, RpcResult, eth};
use alloy_primitives::{B256, map::B256Map};
use alloy_rpc_types_eth::{Filter, FilterBlockOption, Log};
use async_graphql::{Context, InputObject, Object, Result};
use std::sync::Arc;

/// A filter of the logs of one block.
#[derive(Debug, InputObject)]
pub(super) struct BlockFilterCriteria {
    /// The contracts whose logs are wanted; all without it, or if it is empty.
    addresses: Option<Vec<AddressScalar>>,
    /// For each topic its alternatives; any topic fits an empty list.
    topics: Option<Vec<Vec<WordScalar>>>,
}

/// A filter of logs.
#[derive(Debug, InputObject)]
pub(super) struct FilterCriteria {
    /// The first block; the head without it.
    from_block: Option<LongScalar>,
    /// The last block; the head without it.
    to_block: Option<LongScalar>,
    /// The contracts whose logs are wanted; all without it, or if it is empty.
    addresses: Option<Vec<AddressScalar>>,
    /// For each topic its alternatives; any topic fits an empty list.
    topics: Option<Vec<Vec<WordScalar>>>,
}

impl BlockFilterCriteria {
    /// The matching logs of a block.
    pub(super) fn search(
        self,
        scope: &QueryScope,
        block: &Arc<BlockEntry>,
    ) -> RpcResult<Vec<LogObject>> {
        let at = FilterBlockOption::AtBlockHash(block.hash());
        let logs = search(scope, at, self.addresses, self.topics)?;
        Ok(logs.into_iter().map(|log| LogObject { log, block: block.clone() }).collect())
    }
}

impl FilterCriteria {
    /// The matching logs of canonical blocks.
    pub(super) fn search(self, scope: &QueryScope) -> RpcResult<Vec<LogObject>> {
        let from_block = number_of(self.from_block);
        let to_block = number_of(self.to_block);
        let range = FilterBlockOption::Range { from_block, to_block };
        let logs = search(scope, range, self.addresses, self.topics)?;
        let mut blocks: B256Map<Arc<BlockEntry>> = B256Map::default();
        let mut found = Vec::with_capacity(logs.len());
        for log in logs {
            let hash = log.block_hash.unwrap_or_default();
            let block = match blocks.get(&hash) {
                Some(block) => block.clone(),
                None => {
                    let block = BlockEntry::of_hash(scope, &hash)?;
                    let block = block.ok_or(RpcError::HeaderNotFound)?;
                    blocks.insert(hash, block.clone());
                    block
                }
            };
            found.push(LogObject { log, block });
        }
        Ok(found)
    }
}

fn search(
    scope: &QueryScope,
    blocks: FilterBlockOption,
    addresses: Option<Vec<AddressScalar>>,
    topics: Option<Vec<Vec<WordScalar>>>,
) -> RpcResult<Vec<Log>> {
    let mut filter = Filter { block_option: blocks, ..Filter::default() };
    let addresses = addresses.unwrap_or_default();
    filter.address = addresses.into_iter().map(|one| one.0).collect::<Vec<_>>().into();
    let topics = topics.unwrap_or_default();
    if topics.len() > filter.topics.len() {
        return Err(wrong_argument("exceed max topics"));
    }
    for (place, alternatives) in filter.topics.iter_mut().zip(topics) {
        *place = alternatives.into_iter().map(|one| one.0).collect::<Vec<B256>>().into();
    }
    eth::search_logs(&scope.rpc, &scope.view, &filter)
}

/// A log and its block.
pub(super) struct LogObject {
    log: Log,
    block: Arc<BlockEntry>,
}

impl LogObject {
    pub(super) const fn new(log: Log, block: Arc<BlockEntry>) -> Self {
        Self { log, block }
    }
}

/// A log of a transaction.
#[Object(name = "Log")]
impl LogObject {
    /// Its index in its block.
    async fn index(&self) -> LongScalar {
        LongScalar(self.log.log_index.unwrap_or_default())
    }

    /// The contract that emitted it, after `block`; without it, after the head.
    async fn account(&self, block: Option<LongScalar>) -> AccountObject {
        AccountObject::new(self.log.inner.address, state_of(block))
    }

    /// Its topics, at most four.
    async fn topics(&self) -> Vec<WordScalar> {
        self.log.inner.data.topics().iter().copied().map(WordScalar).collect()
    }

    /// Its data.
    async fn data(&self) -> BytesScalar {
        BytesScalar(self.log.inner.data.data.clone())
    }

    /// The transaction that emitted it.
    async fn transaction(&self, context: &Context<'_>) -> Result<TransactionObject> {
        let index = LongScalar(self.log.transaction_index.unwrap_or(u64::MAX)).index();
        let transaction = self.block.transaction(QueryScope::of(context)?, index)?;
        Ok(transaction.ok_or(RpcError::HeaderNotFound)?)
    }
}
