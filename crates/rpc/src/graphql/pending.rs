//! The pending state: the head's, and the transactions of the pool.

use super::{
    account::AccountObject,
    call_data::{CallData, CallOutcome},
    scalars::{AddressScalar, LongScalar},
    scope::QueryScope,
    transaction::TransactionObject,
};
use alloy_eips::BlockId;
use async_graphql::{Context, Object, Result};

/// The pending state.
pub(super) struct PendingObject;

/// What comes after the head: the transactions of the pool, and the state before them.
#[Object(name = "Pending")]
impl PendingObject {
    /// Number of transactions in the pool.
    async fn transaction_count(&self, context: &Context<'_>) -> Result<LongScalar> {
        let status = QueryScope::of(context)?.rpc.pool()?.status();
        Ok(LongScalar::of(status.pending + status.queued))
    }

    /// The transactions of the pool.
    async fn transactions(&self, context: &Context<'_>) -> Result<Option<Vec<TransactionObject>>> {
        let content = QueryScope::of(context)?.rpc.pool()?.content();
        let senders = content.pending.values().chain(content.queued.values());
        let transactions = senders.flat_map(|by_nonce| by_nonce.values());
        Ok(Some(transactions.map(|waiting| TransactionObject::waiting(waiting)).collect()))
    }

    /// An account; its transaction count includes the transactions of the pool.
    async fn account(&self, address: AddressScalar) -> AccountObject {
        AccountObject::new(address.0, BlockId::pending())
    }

    /// Executes a call on the pending state.
    async fn call(&self, context: &Context<'_>, data: CallData) -> Result<Option<CallOutcome>> {
        Ok(Some(data.call(QueryScope::of(context)?, BlockId::pending())?))
    }

    /// The least gas with which a call succeeds on the pending state.
    async fn estimate_gas(&self, context: &Context<'_>, data: CallData) -> Result<LongScalar> {
        Ok(data.estimate(QueryScope::of(context)?, BlockId::pending())?)
    }
}
