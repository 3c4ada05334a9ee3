//! A transaction in the pool.

use alloy_consensus::{
    EthereumTxEnvelope, InMemorySize, Transaction as _, TxEip4844WithSidecar,
    transaction::Recovered,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip7594::{BlobTransactionSidecarVariant, Encodable7594},
};
use alloy_primitives::{Address, B256, U256};
use retrie_chainspec::primitives::Transaction;
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

/// Blobs with commitments and proofs: one proof a blob (EIP-4844) or 128 of its cells (EIP-7594).
pub type Sidecar = BlobTransactionSidecarVariant;

/// A transaction as it is sent around: one of type 3 with its sidecar.
pub type PooledTransaction = EthereumTxEnvelope<TxEip4844WithSidecar<Sidecar>>;

/// Bytes that the pool's own books take for a transaction: its slot, its place among those of its
/// sender, in the order of eviction and in the index by hash.
const BOOKKEEPING: usize = 512;

/// An authorization (EIP-7702) of a pooled transaction that can be applied, as far as this can be told
/// without the state: it is for this chain or for any, and its signature is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingAuthorization {
    /// The account whose code it sets.
    pub authority: Address,
    /// Nonce that the account must have for it to be applied.
    pub nonce: u64,
}

/// How a transaction came to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Sent by a user of this node. See [`PoolConfig::is_local`](super::PoolConfig::is_local).
    Local,
    /// Heard from others.
    External,
    /// Not to be told to others.
    Private,
}

/// A transaction that has passed the rules which need no state, with what the pool computes once.
#[derive(Debug)]
pub struct PoolTransaction {
    /// The transaction and its sender; blob transactions without sidecar, as blocks carry them.
    pub transaction: Recovered<Transaction>,
    /// Sidecar of a blob transaction.
    pub sidecar: Option<Arc<Sidecar>>,
    /// How it came here.
    pub origin: Origin,
    /// When it came here.
    pub arrived: Instant,
    /// Whether it has the privileges of a local transaction.
    pub is_local: bool,
    /// Whether nobody has signed it: one of an impersonated account of a dev chain.
    pub is_unsigned: bool,
    cost: U256,
    encoded_length: usize,
    size: usize,
    /// Recovered when first needed: each costs as much as the sender does.
    authorizations: OnceLock<Box<[PendingAuthorization]>>,
}

/// Splits a transaction from its sidecar.
pub(super) fn split(transaction: PooledTransaction) -> (Transaction, Option<Sidecar>) {
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
        sidecar: Option<Arc<Sidecar>>,
        origin: Origin,
        is_local: bool,
    ) -> Self {
        let tx = transaction.inner();
        let gas = U256::from(tx.gas_limit()) * U256::from(tx.max_fee_per_gas());
        let blob_gas = U256::from(tx.blob_gas_used().unwrap_or_default())
            * U256::from(tx.max_fee_per_blob_gas().unwrap_or_default());
        // Fees have at most 64 + 128 bits, only the value can make this overflow.
        let cost = tx.value().saturating_add(gas).saturating_add(blob_gas);
        let encoded_length = tx.encode_2718_len();
        let authorizations = tx.authorization_count().unwrap_or_default() as usize;
        // Beside the list of them there is an entry in the index by authority.
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

    /// The same, of an impersonated account.
    pub(super) const fn unsigned(mut self) -> Self {
        self.is_unsigned = true;
        self
    }

    /// Its hash.
    pub fn hash(&self) -> &B256 {
        self.transaction.inner().tx_hash()
    }

    /// Who signed it.
    pub const fn sender(&self) -> Address {
        self.transaction.signer()
    }

    /// Its nonce.
    pub fn nonce(&self) -> u64 {
        self.transaction.nonce()
    }

    /// Whether it carries blobs (EIP-4844).
    pub const fn is_blob(&self) -> bool {
        self.transaction.inner().is_eip4844()
    }

    /// Most wei that it takes from its sender: value, gas and blob gas.
    pub const fn cost(&self) -> U256 {
        self.cost
    }

    /// Length in bytes of its EIP-2718 encoding, without sidecar.
    pub const fn encoded_length(&self) -> usize {
        self.encoded_length
    }

    /// Length in bytes of its EIP-2718 encoding as it is sent around, with its sidecar (EIP-4844,
    /// EIP-7594).
    pub fn pooled_length(&self) -> usize {
        let Some(sidecar) = &self.sidecar else { return self.encoded_length };
        // One byte for the type, the transaction without it, the fields of the sidecar.
        let payload_length = self.encoded_length - 1 + sidecar.encode_7594_len();
        1 + alloy_rlp::Header { list: true, payload_length }.length_with_payload()
    }

    /// About the bytes it takes in memory, sidecar included.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Whether there is more to check about it than fields and one signature: blobs take 50 to 100 ms,
    /// authorizations 50 to 100 us each.
    pub(super) fn is_costly(&self) -> bool {
        self.is_blob() || self.transaction.authorization_list().is_some()
    }

    /// The authorizations (EIP-7702) in it that can be applied. Others do nothing, and a stranger may
    /// have copied them from anywhere. Sorted, each once.
    ///
    /// The first call recovers the signers: 50 to 100 us each, and there are as many as gas and
    /// [`max_tx_input_bytes`](super::PoolConfig::max_tx_input_bytes) allow.
    pub fn authorizations(&self) -> &[PendingAuthorization] {
        self.authorizations.get_or_init(|| {
            let (sender, own_nonce) = (self.sender(), self.nonce());
            let chain_id = self.transaction.chain_id().map(U256::from);
            let signed = self.transaction.authorization_list().unwrap_or_default();
            let mut authorizations: Vec<PendingAuthorization> = signed
                .iter()
                // For another chain; or never, as this nonce is not used (EIP-2681).
                .filter(|one| one.chain_id.is_zero() || Some(one.chain_id) == chain_id)
                .filter(|one| one.nonce != u64::MAX)
                .filter_map(|one| {
                    let authority = one.recover_authority().ok()?;
                    Some(PendingAuthorization { authority, nonce: one.nonce })
                })
                // The sender's nonce has gone up when its own are looked at.
                .filter(|one| one.authority != sender || one.nonce > own_nonce)
                .collect();
            authorizations.sort_unstable();
            authorizations.dedup();
            authorizations.into()
        })
    }

    /// What the proposer gets per gas, in wei, at a base fee. `None` if the base fee is not met.
    pub fn tip(&self, base_fee: u64) -> Option<u128> {
        self.transaction.effective_tip_per_gas(base_fee)
    }

    /// The transaction as it is sent around. Copies the sidecar.
    ///
    /// `None` for a blob transaction whose sidecar is gone, which no pooled one is.
    pub fn to_pooled(&self) -> Option<PooledTransaction> {
        let transaction = self.transaction.inner().clone();
        let with_sidecar = |tx| {
            let sidecar = self.sidecar.as_deref().ok_or(())?;
            Ok::<_, ()>(TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar.clone()))
        };
        transaction.try_map_eip4844(with_sidecar).ok()
    }
}
