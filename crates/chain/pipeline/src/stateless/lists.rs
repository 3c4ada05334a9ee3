//! The lists of an answer: their form, order and duplicates.

use super::finding::{FindingCode, FindingList};
use alloy_primitives::{Bytes, map::HashMap};
use retrie_sources::witness::{AnswerEntry, AnswerList, ListForm, WitnessAnswer};

/// The codes of the faults that any list of bytes can have.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListCodes {
    order: FindingCode,
    duplicate: FindingCode,
}

pub(super) const STATE: ListCodes =
    ListCodes { order: FindingCode::StateOrder, duplicate: FindingCode::StateDuplicate };
pub(super) const CODES: ListCodes =
    ListCodes { order: FindingCode::CodesOrder, duplicate: FindingCode::CodesDuplicate };
pub(super) const KEYS: ListCodes =
    ListCodes { order: FindingCode::KeysOrder, duplicate: FindingCode::KeysDuplicate };

/// Reports which members are missing, unknown or in another form.
pub(super) fn check_members(answer: &WitnessAnswer, findings: &mut FindingList) {
    let lists = [("state", &answer.state), ("codes", &answer.codes), ("headers", &answer.headers)];
    for (name, list) in lists {
        match list.form {
            ListForm::List => {}
            ListForm::Absent => {
                findings.add(FindingCode::MemberMissing, format!("`{name}` is not there"));
            }
            ListForm::Null => {
                findings.add(FindingCode::MemberForm, format!("`{name}` is null, not a list"));
            }
            ListForm::Map => {
                let what = format!("`{name}` is an object of values by hash, not a list");
                findings.add(FindingCode::MemberForm, what);
            }
        }
    }
    let keys = &answer.keys;
    match keys.form {
        ListForm::Absent => {}
        ListForm::Map => {
            let what = "`keys` is an object of values by hash, not a list";
            findings.add(FindingCode::MemberForm, what);
        }
        ListForm::List if !keys.entries.is_empty() => {}
        form => {
            let form = if form == ListForm::Null { "null" } else { "an empty list" };
            let what = format!("`keys` is {form}; a witness without keys leaves it out");
            findings.add(FindingCode::KeysEmpty, what);
        }
    }
    // A file that has the block too is no plain answer, and may have more.
    if answer.block.is_none() {
        for name in &answer.unknown {
            let what = format!("`{}` is no member of a witness", name.escape_debug());
            findings.add(FindingCode::MemberUnknown, what);
        }
    }
}

/// The entries of `list` that are bytes, each once, with their positions. Reports all others, and
/// whether they are in ascending order.
pub(super) fn unique_entries(
    name: &str,
    list: &AnswerList,
    codes: ListCodes,
    findings: &mut FindingList,
) -> Vec<(usize, Bytes)> {
    let mut first: HashMap<&Bytes, usize> = HashMap::default();
    let mut unique = Vec::with_capacity(list.entries.len());
    let (mut last, mut inversions): (Option<&Bytes>, Vec<usize>) = (None, Vec::new());
    for (at, entry) in list.entries.iter().enumerate() {
        let bytes = match entry {
            AnswerEntry::Hex(bytes) => bytes,
            AnswerEntry::HeaderObject(_) => {
                findings.at(FindingCode::EntryMalformed, name, at, "is a header");
                continue;
            }
            AnswerEntry::Malformed(what) => {
                findings.at(FindingCode::EntryMalformed, name, at, format_args!("is {what}"));
                continue;
            }
        };
        if last.is_some_and(|last| bytes < last) {
            inversions.push(at);
        }
        last = Some(bytes);
        match first.get(bytes) {
            Some(first) => {
                findings.at(codes.duplicate, name, at, format_args!("repeats {name}[{first}]"));
            }
            None => {
                first.insert(bytes, at);
                unique.push((at, bytes.clone()));
            }
        }
    }
    // The values of an object have no order.
    if let Some(at) = inversions.first().filter(|_| list.form == ListForm::List) {
        let what = format!(
            "is less than the entry before it, as {} of {} are",
            inversions.len(),
            list.entries.len()
        );
        findings.at(codes.order, name, *at, what);
    }
    unique
}
