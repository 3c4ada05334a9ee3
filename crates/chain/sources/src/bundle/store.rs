//! Writes a prestate bundle.

use std::{io::Write, path::Path};

use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Bytes, KECCAK256_EMPTY, U256};
use flate2::{Compression, write::GzEncoder};
use retrie_chainspec::primitives::Block;
use serde_json::{Map, Value, json};

use super::{PreAccount, PrestateBundle};
use crate::{error::SourceError, export::AtomicFile};

/// The JSON of a prestate bundle. `fork` is the name of the rule set, for people. Accounts and
/// slots that do not exist are left out, as the format requires. Equal bundles give equal bytes.
pub fn encode_prestate(block: &Block, fork: &str, state: &PrestateBundle) -> Vec<u8> {
    let Block { header, body } = block;
    let encoded = body.transactions.iter().map(|tx| Bytes::from(tx.encoded_2718()));
    let withdrawals = body.withdrawals.as_ref().map(|list| {
        let one = |w: &alloy_eips::eip4895::Withdrawal| {
            json!({
                "index": w.index,
                "validatorIndex": w.validator_index,
                "address": w.address,
                "amountGwei": w.amount,
            })
        };
        list.iter().map(one).collect::<Vec<_>>()
    });
    let pre: Map<_, _> = state
        .pre
        .iter()
        .filter_map(|(address, account)| Some((format!("{address:#x}"), encode(account.as_ref()?))))
        .collect();
    let json = json!({
        "number": header.number,
        "hash": header.hash_slow(),
        "fork": fork,
        "txs": body.transactions.len(),
        "gasUsed": header.gas_used,
        "header": Bytes::from(alloy_rlp::encode(header)),
        "transactions": encoded.collect::<Vec<_>>(),
        "senders": state.senders.iter().map(|sender| format!("{sender:#x}")).collect::<Vec<_>>(),
        "uncleHashes": state.uncle_hashes,
        "withdrawals": withdrawals,
        "block": Bytes::from(alloy_rlp::encode(block)),
        "blockHashes": state.block_hashes,
        "pre": pre,
        "codes": state.codes,
    });
    let mut bytes = json.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

fn encode(account: &PreAccount) -> Value {
    let storage: Map<_, _> = account
        .storage
        .iter()
        .filter(|(_, value)| !value.is_zero())
        .map(|(slot, value)| (format!("{:#x}", U256::from_be_bytes(slot.0)), json!(value)))
        .collect();
    let mut json = json!({"nonce": account.nonce, "balance": account.balance, "storage": storage});
    if account.code_hash != KECCAK256_EMPTY {
        json["codeHash"] = json!(account.code_hash);
    }
    json
}

/// Writes JSON to a gzipped file that appears under its name only when it is complete and on disk.
///
/// # Errors
/// If the file cannot be written. The target is then unchanged.
pub fn write_json_gz(target: impl AsRef<Path>, json: &[u8]) -> Result<(), SourceError> {
    let target = target.as_ref();
    let file = AtomicFile::create(target)?;
    let mut gzip = GzEncoder::new(file, Compression::default());
    let file = gzip
        .write_all(json)
        .and_then(|()| gzip.finish())
        .map_err(|e| SourceError::io(target, "write the file", e))?;
    file.finish(target)
}
