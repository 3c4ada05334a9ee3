//! Transactions, mined or in the pool.

use super::{
    account::AccountObject,
    block::{BlockEntry, BlockObject},
    log::LogObject,
    scalars::{AddressScalar, BigIntScalar, BytesScalar, LongScalar, WordScalar},
    scope::{QueryScope, state_of},
};
use crate::{RpcError, RpcResult, convert::RpcReceipt, debug};
use alloy_consensus::{Eip658Value, Transaction as _, TxReceipt, Typed2718};
use alloy_eips::{BlockId, eip2718::Encodable2718, eip2930::AccessListItem};
use alloy_primitives::{Address, B256, U256};
use async_graphql::{Context, Object, Result, SimpleObject};
use retrie_chainspec::primitives::Transaction;
use retrie_engine::pool::PoolTransaction;
use std::sync::Arc;

/// A transaction, its sender, and its place in a block unless it is in the pool.
pub(super) struct TransactionObject {
    transaction: Transaction,
    sender: Address,
    place: Option<(Arc<BlockEntry>, usize)>,
}

impl TransactionObject {
    /// The transaction at `index` of a block.
    pub(super) const fn mined(
        transaction: Transaction,
        sender: Address,
        block: Arc<BlockEntry>,
        index: usize,
    ) -> Self {
        Self { transaction, sender, place: Some((block, index)) }
    }

    /// A transaction of the pool.
    pub(super) fn waiting(pooled: &PoolTransaction) -> Self {
        let recovered = &pooled.transaction;
        Self { transaction: recovered.inner().clone(), sender: recovered.signer(), place: None }
    }

    /// The transaction with this hash: canonical, or in the pool.
    pub(super) fn find(scope: &QueryScope, hash: &B256) -> RpcResult<Option<Self>> {
        if let Some(found) = scope.view.transaction(hash)?
            && let Some(block) = BlockEntry::of_hash(scope, &found.block.hash)?
        {
            let index = found.index as usize;
            return Ok(Some(Self::mined(found.transaction, found.sender, block, index)));
        }
        let pooled = scope.rpc.pool.as_ref().and_then(|pool| pool.get(hash));
        Ok(pooled.map(|pooled| Self::waiting(&pooled)))
    }

    /// The receipt; `None` for a transaction of the pool.
    fn receipt(&self, scope: &QueryScope) -> RpcResult<Option<&RpcReceipt>> {
        let Some((block, index)) = &self.place else { return Ok(None) };
        Ok(block.receipts(scope)?.get(*index))
    }

    fn entry(&self) -> Option<&Arc<BlockEntry>> {
        self.place.as_ref().map(|(block, _)| block)
    }

    /// The parity of the signature's point, from which typed transactions have their `v`.
    fn parity(&self) -> u64 {
        u64::from(self.transaction.signature().v())
    }
}

/// A transaction. What only a mined transaction has is null for one of the pool.
#[Object(name = "Transaction")]
impl TransactionObject {
    /// Its hash.
    async fn hash(&self) -> WordScalar {
        WordScalar(*self.transaction.tx_hash())
    }

    /// Its nonce.
    async fn nonce(&self) -> LongScalar {
        LongScalar(self.transaction.nonce())
    }

    /// Its index in its block.
    async fn index(&self) -> Option<LongScalar> {
        self.place.as_ref().map(|(_, index)| LongScalar::of(*index))
    }

    /// Its sender, after `block`; without it, after the head.
    async fn from(&self, block: Option<LongScalar>) -> AccountObject {
        AccountObject::new(self.sender, state_of(block))
    }

    /// The account that it calls, after `block`; without it, after the head. Null if it creates a
    /// contract.
    async fn to(&self, block: Option<LongScalar>) -> Option<AccountObject> {
        self.transaction.to().map(|to| AccountObject::new(to, state_of(block)))
    }

    /// Wei that it transfers.
    async fn value(&self) -> BigIntScalar {
        BigIntScalar(self.transaction.value())
    }

    /// Price of gas in wei: what it paid, or in the pool the most that it pays.
    async fn gas_price(&self) -> BigIntScalar {
        BigIntScalar::of(match self.entry() {
            Some(block) => self.transaction.effective_gas_price(block.base_fee()),
            None => self.transaction.max_fee_per_gas(),
        })
    }

    /// Highest price of gas in wei; null without EIP-1559.
    async fn max_fee_per_gas(&self) -> Option<BigIntScalar> {
        let is_dynamic = self.transaction.is_dynamic_fee();
        is_dynamic.then(|| BigIntScalar::of(self.transaction.max_fee_per_gas()))
    }

    /// Highest tip for each unit of gas in wei; null without EIP-1559.
    async fn max_priority_fee_per_gas(&self) -> Option<BigIntScalar> {
        self.transaction.max_priority_fee_per_gas().map(BigIntScalar::of)
    }

    /// Highest price of blob gas in wei; null without blobs.
    async fn max_fee_per_blob_gas(&self) -> Option<BigIntScalar> {
        self.transaction.max_fee_per_blob_gas().map(BigIntScalar::of)
    }

    /// Tip for each unit of gas in wei that the block's builder got.
    async fn effective_tip(&self) -> Option<BigIntScalar> {
        let base_fee = self.entry().map(|block| block.base_fee().unwrap_or_default());
        let tip = base_fee.and_then(|fee| self.transaction.effective_tip_per_gas(fee));
        tip.map(BigIntScalar::of)
    }

    /// Its gas limit.
    async fn gas(&self) -> LongScalar {
        LongScalar(self.transaction.gas_limit())
    }

    /// Its input.
    async fn input_data(&self) -> BytesScalar {
        BytesScalar(self.transaction.input().clone())
    }

    /// Its block.
    async fn block(&self) -> Option<BlockObject> {
        self.entry().cloned().map(BlockObject)
    }

    /// 1 if it succeeded, 0 if not. Null before Byzantium if the state root after it is known.
    async fn status(&self, context: &Context<'_>) -> Result<Option<LongScalar>> {
        let receipt = self.receipt(QueryScope::of(context)?)?;
        Ok(receipt.and_then(|receipt| match receipt.inner.status_or_post_state() {
            Eip658Value::Eip658(success) => Some(LongScalar(u64::from(success))),
            Eip658Value::PostState(_) => None,
        }))
    }

    /// Gas that it used.
    async fn gas_used(&self, context: &Context<'_>) -> Result<Option<LongScalar>> {
        let receipt = self.receipt(QueryScope::of(context)?)?;
        Ok(receipt.map(|receipt| LongScalar(receipt.gas_used)))
    }

    /// Gas that its block used up to and with it.
    async fn cumulative_gas_used(&self, context: &Context<'_>) -> Result<Option<LongScalar>> {
        let receipt = self.receipt(QueryScope::of(context)?)?;
        Ok(receipt.map(|receipt| LongScalar(receipt.inner.cumulative_gas_used())))
    }

    /// Price of gas in wei that it paid.
    async fn effective_gas_price(&self) -> Option<BigIntScalar> {
        let paid = |block: &Arc<BlockEntry>| self.transaction.effective_gas_price(block.base_fee());
        self.entry().map(paid).map(BigIntScalar::of)
    }

    /// Gas of its blobs; null without blobs.
    async fn blob_gas_used(&self, context: &Context<'_>) -> Result<Option<LongScalar>> {
        let receipt = self.receipt(QueryScope::of(context)?)?;
        Ok(receipt.and_then(|receipt| receipt.blob_gas_used).map(LongScalar))
    }

    /// Price of blob gas in wei that it paid; null without blobs.
    async fn blob_gas_price(&self, context: &Context<'_>) -> Result<Option<BigIntScalar>> {
        let receipt = self.receipt(QueryScope::of(context)?)?;
        Ok(receipt.and_then(|receipt| receipt.blob_gas_price).map(BigIntScalar::of))
    }

    /// The contract that it created, after `block`; without it, after the head. Null if it created
    /// none.
    async fn created_contract(
        &self,
        context: &Context<'_>,
        block: Option<LongScalar>,
    ) -> Result<Option<AccountObject>> {
        let receipt = self.receipt(QueryScope::of(context)?)?;
        let address = receipt.and_then(|receipt| receipt.contract_address);
        Ok(address.map(|address| AccountObject::new(address, state_of(block))))
    }

    /// Its logs.
    async fn logs(&self, context: &Context<'_>) -> Result<Option<Vec<LogObject>>> {
        let Some((block, index)) = &self.place else { return Ok(None) };
        let receipt = block.receipts(QueryScope::of(context)?)?.get(*index);
        let shown = |receipt: &RpcReceipt| {
            let logs = receipt.inner.logs().iter().cloned();
            logs.map(|log| LogObject::new(log, block.clone())).collect()
        };
        Ok(receipt.map(shown))
    }

    /// `r` of its signature.
    async fn r(&self) -> BigIntScalar {
        BigIntScalar(self.transaction.signature().r())
    }

    /// `s` of its signature.
    async fn s(&self) -> BigIntScalar {
        BigIntScalar(self.transaction.signature().s())
    }

    /// `v` of its signature: with the chain id (EIP-155), or 27 or 28; of a typed transaction the
    /// parity.
    async fn v(&self) -> BigIntScalar {
        let parity = U256::from(self.parity());
        BigIntScalar(match self.transaction.as_legacy().map(|legacy| legacy.tx().chain_id) {
            Some(Some(chain_id)) => U256::from(chain_id) * U256::from(2) + U256::from(35) + parity,
            Some(None) => U256::from(27) + parity,
            None => parity,
        })
    }

    /// The parity of its signature; null for a legacy transaction.
    async fn y_parity(&self) -> Option<BigIntScalar> {
        (!self.transaction.is_legacy()).then(|| BigIntScalar::of(self.parity()))
    }

    /// Its type (EIP-2718).
    #[graphql(name = "type")]
    async fn kind(&self) -> Option<LongScalar> {
        Some(LongScalar(u64::from(self.transaction.ty())))
    }

    /// Its access list (EIP-2930); null for a legacy transaction.
    async fn access_list(&self) -> Option<Vec<AccessTuple>> {
        let shown = |entry: &AccessListItem| AccessTuple {
            address: AddressScalar(entry.address),
            storage_keys: entry.storage_keys.iter().copied().map(WordScalar).collect(),
        };
        self.transaction.access_list().map(|list| list.iter().map(shown).collect())
    }

    /// Its encoding (EIP-2718), without the sidecar of its blobs.
    async fn raw(&self) -> BytesScalar {
        BytesScalar(self.transaction.encoded_2718().into())
    }

    /// The encoding of its receipt (EIP-2718); empty for a transaction of the pool.
    async fn raw_receipt(&self, context: &Context<'_>) -> Result<BytesScalar> {
        let QueryScope { rpc, view, .. } = QueryScope::of(context)?;
        let Some((block, index)) = &self.place else {
            return Ok(BytesScalar(Default::default()));
        };
        let receipts = debug::raw_receipts(rpc, view, BlockId::from(block.hash()))?;
        let missing =
            || RpcError::Internal(format!("receipt {index} of {} is missing", block.hash()));
        Ok(BytesScalar(receipts.into_iter().nth(*index).ok_or_else(missing)?))
    }

    /// Hashes of its blobs; null without blobs.
    async fn blob_versioned_hashes(&self) -> Option<Vec<WordScalar>> {
        let hashes = self.transaction.blob_versioned_hashes();
        hashes.map(|hashes| hashes.iter().copied().map(WordScalar).collect())
    }
}

/// An entry of an access list (EIP-2930).
#[derive(Debug, SimpleObject)]
pub(super) struct AccessTuple {
    /// The account.
    address: AddressScalar,
    /// Slots of its storage.
    storage_keys: Vec<WordScalar>,
}
