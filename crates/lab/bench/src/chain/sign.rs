//! Senders, and signed transactions of three types.

use super::{genesis::CHAIN_ID, plan::PlannedCall};
use crate::random::{SplitMix64, derive};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip2930, TxLegacy};
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_primitives::{Address, B256, Signature, keccak256};
use retrie_chainspec::primitives::Transaction;
use secp256k1::{Message, PublicKey, SECP256K1, SecretKey};

/// Gas of an address in an access list (EIP-2930).
const ACCESS_LIST_ADDRESS_GAS: u64 = 2_400;
/// The tip of every transaction, in wei per gas.
const TIP: u64 = 100_000_000;

/// An account with its private key.
#[derive(Clone, Debug)]
pub(crate) struct ChainSender {
    key: SecretKey,
    pub(crate) address: Address,
}

impl ChainSender {
    /// Sender `n` of the chain of this seed.
    pub(crate) fn new(seed: u64, n: u64) -> Self {
        let key = SecretKey::from_byte_array(derive(seed, "sender", n).0)
            .expect("one hash in 2^128 is no key");
        let public = PublicKey::from_secret_key(SECP256K1, &key).serialize_uncompressed();
        Self { key, address: Address::from_slice(&keccak256(&public[1..])[12..]) }
    }

    /// Signs deterministically (RFC 6979), with a low `s`.
    fn sign(&self, hash: B256) -> Signature {
        let message = Message::from_digest(hash.0);
        let (id, bytes) = SECP256K1.sign_ecdsa_recoverable(message, &self.key).serialize_compact();
        Signature::from_bytes_and_parity(&bytes, i32::from(id) & 1 == 1)
    }

    /// `call` as a signed transaction. Its fee cap covers a few blocks of rising base fees.
    pub(crate) fn transaction(&self, call: PlannedCall, nonce: u64, base_fee: u64) -> Transaction {
        let PlannedCall { to, value, input, gas_limit, kind, .. } = call;
        let (chain_id, tip) = (CHAIN_ID, u128::from(TIP));
        let highest = 2 * u128::from(base_fee) + tip;
        match kind {
            EnvelopeKind::DynamicFee => {
                let tx = TxEip1559 {
                    chain_id,
                    nonce,
                    gas_limit,
                    max_fee_per_gas: highest,
                    max_priority_fee_per_gas: tip,
                    to,
                    value,
                    access_list: AccessList::default(),
                    input,
                };
                let signature = self.sign(tx.signature_hash());
                tx.into_signed(signature).into()
            }
            EnvelopeKind::AccessList => {
                let called = to.to().filter(|_| !input.is_empty());
                let items: Vec<_> = called
                    .map(|to| AccessListItem { address: *to, storage_keys: Vec::new() })
                    .into_iter()
                    .collect();
                let tx = TxEip2930 {
                    chain_id,
                    nonce,
                    gas_price: highest,
                    gas_limit: gas_limit + ACCESS_LIST_ADDRESS_GAS * items.len() as u64,
                    to,
                    value,
                    access_list: AccessList(items),
                    input,
                };
                let signature = self.sign(tx.signature_hash());
                tx.into_signed(signature).into()
            }
            EnvelopeKind::Legacy => {
                let tx = TxLegacy {
                    chain_id: Some(chain_id),
                    nonce,
                    gas_price: highest,
                    gas_limit,
                    to,
                    value,
                    input,
                };
                let signature = self.sign(tx.signature_hash());
                tx.into_signed(signature).into()
            }
        }
    }
}

/// The envelope type of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnvelopeKind {
    /// EIP-1559.
    DynamicFee,
    /// EIP-2930, naming the contract that is called.
    AccessList,
    /// Before EIP-2718, with chain id.
    Legacy,
}

impl EnvelopeKind {
    /// A random kind: 90 % EIP-1559, 7 % legacy, 3 % EIP-2930.
    pub(crate) const fn any(random: &mut SplitMix64) -> Self {
        match random.below(100) {
            0..90 => Self::DynamicFee,
            90..97 => Self::Legacy,
            _ => Self::AccessList,
        }
    }
}
