//! Accounts at a block.

use super::{
    scalars::{AddressScalar, BigIntScalar, BytesScalar, LongScalar, WordScalar},
    scope::QueryScope,
};
use crate::{RpcError, RpcResult, context::ResolveBlock, eth};
use alloy_eips::BlockId;
use alloy_primitives::{Address, B256};
use async_graphql::{Context, Object, Result};
use retrie_engine::PostState;
use retrie_state::StateReader;

/// An account in the state after a block.
pub(super) struct AccountObject {
    address: Address,
    block: BlockId,
}

impl AccountObject {
    pub(super) const fn new(address: Address, block: BlockId) -> Self {
        Self { address, block }
    }

    fn state(&self, scope: &QueryScope) -> RpcResult<PostState> {
        scope.view.state_after(self.block)
    }
}

/// An account in the state after a block; one that does not exist is empty.
#[Object(name = "Account")]
impl AccountObject {
    /// Its address.
    async fn address(&self) -> AddressScalar {
        AddressScalar(self.address)
    }

    /// Its balance in wei.
    async fn balance(&self, context: &Context<'_>) -> Result<BigIntScalar> {
        let state = self.state(QueryScope::of(context)?)?;
        Ok(BigIntScalar(eth::account(&state, &self.address)?.balance))
    }

    /// Its nonce: the number of transactions it sent, or of contracts it created.
    async fn transaction_count(&self, context: &Context<'_>) -> Result<LongScalar> {
        let QueryScope { rpc, view, .. } = QueryScope::of(context)?;
        Ok(LongScalar(eth::transaction_count(rpc, view, &self.address, self.block)?))
    }

    /// Its code; empty if it is no contract.
    async fn code(&self, context: &Context<'_>) -> Result<BytesScalar> {
        let state = self.state(QueryScope::of(context)?)?;
        let account = eth::account(&state, &self.address)?;
        Ok(BytesScalar(eth::code(&state, &account)?))
    }

    /// The value of a slot of its storage.
    async fn storage(&self, context: &Context<'_>, slot: WordScalar) -> Result<WordScalar> {
        let state = self.state(QueryScope::of(context)?)?;
        let value = state.slot(&self.address, &slot.0).map_err(RpcError::from)?;
        Ok(WordScalar(B256::from(value)))
    }
}
