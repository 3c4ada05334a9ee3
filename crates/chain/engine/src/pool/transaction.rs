//! [`PoolTransaction`]: a transaction in the pool.

use alloy_consensus::{
    EthereumTxEnvelope, InMemorySize, Transaction as _, TxEip4844WithSidecar,
    transaction::Recovered,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip7594::{BlobSidecarEncoding, BlobTransactionSidecarVariant, Encodable7594},
};
use alloy_primitives::{Address, B256, U256};
use retrie_chainspec::primitives::Transaction;
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

/// Blobs with commitments and proofs: one proof per blob (EIP-4844), or 128 cell proofs per blob
/// (EIP-7594).
pub type BlobSidecar = BlobTransactionSidecarVariant;

/// A transaction in network form: a blob transaction has its sidecar.
pub type PooledTransaction = EthereumTxEnvelope<TxEip4844WithSidecar<BlobSidecar>>;

/// Bytes of the pool's own data per transaction: its slot, its entries by sender, in the order of
/// eviction and in the index by hash.
const BOOKKEEPING: usize = 512;

/// An authorization (EIP-7702) of a pooled transaction that may be applied, as far as can be
/// checked without state: it is for this chain or for any chain, and its signature is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingAuthorization {
    /// The account whose code it sets.
    pub authority: Address,
    /// The nonce that the account must have when it is applied.
    pub nonce: u64,
}

/// How a transaction came to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionOrigin {
    /// Sent by a user of this node. See [`PoolConfig::is_local`](super::PoolConfig::is_local).
    Local,
    /// Received from peers.
    External,
    /// Never sent to peers.
    Private,
}

/// A transaction with the values that the pool computes once.
#[derive(Debug)]
pub struct PoolTransaction {
    /// The transaction and its sender; blob transactions without sidecar, as blocks carry them.
    pub transaction: Recovered<Transaction>,
    /// Sidecar, if it is a blob transaction.
    pub sidecar: Option<Arc<BlobSidecar>>,
    /// How it came to the pool.
    pub origin: TransactionOrigin,
    /// When it came to the pool.
    pub arrived: Instant,
    /// Whether it has the privileges of a local transaction.
    pub is_local: bool,
    /// Whether it is unsigned: a transaction of an impersonated account of a dev chain.
    pub is_unsigned: bool,
    cost: U256,
    encoded_length: usize,
    size: usize,
    /// Computed at first use: each costs as much as recovering the sender.
    authorizations: OnceLock<Box<[PendingAuthorization]>>,
}

/// Splits a transaction into the form of blocks and its sidecar.
pub(super) fn split(transaction: PooledTransaction) -> (Transaction, Option<BlobSidecar>) {
    let mut sidecar = None;
    let transaction = transaction.map_eip4844(|with_sidecar| {
        let (transaction, blobs) = with_sidecar.into_parts();
        sidecar = Some(blobs);
        transaction
    });
    (transaction, sidecar)
}

impl PoolTransaction {
    pub(super) fn new(
        transaction: Recovered<Transaction>,
        sidecar: Option<Arc<BlobSidecar>>,
        origin: TransactionOrigin,
        is_local: bool,
    ) -> Self {
        let tx = transaction.inner();
        let gas = U256::from(tx.gas_limit()) * U256::from(tx.max_fee_per_gas());
        let blob_gas = U256::from(tx.blob_gas_used().unwrap_or_default())
            * U256::from(tx.max_fee_per_blob_gas().unwrap_or_default());
        // Fees have at most 64 + 128 bits, so only the value can overflow.
        let cost = tx.value().saturating_add(gas).saturating_add(blob_gas);
        let encoded_length = tx.encode_2718_len();
        let authorizations = tx.authorization_count().unwrap_or_default() as usize;
        // Each authorization also has an entry in the index by authority.
        let size = size_of::<Self>()
            + BOOKKEEPING
            + InMemorySize::size(tx)
            + authorizations * 3 * size_of::<PendingAuthorization>()
            + sidecar.as_ref().map_or(0, |sidecar| sidecar.size());
        Self {
            transaction,
            sidecar,
            origin,
            arrived: Instant::now(),
            is_local,
            is_unsigned: false,
            cost,
            encoded_length,
            size,
            authorizations: OnceLock::new(),
        }
    }

    /// The same transaction marked as unsigned.
    pub(super) const fn unsigned(mut self) -> Self {
        self.is_unsigned = true;
        self
    }

    /// The hash.
    pub fn hash(&self) -> &B256 {
        self.transaction.inner().tx_hash()
    }

    /// The sender.
    pub const fn sender(&self) -> Address {
        self.transaction.signer()
    }

    /// The nonce.
    pub fn nonce(&self) -> u64 {
        self.transaction.nonce()
    }

    /// Whether it is a blob transaction (EIP-4844).
    pub const fn is_blob(&self) -> bool {
        self.transaction.inner().is_eip4844()
    }

    /// Largest cost for its sender in wei: value, gas and blob gas.
    pub const fn cost(&self) -> U256 {
        self.cost
    }

    /// Length in bytes of its EIP-2718 encoding, without sidecar.
    pub(crate) const fn encoded_length(&self) -> usize {
        self.encoded_length
    }

    /// Length in bytes of its EIP-2718 encoding in network form, with its sidecar (EIP-4844,
    /// EIP-7594).
    pub fn pooled_length(&self) -> usize {
        let Some(sidecar) = &self.sidecar else { return self.encoded_length };
        // One byte for the type, the transaction without it, the fields of the sidecar.
        let payload_length = self.encoded_length - 1 + sidecar.encode_7594_len();
        1 + alloy_rlp::Header { list: true, payload_length }.length_with_payload()
    }

    /// As [`pooled_length`](Self::pooled_length), but without the blobs of its sidecar, as eth/72
    /// sends it (EIP-8070). `None` unless it is a blob transaction with cell proofs.
    pub fn pooled_length_without_blobs(&self) -> Option<usize> {
        let sidecar = self.sidecar.as_ref().filter(|sidecar| sidecar.is_eip7594())?;
        let rest = sidecar.encode_7594_len_with(BlobSidecarEncoding::WithoutBlobs);
        let payload_length = self.encoded_length - 1 + rest;
        Some(1 + alloy_rlp::Header { list: true, payload_length }.length_with_payload())
    }

    /// Approximate size in memory in bytes, sidecar included.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Whether it needs expensive checks: blob proofs take 50 to 100 ms, authorizations 50 to 100
    /// us each.
    pub(super) fn is_costly(&self) -> bool {
        self.is_blob() || self.transaction.authorization_list().is_some()
    }

    /// Its authorizations (EIP-7702) that may be applied, sorted, each once. Others have no effect,
    /// and may be copies from other transactions.
    ///
    /// The first call recovers the signers, 50 to 100 us each; gas and
    /// [`max_tx_input_bytes`](super::PoolConfig::max_tx_input_bytes) bound their number.
    pub fn authorizations(&self) -> &[PendingAuthorization] {
        self.authorizations.get_or_init(|| {
            let (sender, own_nonce) = (self.sender(), self.nonce());
            let chain_id = self.transaction.chain_id().map(U256::from);
            let signed = self.transaction.authorization_list().unwrap_or_default();
            let mut authorizations: Vec<PendingAuthorization> = signed
                .iter()
                // Not for another chain, and not for the nonce that is never used (EIP-2681).
                .filter(|one| one.chain_id.is_zero() || Some(one.chain_id) == chain_id)
                .filter(|one| one.nonce != u64::MAX)
                .filter_map(|one| {
                    let authority = one.recover_authority().ok()?;
                    Some(PendingAuthorization { authority, nonce: one.nonce })
                })
                // The sender's nonce is incremented before authorizations are applied.
                .filter(|one| one.authority != sender || one.nonce > own_nonce)
                .collect();
            authorizations.sort_unstable();
            authorizations.dedup();
            authorizations.into()
        })
    }

    /// Tip for the proposer per gas, in wei, at a base fee. `None` if the maximum fee is below it.
    pub fn tip(&self, base_fee: u64) -> Option<u128> {
        self.transaction.effective_tip_per_gas(base_fee)
    }

    /// The transaction in network form. Copies the sidecar.
    ///
    /// `None` for a blob transaction without sidecar; pooled transactions always have theirs.
    pub fn to_pooled(&self) -> Option<PooledTransaction> {
        let transaction = self.transaction.inner().clone();
        let with_sidecar = |tx| {
            let sidecar = self.sidecar.as_deref().ok_or(())?;
            Ok::<_, ()>(TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar.clone()))
        };
        transaction.try_map_eip4844(with_sidecar).ok()
    }
}
