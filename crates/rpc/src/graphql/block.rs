//! Blocks.

use super::{
    account::AccountObject,
    call_data::{CallData, CallOutcome},
    log::{BlockFilterCriteria, LogObject},
    scalars::{AddressScalar, BigIntScalar, BytesScalar, LongScalar, WordScalar},
    scope::{QueryScope, state_of},
    transaction::TransactionObject,
};
use crate::{RpcError, RpcResult, convert::RpcReceipt, eth};
use alloy_eips::BlockId;
use alloy_primitives::{B256, Bytes};
use async_graphql::{Context, Object, Result, SimpleObject};
use retrie_chainspec::primitives::{RecoveredBlock, SealedHeader, Withdrawal};
use std::sync::{Arc, OnceLock};

/// A block, and what the query has read of it so far; its transactions and logs share it.
pub(super) struct BlockEntry {
    header: SealedHeader,
    block: OnceLock<Option<Arc<RecoveredBlock>>>,
    receipts: OnceLock<Option<Vec<RpcReceipt>>>,
}

impl BlockEntry {
    pub(super) fn new(header: SealedHeader) -> Arc<Self> {
        Arc::new(Self { header, block: OnceLock::new(), receipts: OnceLock::new() })
    }

    /// A known block, canonical or not.
    pub(super) fn of_hash(scope: &QueryScope, hash: &B256) -> RpcResult<Option<Arc<Self>>> {
        Ok(scope.view.header(hash)?.map(Self::new))
    }

    pub(super) fn hash(&self) -> B256 {
        self.header.hash()
    }

    /// The base fee in wei; `None` before London.
    pub(super) fn base_fee(&self) -> Option<u64> {
        self.header.base_fee_per_gas
    }

    /// The block with its body; `None` if the node has no more than its header.
    fn block(&self, scope: &QueryScope) -> RpcResult<Option<&Arc<RecoveredBlock>>> {
        if let Some(known) = self.block.get() {
            return Ok(known.as_ref());
        }
        let read = scope.view.block(&self.hash())?;
        Ok(self.block.get_or_init(|| read).as_ref())
    }

    /// The receipts of its transactions.
    pub(super) fn receipts(&self, scope: &QueryScope) -> RpcResult<&[RpcReceipt]> {
        let known = match self.receipts.get() {
            Some(known) => known,
            None => {
                let read = eth::block_receipts(&scope.rpc, &scope.view, &self.hash())?;
                self.receipts.get_or_init(|| read)
            }
        };
        known.as_deref().ok_or_else(|| RpcError::no_receipts(&scope.view, &self.hash()))
    }

    /// The transaction at this index; `None` also if the node has no more than the header.
    pub(super) fn transaction(
        self: &Arc<Self>,
        scope: &QueryScope,
        index: usize,
    ) -> RpcResult<Option<TransactionObject>> {
        let Some(block) = self.block(scope)? else { return Ok(None) };
        let transaction = block.body().transactions.get(index).cloned();
        let sender = block.senders().get(index).copied();
        let found = transaction.zip(sender).map(|(transaction, sender)| {
            TransactionObject::mined(transaction, sender, self.clone(), index)
        });
        Ok(found)
    }
}

/// A block: see [`BlockEntry`].
pub(super) struct BlockObject(pub(super) Arc<BlockEntry>);

impl BlockObject {
    fn id(&self) -> BlockId {
        BlockId::from(self.0.hash())
    }

    fn known(&self, scope: &QueryScope) -> RpcResult<Arc<RecoveredBlock>> {
        let missing = || RpcError::Rejected("block not found".into());
        self.0.block(scope)?.cloned().ok_or_else(missing)
    }
}

/// A block. What the node does not have of it is null.
#[Object(name = "Block")]
impl BlockObject {
    /// Its number.
    async fn number(&self) -> LongScalar {
        LongScalar(self.0.header.number)
    }

    /// Its hash.
    async fn hash(&self) -> WordScalar {
        WordScalar(self.0.hash())
    }

    /// Its parent; null for genesis.
    async fn parent(&self, context: &Context<'_>) -> Result<Option<BlockObject>> {
        if self.0.header.number == 0 {
            return Ok(None);
        }
        let scope = QueryScope::of(context)?;
        Ok(BlockEntry::of_hash(scope, &self.0.header.parent_hash)?.map(BlockObject))
    }

    /// The nonce of its seal, 8 bytes.
    async fn nonce(&self) -> BytesScalar {
        BytesScalar(Bytes::copy_from_slice(self.0.header.nonce.as_slice()))
    }

    /// Root of the trie of its transactions.
    async fn transactions_root(&self) -> WordScalar {
        WordScalar(self.0.header.transactions_root)
    }

    /// Number of its transactions.
    async fn transaction_count(&self, context: &Context<'_>) -> Result<Option<LongScalar>> {
        let block = self.0.block(QueryScope::of(context)?)?;
        Ok(block.map(|block| LongScalar::of(block.body().transactions.len())))
    }

    /// The state root of its header.
    async fn state_root(&self) -> WordScalar {
        WordScalar(self.0.header.state_root)
    }

    /// Root of the trie of its receipts.
    async fn receipts_root(&self) -> WordScalar {
        WordScalar(self.0.header.receipts_root)
    }

    /// The account that got its fees, after `block`; without it, after the head.
    async fn miner(&self, block: Option<LongScalar>) -> AccountObject {
        AccountObject::new(self.0.header.beneficiary, state_of(block))
    }

    /// What its builder wrote into it.
    async fn extra_data(&self) -> BytesScalar {
        BytesScalar(self.0.header.extra_data.clone())
    }

    /// Most gas of its transactions.
    async fn gas_limit(&self) -> LongScalar {
        LongScalar(self.0.header.gas_limit)
    }

    /// Gas of its transactions.
    async fn gas_used(&self) -> LongScalar {
        LongScalar(self.0.header.gas_used)
    }

    /// Base fee in wei; null before London.
    async fn base_fee_per_gas(&self) -> Option<BigIntScalar> {
        self.0.base_fee().map(BigIntScalar::of)
    }

    /// Base fee of its child in wei; null if the child is before London.
    async fn next_base_fee_per_gas(&self, context: &Context<'_>) -> Result<Option<BigIntScalar>> {
        let QueryScope { rpc, .. } = QueryScope::of(context)?;
        let next = eth::next_base_fee(rpc.live.spec(), &self.0.header)?;
        Ok(next.map(BigIntScalar::of))
    }

    /// Its time in seconds since 1970.
    async fn timestamp(&self) -> LongScalar {
        LongScalar(self.0.header.timestamp)
    }

    /// The bloom filter of its logs, 256 bytes.
    async fn logs_bloom(&self) -> BytesScalar {
        BytesScalar(Bytes::copy_from_slice(self.0.header.logs_bloom.as_slice()))
    }

    /// The hash of its seal; from the merge on the random value of its slot.
    async fn mix_hash(&self) -> WordScalar {
        WordScalar(self.0.header.mix_hash)
    }

    /// Its difficulty.
    async fn difficulty(&self) -> BigIntScalar {
        BigIntScalar(self.0.header.difficulty)
    }

    /// Sum of the difficulties up to this block.
    async fn total_difficulty(&self, context: &Context<'_>) -> Result<BigIntScalar> {
        let QueryScope { view, .. } = QueryScope::of(context)?;
        let sum = view.total_difficulty(&self.0.hash()).map_err(RpcError::from)?;
        let unknown = || {
            let hash = self.0.hash();
            RpcError::Rejected(format!("the total difficulty of block {hash} is not known"))
        };
        Ok(BigIntScalar(sum.ok_or_else(unknown)?))
    }

    /// Number of its ommers.
    async fn ommer_count(&self, context: &Context<'_>) -> Result<Option<LongScalar>> {
        let block = self.0.block(QueryScope::of(context)?)?;
        Ok(block.map(|block| LongScalar::of(block.body().ommers.len())))
    }

    /// Its ommers, of which only headers are known.
    async fn ommers(&self, context: &Context<'_>) -> Result<Option<Vec<Option<BlockObject>>>> {
        let Some(block) = self.0.block(QueryScope::of(context)?)? else { return Ok(None) };
        let ommers = block.body().ommers.iter();
        let shown = |header| Some(BlockObject(BlockEntry::new(SealedHeader::seal_slow(header))));
        Ok(Some(ommers.cloned().map(shown).collect()))
    }

    /// The ommer at an index; null beyond the last one.
    async fn ommer_at(
        &self,
        context: &Context<'_>,
        index: LongScalar,
    ) -> Result<Option<BlockObject>> {
        let Some(block) = self.0.block(QueryScope::of(context)?)? else { return Ok(None) };
        let header = block.body().ommers.get(index.index()).cloned();
        Ok(header.map(|header| BlockObject(BlockEntry::new(SealedHeader::seal_slow(header)))))
    }

    /// Hash of the list of its ommers.
    async fn ommer_hash(&self) -> WordScalar {
        WordScalar(self.0.header.ommers_hash)
    }

    /// Its transactions.
    async fn transactions(&self, context: &Context<'_>) -> Result<Option<Vec<TransactionObject>>> {
        let scope = QueryScope::of(context)?;
        let Some(block) = self.0.block(scope)? else { return Ok(None) };
        let mut all = Vec::with_capacity(block.body().transactions.len());
        for index in 0..block.body().transactions.len() {
            all.extend(self.0.transaction(scope, index)?);
        }
        Ok(Some(all))
    }

    /// The transaction at an index; null beyond the last one.
    async fn transaction_at(
        &self,
        context: &Context<'_>,
        index: LongScalar,
    ) -> Result<Option<TransactionObject>> {
        Ok(self.0.transaction(QueryScope::of(context)?, index.index())?)
    }

    /// The logs of the block that match a filter.
    async fn logs(
        &self,
        context: &Context<'_>,
        filter: BlockFilterCriteria,
    ) -> Result<Vec<LogObject>> {
        Ok(filter.search(QueryScope::of(context)?, &self.0)?)
    }

    /// An account after this block.
    async fn account(&self, address: AddressScalar) -> AccountObject {
        AccountObject::new(address.0, self.id())
    }

    /// Executes a call on the state after this block.
    async fn call(&self, context: &Context<'_>, data: CallData) -> Result<Option<CallOutcome>> {
        Ok(Some(data.call(QueryScope::of(context)?, self.id())?))
    }

    /// The least gas with which a call succeeds after this block.
    async fn estimate_gas(&self, context: &Context<'_>, data: CallData) -> Result<LongScalar> {
        Ok(data.estimate(QueryScope::of(context)?, self.id())?)
    }

    /// RLP of its header.
    async fn raw_header(&self) -> BytesScalar {
        BytesScalar(alloy_rlp::encode(self.0.header.header()).into())
    }

    /// RLP of the block.
    async fn raw(&self, context: &Context<'_>) -> Result<BytesScalar> {
        let block = self.known(QueryScope::of(context)?)?;
        Ok(BytesScalar(alloy_rlp::encode(block.sealed_block()).into()))
    }

    /// Root of the trie of its withdrawals; null before Shanghai.
    async fn withdrawals_root(&self) -> Option<WordScalar> {
        self.0.header.withdrawals_root.map(WordScalar)
    }

    /// Its withdrawals; null before Shanghai.
    async fn withdrawals(&self, context: &Context<'_>) -> Result<Option<Vec<WithdrawalObject>>> {
        let Some(block) = self.0.block(QueryScope::of(context)?)? else { return Ok(None) };
        let withdrawals = block.body().withdrawals.as_ref();
        Ok(withdrawals.map(|list| list.iter().map(WithdrawalObject::from).collect()))
    }

    /// Gas of its blobs; null before Cancun.
    async fn blob_gas_used(&self) -> Option<LongScalar> {
        self.0.header.blob_gas_used.map(LongScalar)
    }

    /// Excess blob gas, which decides the price of blobs; null before Cancun.
    async fn excess_blob_gas(&self) -> Option<LongScalar> {
        self.0.header.excess_blob_gas.map(LongScalar)
    }

    /// Number of its slot; null before Amsterdam.
    async fn slot_number(&self) -> Option<LongScalar> {
        self.0.header.slot_number.map(LongScalar)
    }

    /// Hash of its access list (EIP-7928); null before Amsterdam.
    async fn block_access_list_hash(&self) -> Option<WordScalar> {
        self.0.header.block_access_list_hash.map(WordScalar)
    }
}

/// A withdrawal from the consensus layer (EIP-4895).
#[derive(Debug, SimpleObject)]
#[graphql(name = "Withdrawal")]
pub(super) struct WithdrawalObject {
    /// Its index among all withdrawals.
    index: LongScalar,
    /// Index of the validator.
    validator: LongScalar,
    /// The account that gets it.
    address: AddressScalar,
    /// Amount in Gwei.
    amount: LongScalar,
}

impl From<&Withdrawal> for WithdrawalObject {
    fn from(withdrawal: &Withdrawal) -> Self {
        Self {
            index: LongScalar(withdrawal.index),
            validator: LongScalar(withdrawal.validator_index),
            address: AddressScalar(withdrawal.address),
            amount: LongScalar(withdrawal.amount),
        }
    }
}
