//! The headers of a witness: a chain that ends with the block's parent.

use super::finding::{FindingCode, FindingList};
use alloy_primitives::{B256, keccak256, map::HashMap};
use alloy_rlp::Decodable;
use retrie_chainspec::primitives::Header;
use retrie_sources::witness::{AnswerEntry, AnswerList};
use std::collections::BTreeMap;

/// The ancestors that the headers of a witness show.
#[derive(Debug)]
pub(super) struct AncestorChain {
    /// Headers by number, without gaps up to the parent, with their positions in the list.
    headers: BTreeMap<u64, (usize, Header)>,
    /// Hashes of ancestors by number: those of the headers, and of the parent of the oldest one.
    pub(super) hashes: HashMap<u64, B256>,
}

impl AncestorChain {
    /// The ancestors of the block with this header. Reports entries that are none.
    pub(super) fn of(list: &AnswerList, block: &Header, findings: &mut FindingList) -> Self {
        let mut decoded: HashMap<B256, (usize, Header)> = HashMap::default();
        let mut last: Option<u64> = None;
        let mut is_ordered = true;
        for (at, entry) in list.entries.iter().enumerate() {
            let Some((hash, header)) = decode(at, entry, findings) else { continue };
            is_ordered &= last.is_none_or(|last| last <= header.number);
            last = Some(header.number);
            if let Some((first, _)) = decoded.get(&hash) {
                let what = format!("repeats headers[{first}]");
                findings.at(FindingCode::HeadersDuplicate, "headers", at, what);
                continue;
            }
            decoded.insert(hash, (at, header));
        }
        if !is_ordered {
            let what = "`headers` are not in ascending order of their numbers";
            findings.add(FindingCode::HeadersOrder, what);
        }
        let mut chain = Self { headers: BTreeMap::new(), hashes: HashMap::default() };
        let (mut hash, mut number) = (block.parent_hash, block.number);
        while let Some(before) = number.checked_sub(1) {
            chain.hashes.insert(before, hash);
            let Some((at, header)) = decoded.remove(&hash) else { break };
            if header.number != before {
                decoded.insert(hash, (at, header));
                break;
            }
            hash = header.parent_hash;
            number = before;
            chain.headers.insert(before, (at, header));
        }
        let mut others: Vec<_> = decoded.into_values().collect();
        others.sort_unstable_by_key(|(at, _)| *at);
        for (at, header) in others {
            let what = format!("is block {}'s, to which no header above it leads", header.number);
            findings.at(FindingCode::HeadersUnlinked, "headers", at, what);
        }
        if chain.headers.is_empty() {
            let what = format!("the header of the parent {} is not there", block.parent_hash);
            findings.add(FindingCode::HeadersMissing, what);
        }
        chain
    }

    /// The header of the parent.
    pub(super) fn parent(&self) -> Option<&Header> {
        self.headers.last_key_value().map(|(_, (_, header))| header)
    }

    /// Reports headers that are missing or unused, if `read` is the oldest ancestor that BLOCKHASH
    /// reads. Returns how many are needed.
    pub(super) fn check_use(
        &self,
        read: Option<u64>,
        parent: u64,
        findings: &mut FindingList,
    ) -> usize {
        let oldest = read.map_or(parent, |read| read.min(parent));
        for (number, (at, _)) in self.headers.range(..oldest) {
            let what = format!("is block {number}'s, and block {oldest}'s is the oldest needed");
            findings.at(FindingCode::HeadersUnused, "headers", *at, what);
        }
        let first = self.headers.keys().next().copied();
        if let Some(first) = first.filter(|first| *first > oldest) {
            let what = match first - 1 {
                last if last == oldest => format!("the header of block {oldest} is"),
                last => format!("the headers of blocks {oldest} to {last} are"),
            };
            let what = format!("{what} not there, and BLOCKHASH reads its hash");
            findings.add(FindingCode::HeadersMissing, what);
        }
        self.headers.range(oldest..).count()
    }
}

fn decode(at: usize, entry: &AnswerEntry, findings: &mut FindingList) -> Option<(B256, Header)> {
    let rlp = match entry {
        AnswerEntry::Hex(rlp) => rlp,
        AnswerEntry::HeaderObject(rlp) => {
            let what = "is a JSON object, not RLP";
            findings.at(FindingCode::HeadersForm, "headers", at, what);
            rlp
        }
        AnswerEntry::Malformed(what) => {
            let what = format!("is {what}");
            findings.at(FindingCode::EntryMalformed, "headers", at, what);
            return None;
        }
    };
    let mut rest = rlp.as_ref();
    match Header::decode(&mut rest) {
        Ok(header) if rest.is_empty() && alloy_rlp::encode(&header)[..] == rlp[..] => {
            Some((keccak256(rlp), header))
        }
        _ => {
            findings.at(FindingCode::HeadersMalformed, "headers", at, "is no RLP of a header");
            None
        }
    }
}
