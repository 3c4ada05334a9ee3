//! Small vectors: compact trie paths, keys and addresses, signed transactions.

use crate::format::{TestVerdict, parse};
use alloy_consensus::{SignableTransaction, TxLegacy, transaction::SignerRecoverable};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use alloy_trie::{Nibbles, nodes::encode_path_leaf};
use k256::ecdsa::SigningKey;
use retrie_chainspec::primitives::Transaction;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Debug, Deserialize)]
struct NibbleTest {
    seq: Vec<u8>,
    term: bool,
    out: String,
}

/// A path with its flags, as in leaves and extensions.
pub(super) fn nibbles(json: &RawValue) -> TestVerdict {
    let test: NibbleTest = parse(json)?;
    if test.seq.iter().any(|nibble| *nibble > 15) {
        return Err("seq is not a list of nibbles".into());
    }
    let path = Nibbles::from_nibbles(&test.seq);
    let got = alloy_primitives::hex::encode(encode_path_leaf(&path, test.term));
    if got != test.out { Err(format!("{got}, expected {}", test.out)) } else { Ok(()) }
}

#[derive(Debug, Deserialize)]
struct KeyTest {
    seed: String,
    key: B256,
    addr: Address,
}

/// The key is the hash of its seed and gives its address. The signatures in the files use an
/// obsolete scheme.
pub(super) fn key(json: &RawValue) -> TestVerdict {
    let test: KeyTest = parse(json)?;
    if keccak256(&test.seed) != test.key {
        return Err(format!("the key is not the hash of {}", test.seed));
    }
    let got = address_of(test.key)?;
    if got != test.addr {
        Err(format!("it is the key of {got}, not {}", test.addr))
    } else {
        Ok(())
    }
}

fn address_of(key: B256) -> Result<Address, String> {
    let key = SigningKey::from_slice(key.as_slice()).map_err(|error| format!("key: {error}"))?;
    Ok(Address::from_private_key(&key))
}

#[derive(Debug, Deserialize)]
struct TransactionTest {
    key: B256,
    nonce: u64,
    gasprice: u64,
    startgas: u64,
    to: String,
    value: u64,
    data: String,
    unsigned: String,
    signed: String,
}

/// The bytes decode to these fields and to the signed content, signed by this key.
pub(super) fn transaction(json: &RawValue) -> TestVerdict {
    let test: TransactionTest = parse(json)?;
    let hex = |text: &str| text.parse::<Bytes>().map_err(|error| format!("{text}: {error}"));
    let to = match test.to.as_str() {
        "" => TxKind::Create,
        to => TxKind::Call(to.parse().map_err(|error| format!("{to}: {error}"))?),
    };
    let expected = TxLegacy {
        chain_id: None,
        nonce: test.nonce,
        gas_price: u128::from(test.gasprice),
        gas_limit: test.startgas,
        to,
        value: U256::from(test.value),
        input: hex(&test.data)?,
    };
    let signed = hex(&test.signed)?;
    let decoded = Transaction::decode_2718_exact(&signed).map_err(|error| error.to_string())?;
    let legacy = decoded.as_legacy().ok_or("it is no legacy transaction")?;
    if *legacy.tx() != expected {
        return Err(format!("decodes to {:?}", legacy.tx()));
    }
    // The signed content has an empty signature: three empty strings at the end.
    let mut fields = Vec::new();
    expected.encode_for_signing(&mut fields);
    let payload = alloy_rlp::Header::decode_bytes(&mut fields.as_slice(), true)
        .map_err(|error| error.to_string())?
        .to_vec();
    let mut unsigned = Vec::new();
    alloy_rlp::Header { list: true, payload_length: payload.len() + 3 }.encode(&mut unsigned);
    unsigned.extend(payload);
    unsigned.extend([0x80; 3]);
    if unsigned != *hex(&test.unsigned)? {
        return Err(format!("unsigned it is {}", Bytes::from(unsigned)));
    }
    // High s values were allowed at that time.
    let signer = decoded.recover_signer_unchecked().map_err(|error| error.to_string())?;
    let expected = address_of(test.key)?;
    if signer != expected { Err(format!("signed by {signer}, not {expected}")) } else { Ok(()) }
}
