//! Bodies of known blocks, by hash or by number.

use super::{ApiFork, ApiResult, EngineApi, EngineApiError, check_count};
use crate::{EngineError, LiveView};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ExecutionPayloadBodyV1, ExecutionPayloadBodyV2};
use retrie_chainspec::primitives::Block;

/// Largest number of bodies per JSON-RPC request.
const MAX_BODIES: u64 = 1024;

/// The blocks whose bodies a consensus client asks for.
#[derive(Clone, Debug)]
pub enum BodyRequest {
    /// Blocks with these hashes.
    Hashes(Vec<B256>),
    /// `count` canonical blocks from `start` on, both at least 1; the answer ends at the head.
    Range {
        /// Number of the first block.
        start: u64,
        /// How many.
        count: u64,
    },
}

impl BodyRequest {
    fn check(&self, max: u64) -> ApiResult<()> {
        match self {
            Self::Hashes(hashes) => check_count(hashes.len() as u64, max),
            Self::Range { start: 0, .. } | Self::Range { count: 0, .. } => {
                Err(EngineApiError::InvalidParams("start and count begin with 1".into()))
            }
            Self::Range { count, .. } => check_count(*count, max),
        }
    }
}

impl EngineApi {
    /// `engine_getPayloadBodiesByHashV1`.
    pub async fn bodies_by_hash(
        &self,
        hashes: Vec<B256>,
    ) -> ApiResult<Vec<Option<ExecutionPayloadBodyV1>>> {
        self.bodies(BodyRequest::Hashes(hashes), MAX_BODIES, shown_v1).await
    }

    /// `engine_getPayloadBodiesByRangeV1`; ends at the head.
    pub async fn bodies_by_range(
        &self,
        start: u64,
        count: u64,
    ) -> ApiResult<Vec<Option<ExecutionPayloadBodyV1>>> {
        self.bodies(BodyRequest::Range { start, count }, MAX_BODIES, shown_v1).await
    }

    /// `engine_getPayloadBodiesByHashV2`. Access lists that are not kept are null.
    pub async fn bodies_by_hash_v2(
        &self,
        hashes: Vec<B256>,
    ) -> ApiResult<Vec<Option<ExecutionPayloadBodyV2>>> {
        self.bodies(BodyRequest::Hashes(hashes), MAX_BODIES, shown_v2).await
    }

    /// `engine_getPayloadBodiesByRangeV2`. Access lists that are not kept are null.
    pub async fn bodies_by_range_v2(
        &self,
        start: u64,
        count: u64,
    ) -> ApiResult<Vec<Option<ExecutionPayloadBodyV2>>> {
        self.bodies(BodyRequest::Range { start, count }, MAX_BODIES, shown_v2).await
    }

    /// At most `max` bodies of blocks of this fork; `None` for blocks of other forks, and from
    /// Amsterdam on for those whose access list is not kept.
    ///
    /// # Errors
    /// As the other methods.
    pub async fn bodies_of_fork(
        &self,
        fork: ApiFork,
        request: BodyRequest,
        max: u64,
    ) -> ApiResult<Vec<Option<ExecutionPayloadBodyV2>>> {
        let shown = move |view: &LiveView, hash: &B256, block: &Block| {
            if ApiFork::at(view.live().spec(), block.header.timestamp) != fork {
                return Ok(None);
            }
            let body = body_v2(view, hash, block)?;
            let is_whole = fork < ApiFork::Amsterdam || body.block_access_list.is_some();
            Ok(is_whole.then_some(body))
        };
        self.bodies(request, max, shown).await
    }

    /// The bodies of at most `max` blocks, each in the form that `shown` gives it.
    async fn bodies<T: Send + 'static>(
        &self,
        request: BodyRequest,
        max: u64,
        shown: impl Fn(&LiveView, &B256, &Block) -> ApiResult<Option<T>> + Send + 'static,
    ) -> ApiResult<Vec<Option<T>>> {
        request.check(max)?;
        self.read(move |view| {
            let one = |hash: &B256| match body(view, hash)? {
                Some(block) => shown(view, hash, &block),
                None => Ok(None),
            };
            match request {
                BodyRequest::Hashes(hashes) => hashes.iter().map(one).collect(),
                BodyRequest::Range { start, count } => {
                    let last = start.saturating_add(count - 1).min(view.head().number);
                    let at = |number| match view.canonical_hash(number) {
                        Ok(hash) => hash.map_or(Ok(None), |hash| one(&hash)),
                        Err(error) => Err(EngineError::from(error).into()),
                    };
                    (start..=last).map(at).collect()
                }
            }
        })
        .await
    }
}

fn body(view: &LiveView, hash: &B256) -> ApiResult<Option<Block>> {
    let block = match view.block(hash) {
        // The specification requires null for pruned bodies.
        Err(error) if error.is_pruned() => None,
        block => block.map_err(EngineError::from)?,
    };
    Ok(block.map(|block| block.clone_block()))
}

fn shown_v1(_: &LiveView, _: &B256, block: &Block) -> ApiResult<Option<ExecutionPayloadBodyV1>> {
    Ok(Some(body_v1(block)))
}

fn shown_v2(
    view: &LiveView,
    hash: &B256,
    block: &Block,
) -> ApiResult<Option<ExecutionPayloadBodyV2>> {
    body_v2(view, hash, block).map(Some)
}

fn body_v1(block: &Block) -> ExecutionPayloadBodyV1 {
    ExecutionPayloadBodyV1 {
        transactions: block.body.transactions.iter().map(|tx| tx.encoded_2718().into()).collect(),
        withdrawals: block.body.withdrawals.clone().map(|list| list.into_inner()),
    }
}

fn body_v2(view: &LiveView, hash: &B256, block: &Block) -> ApiResult<ExecutionPayloadBodyV2> {
    let ExecutionPayloadBodyV1 { transactions, withdrawals } = body_v1(block);
    let block_access_list = view.access_list(hash).map_err(EngineError::from)?;
    Ok(ExecutionPayloadBodyV2 { transactions, withdrawals, block_access_list })
}
