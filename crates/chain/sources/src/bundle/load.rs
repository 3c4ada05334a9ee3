//! Reads and checks bundles.

use std::path::Path;

use alloy_consensus::EMPTY_OMMER_ROOT_HASH;
use alloy_eips::{
    eip2718::{Decodable2718, Encodable2718},
    eip4895::{Withdrawal, Withdrawals},
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_rlp::{Decodable, Encodable};
use retrie_chainspec::primitives::{Block, BlockBody, Header, Transaction};
use serde::Deserialize;

use super::{
    Bundle, BundleKind, PrestateBundle, WitnessBundle,
    json::{BundleMembers, UniqueMap},
};
use crate::{
    check::{self, same_hash, same_number},
    error::{SourceError, SourceErrorKind, SourcePlace},
    input::SourceInput,
    objects::SourceLocation,
};

/// Largest bundle accepted, in bytes of JSON (1 GiB; a full 60 Mgas block takes some 20 MB).
const MAX_JSON_BYTES: u64 = 1 << 30;

/// How many ancestors the BLOCKHASH opcode reaches (yellow paper, section 9.4 and appendix H).
const BLOCKHASH_DEPTH: u64 = 256;

pub(super) fn load(location: &SourceLocation) -> Result<Bundle, SourceError> {
    let parsed = read(location).and_then(|json| parse(location.name(), &json));
    parsed.map_err(|error| location.explain_error(error))
}

/// The block number of a bundle. Nothing else is parsed or checked.
pub(super) fn peek_number(location: &SourceLocation) -> Result<u64, SourceError> {
    let path = location.name();
    let json = read(location).map_err(|error| location.explain_error(error))?;
    let members = BundleMembers::parse(path, &json)?;
    BundleFormat::of(path, &members)?;
    members.get("number")
}

fn read(location: &SourceLocation) -> Result<Vec<u8>, SourceError> {
    SourceInput::open(location)?.read_whole(MAX_JSON_BYTES, "the bundle")
}

pub(super) fn parse(file: &Path, json: &[u8]) -> Result<Bundle, SourceError> {
    let members = BundleMembers::parse(file, json)?;
    let (block, ommers_known, kind) = match BundleFormat::of(file, &members)? {
        BundleFormat::Witness => {
            let (block, witness) = witness(&members)?;
            (block, true, BundleKind::Witness(witness))
        }
        BundleFormat::Prestate => {
            let (block, ommers_known, prestate) = prestate(&members)?;
            (block, ommers_known, BundleKind::Prestate(prestate))
        }
    };
    if ommers_known {
        check::ommers(&block).map_err(|kind| members.fail("block", kind))?;
    }

    let bundle = Bundle {
        number: members.get("number")?,
        hash: members.get("hash")?,
        fork: members.get("fork")?,
        tx_count: members.get("txs")?,
        gas_used: members.get("gasUsed")?,
        block,
        ommers_known,
        file: file.to_owned(),
        kind,
    };
    let Block { header, body } = &bundle.block;
    let txs = body.transactions.len() as u64;
    same_number("block number", header.number, bundle.number)
        .map_err(|kind| members.fail("number", kind))?;
    same_number("number of transactions", txs, bundle.tx_count)
        .map_err(|kind| members.fail("txs", kind))?;
    same_number("gas used", header.gas_used, bundle.gas_used)
        .map_err(|kind| members.fail("gasUsed", kind))?;
    Ok(bundle)
}

/// The format of a bundle file.
#[derive(Clone, Copy, Debug)]
enum BundleFormat {
    Witness,
    Prestate,
}

impl BundleFormat {
    fn of(file: &Path, members: &BundleMembers<'_>) -> Result<Self, SourceError> {
        if members.has_all(&["block", "headers", "state", "codes"]) {
            Ok(Self::Witness)
        } else if members.has_all(&["header", "transactions", "blockHashes", "pre", "codes"]) {
            Ok(Self::Prestate)
        } else {
            Err(SourceError::new(file, SourcePlace::File, SourceErrorKind::NotABundle))
        }
    }
}

fn witness(members: &BundleMembers<'_>) -> Result<(Block, WitnessBundle), SourceError> {
    let block: Block = rlp(members, "block", &members.get::<Bytes>("block")?)?;
    check_hash(members, "block", &block.header)?;
    check::transactions_and_withdrawals(&block).map_err(|kind| members.fail("block", kind))?;

    let witness = WitnessBundle {
        pre_state_root: members.get("preStateRoot")?,
        post_state_root: members.get("postStateRoot")?,
        headers: ancestors(members, &block.header)?,
        state: members.get("state")?,
        codes: members.get("codes")?,
        pre: members.state("pre")?,
        post: members.state("post")?,
    };
    same_hash("post-state root", block.header.state_root, witness.post_state_root)
        .map_err(|kind| members.fail("postStateRoot", kind))?;
    if let Some(parent) = witness.headers.last() {
        same_hash("pre-state root", parent.state_root, witness.pre_state_root)
            .map_err(|kind| members.fail("preStateRoot", kind))?;
    }
    Ok((block, witness))
}

/// The ancestor headers: linked by parent hash, the last one the block's parent.
fn ancestors(members: &BundleMembers<'_>, block: &Header) -> Result<Vec<Header>, SourceError> {
    let encoded: Vec<Bytes> = members.get("headers")?;
    if encoded.is_empty() {
        let kind = SourceErrorKind::Format("there is no parent header");
        return Err(members.fail("headers", kind));
    }
    let mut headers = encoded
        .iter()
        .enumerate()
        .map(|(i, bytes)| rlp(members, &format!("headers[{i}]"), bytes))
        .collect::<Result<Vec<Header>, _>>()?;
    let mut child = block;
    for (i, header) in headers.iter().enumerate().rev() {
        let fail = |kind| members.fail(format!("headers[{i}]"), kind);
        same_hash("hash of the ancestor", child.parent_hash, keccak256(&encoded[i]))
            .map_err(fail)?;
        let Some(number) = child.number.checked_sub(1) else {
            return Err(fail(SourceErrorKind::Format("block 0 has no parent")));
        };
        same_number("number of the ancestor", number, header.number).map_err(fail)?;
        child = header;
    }
    headers.shrink_to_fit();
    Ok(headers)
}

fn prestate(members: &BundleMembers<'_>) -> Result<(Block, bool, PrestateBundle), SourceError> {
    let header: Header = rlp(members, "header", &members.get::<Bytes>("header")?)?;
    check_hash(members, "header", &header)?;
    let transactions = transactions(members)?;
    let withdrawals = withdrawals(members)?;
    let uncle_hashes: Vec<B256> = members.get("uncleHashes")?;
    let full: Option<Bytes> = members.optional("block")?;

    let listed = BlockBody { transactions, ommers: Vec::new(), withdrawals };
    let (block, ommers_known) = match full {
        Some(bytes) => {
            let block: Block = rlp(members, "block", &bytes)?;
            let fail = |kind| members.fail("block", kind);
            same_hash("hash of the block's header", header.hash_slow(), block.header.hash_slow())
                .map_err(fail)?;
            if block.body.transactions != listed.transactions
                || block.body.withdrawals != listed.withdrawals
            {
                return Err(fail(SourceErrorKind::Format(
                    "its body differs from `transactions` and `withdrawals`",
                )));
            }
            if !block.body.ommers_hashes().eq(uncle_hashes.iter().copied()) {
                return Err(fail(SourceErrorKind::Format("its ommers differ from `uncleHashes`")));
            }
            (block, true)
        }
        None => {
            // Without ommers the block is complete, provided the header says the same.
            let none = uncle_hashes.is_empty();
            if none != (header.ommers_hash == EMPTY_OMMER_ROOT_HASH) {
                let kind = SourceErrorKind::Format("contradicts the header's ommersHash");
                return Err(members.fail("uncleHashes", kind));
            }
            (Block::new(header, listed), none)
        }
    };
    check::transactions_and_withdrawals(&block)
        .map_err(|kind| members.fail("transactions", kind))?;

    let senders: Vec<Address> = members.get("senders")?;
    same_number("number of senders", block.body.transactions.len() as u64, senders.len() as u64)
        .map_err(|kind| members.fail("senders", kind))?;

    let UniqueMap(block_hashes) = members.get::<UniqueMap<u64, B256>>("blockHashes")?;
    let number = block.header.number;
    for (&ancestor, &hash) in &block_hashes {
        let fail = |kind| members.fail(format!("blockHashes.{ancestor}"), kind);
        if ancestor >= number || number - ancestor > BLOCKHASH_DEPTH {
            return Err(fail(SourceErrorKind::Format(
                "not one of the 256 ancestors that BLOCKHASH reaches",
            )));
        }
        if ancestor + 1 == number {
            same_hash("hash of the parent", block.header.parent_hash, hash).map_err(fail)?;
        }
    }

    let UniqueMap(codes) = members.get::<UniqueMap<B256, Bytes>>("codes")?;
    for (hash, code) in &codes {
        same_hash("hash of the code", *hash, keccak256(code))
            .map_err(|kind| members.fail(format!("codes.{hash}"), kind))?;
    }
    let pre =
        members.state("pre")?.ok_or_else(|| members.fail("pre", SourceErrorKind::MissingMember))?;
    Ok((block, ommers_known, PrestateBundle { senders, uncle_hashes, block_hashes, pre, codes }))
}

fn transactions(members: &BundleMembers<'_>) -> Result<Vec<Transaction>, SourceError> {
    let encoded: Vec<Bytes> = members.get("transactions")?;
    encoded
        .iter()
        .enumerate()
        .map(|(i, bytes)| {
            let fail = |kind| members.fail(format!("transactions[{i}]"), kind);
            let tx = Transaction::decode_2718_exact(bytes)
                .map_err(|e| fail(SourceErrorKind::Transaction(e)))?;
            // The root is computed over re-encoded transactions: they must be these very bytes.
            if tx.encoded_2718() != *bytes {
                return Err(fail(SourceErrorKind::Format("not in canonical encoding")));
            }
            Ok(tx)
        })
        .collect()
}

fn withdrawals(members: &BundleMembers<'_>) -> Result<Option<Withdrawals>, SourceError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct RawWithdrawal {
        index: u64,
        validator_index: u64,
        address: Address,
        amount_gwei: u64,
    }

    let raw: Option<Vec<RawWithdrawal>> = members.optional("withdrawals")?;
    Ok(raw.map(|raw| {
        raw.into_iter()
            .map(|w| Withdrawal {
                index: w.index,
                validator_index: w.validator_index,
                address: w.address,
                amount: w.amount_gwei,
            })
            .collect::<Vec<_>>()
            .into()
    }))
}

/// Keccak-256 of the header's RLP against `hash`. The header was decoded strictly, so encoding it
/// again gives the bytes of the file.
fn check_hash(
    members: &BundleMembers<'_>,
    member: &str,
    header: &Header,
) -> Result<(), SourceError> {
    same_hash("block hash", members.get("hash")?, header.hash_slow())
        .map_err(|kind| members.fail(member, kind))
}

/// Decodes RLP that must fill the member exactly.
fn rlp<T: Decodable + Encodable>(
    members: &BundleMembers<'_>,
    member: &str,
    bytes: &[u8],
) -> Result<T, SourceError> {
    check::decode_strictly(bytes, "the content", &mut Vec::new())
        .map_err(|kind| members.fail(member, kind))
}
