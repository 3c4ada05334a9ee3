//! The keys of the dev accounts, and what they sign.

use crate::{RpcError, RpcResult, typed_data::signing_hash};
use alloy_consensus::{SignableTransaction, TypedTransaction, crypto::secp256k1::sign_message};
use alloy_primitives::{Address, B256, Bytes, Signature, U256, eip191_hash_message, keccak256};
use retrie_chainspec::{DEV_ACCOUNTS, DEV_KEYS};
use retrie_engine::pool::PooledTransaction;
use serde_json::value::RawValue;

/// Signs with the key of a dev account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevWallet {
    key: B256,
}

impl DevWallet {
    /// The key of an account, if it is a dev account.
    pub(crate) fn of(address: &Address) -> Option<Self> {
        let index = DEV_ACCOUNTS.iter().position(|known| known == address)?;
        Some(Self { key: *DEV_KEYS.get(index)? })
    }

    fn sign(self, hash: B256) -> RpcResult<Signature> {
        sign_message(self.key, hash)
            .map_err(|error| RpcError::Internal(format!("signing with a dev key: {error}")))
    }

    /// Signs a message (EIP-191, version 0x45).
    pub(crate) fn sign_message(self, message: &[u8]) -> RpcResult<Bytes> {
        Ok(self.sign(eip191_hash_message(message))?.as_bytes().into())
    }

    /// Signs typed structured data (EIP-712), given as JSON or as a string of JSON.
    pub(crate) fn sign_typed_data(self, data: &RawValue) -> RpcResult<Bytes> {
        let hash = match serde_json::from_str::<String>(data.get()) {
            Ok(text) => signing_hash(&text)?,
            Err(_) => signing_hash(data.get())?,
        };
        Ok(self.sign(hash)?.as_bytes().into())
    }

    /// Signs a transaction.
    pub(crate) fn sign_transaction(self, tx: TypedTransaction) -> RpcResult<PooledTransaction> {
        let signature = self.sign(tx.signature_hash())?;
        with_signature(tx, signature)
    }
}

/// A transaction of an impersonated account, without a real signature. Its placeholder signature
/// contains the sender's hash, so that transactions of different senders have different hashes.
pub(crate) fn impersonated_transaction(
    tx: TypedTransaction,
    sender: &Address,
) -> RpcResult<PooledTransaction> {
    let r = U256::from_be_bytes(keccak256(sender).0) >> 8;
    with_signature(tx, Signature::new(r, U256::from(1), false))
}

fn with_signature(tx: TypedTransaction, signature: Signature) -> RpcResult<PooledTransaction> {
    Ok(match tx {
        TypedTransaction::Legacy(tx) => tx.into_signed(signature).into(),
        TypedTransaction::Eip2930(tx) => tx.into_signed(signature).into(),
        TypedTransaction::Eip1559(tx) => tx.into_signed(signature).into(),
        TypedTransaction::Eip7702(tx) => tx.into_signed(signature).into(),
        TypedTransaction::Eip4844(_) => {
            return Err(RpcError::Internal("a blob transaction without its sidecar".into()));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{TxEip1559, transaction::SignerRecoverable};
    use serde_json::{Value, json, value::to_raw_value};

    #[test]
    fn keys_are_those_of_the_accounts() {
        for address in &DEV_ACCOUNTS {
            let wallet = DevWallet::of(address).expect("a dev account");
            let tx = wallet.sign_transaction(TxEip1559::default().into()).expect("signed");
            assert_eq!(tx.recover_signer().unwrap(), *address);
        }
        assert!(DevWallet::of(&Address::ZERO).is_none());
    }

    #[test]
    fn typed_data_is_signed_as_its_specification_shows() {
        // The example of EIP-712 with its digest.
        let data = json!({
            "types": {
                "EIP712Domain": [
                    {"name": "name", "type": "string"},
                    {"name": "version", "type": "string"},
                    {"name": "chainId", "type": "uint256"},
                    {"name": "verifyingContract", "type": "address"}
                ],
                "Person": [
                    {"name": "name", "type": "string"},
                    {"name": "wallet", "type": "address"}
                ],
                "Mail": [
                    {"name": "from", "type": "Person"},
                    {"name": "to", "type": "Person"},
                    {"name": "contents", "type": "string"}
                ]
            },
            "primaryType": "Mail",
            "domain": {
                "name": "Ether Mail",
                "version": "1",
                "chainId": 1,
                "verifyingContract": "0xCcCCccccCCCCcCCCCCCcCcCccCcCCCcCcccccccC"
            },
            "message": {
                "from": {"name": "Cow", "wallet": "0xCD2a3d9F938E13CD947Ec05AbC7FE734Df8DD826"},
                "to": {"name": "Bob", "wallet": "0xbBbBBBBbbBBBbbbBbbBbbbbBBbBbbbbBbBbbBBbB"},
                "contents": "Hello, Bob!"
            }
        });
        let digest: B256 =
            "0xbe609aee343fb3c4b28e1df9e632fca64fcfaede20f02e86244efddf30957bd2".parse().unwrap();
        let wallet = DevWallet::of(&DEV_ACCOUNTS[0]).unwrap();
        for given in [data.clone(), Value::String(data.to_string())] {
            let signed = wallet.sign_typed_data(&to_raw_value(&given).unwrap()).unwrap();
            let signature = Signature::try_from(&signed[..]).unwrap();
            assert_eq!(signature.recover_address_from_prehash(&digest).unwrap(), DEV_ACCOUNTS[0]);
        }
        assert!(wallet.sign_typed_data(&to_raw_value(&json!({"types": 1})).unwrap()).is_err());
    }
}
