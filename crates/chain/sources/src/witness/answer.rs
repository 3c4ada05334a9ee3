//! The answer of any client to `debug_executionWitness`, read so that nothing of its form is lost.

use super::{ExecutionWitness, STATE_WITNESS_MEMBER, json::WitnessJson};
use crate::{SourceError, SourceErrorKind, SourceLocation, SourcePlace};
use alloy_primitives::{Bytes, hex, keccak256};
use retrie_chainspec::primitives::Header;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
        value::MapAccessDeserializer,
    },
};
use serde_json::{Map, Value};
use std::{fmt, path::Path};

/// Most entries of a list.
const MAX_ENTRIES: usize = 1 << 22;
/// Most names of unknown members that are kept.
const MAX_UNKNOWN: usize = 16;

/// The answer of some client. It may be in a JSON-RPC response, and the block may be with it.
#[derive(Clone, Debug, Default)]
pub struct WitnessAnswer {
    /// Trie nodes.
    pub state: AnswerList,
    /// Contract codes.
    pub codes: AnswerList,
    /// Keys.
    pub keys: AnswerList,
    /// RLP of headers.
    pub headers: AnswerList,
    /// RLP of the block, in a file of `retrie witness make` and in a witness bundle.
    pub block: Option<Bytes>,
    /// Other members, some of them.
    pub unknown: Vec<String>,
}

/// A list of an answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerList {
    /// How it is written.
    pub form: ListForm,
    /// Its entries, in their order.
    pub entries: Vec<AnswerEntry>,
}

/// How a list is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListForm {
    /// The member is not there.
    #[default]
    Absent,
    /// `null`.
    Null,
    /// A list.
    List,
    /// An object with a value for each hash, as old clients answer.
    Map,
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEntry {
    /// Bytes in hexadecimal.
    Hex(Bytes),
    /// A header as a JSON object, here as RLP.
    HeaderObject(Bytes),
    /// Neither, for this reason.
    Malformed(String),
}

impl AnswerEntry {
    /// The bytes, if there are any.
    pub const fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Hex(bytes) | Self::HeaderObject(bytes) => Some(bytes),
            Self::Malformed(_) => None,
        }
    }
}

impl WitnessAnswer {
    /// Reads an answer from a file, plain or gzipped JSON.
    ///
    /// # Errors
    /// If the file cannot be read, or is no JSON object that may be an answer. Anything else is left
    /// to the caller to judge.
    pub fn load(source: impl Into<SourceLocation>) -> Result<Self, SourceError> {
        WitnessJson::load(source)?.parse()
    }
}

impl WitnessAnswer {
    /// The witness, in whatever order its entries are. `file` is for error messages.
    ///
    /// # Errors
    /// If an entry is not bytes.
    pub fn into_witness(self, file: &Path) -> Result<ExecutionWitness, SourceError> {
        let list = |name: &str, list: AnswerList| {
            let bytes = |(at, entry): (usize, AnswerEntry)| match entry {
                AnswerEntry::Hex(bytes) | AnswerEntry::HeaderObject(bytes) => Ok(bytes),
                AnswerEntry::Malformed(_) => {
                    let place = SourcePlace::Member(format!("{name}[{at}]"));
                    Err(SourceError::new(file, place, SourceErrorKind::Format("it is not bytes")))
                }
            };
            list.entries.into_iter().enumerate().map(bytes).collect::<Result<Vec<Bytes>, _>>()
        };
        Ok(ExecutionWitness {
            state: list("state", self.state)?,
            codes: list("codes", self.codes)?,
            keys: list("keys", self.keys)?,
            headers: list("headers", self.headers)?,
        })
    }
}

impl From<ExecutionWitness> for WitnessAnswer {
    fn from(witness: ExecutionWitness) -> Self {
        let list = |entries: Vec<Bytes>| AnswerList {
            form: ListForm::List,
            entries: entries.into_iter().map(AnswerEntry::Hex).collect(),
        };
        let ExecutionWitness { state, codes, keys, headers } = witness;
        let keys = if keys.is_empty() { AnswerList::default() } else { list(keys) };
        let [state, codes, headers] = [state, codes, headers].map(list);
        Self { state, codes, keys, headers, ..Self::default() }
    }
}

impl<'de> Deserialize<'de> for WitnessAnswer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(AnswerVisitor { nested: false })
    }
}

/// Reads the members of an answer, or of a response that holds one.
#[derive(Clone, Copy)]
struct AnswerVisitor {
    /// Whether this is within a JSON-RPC response.
    nested: bool,
}

impl<'de> DeserializeSeed<'de> for AnswerVisitor {
    type Value = WitnessAnswer;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<WitnessAnswer, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AnswerVisitor {
    type Value = WitnessAnswer;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an execution witness: an object with `state`, `codes` and `headers`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WitnessAnswer, A::Error> {
        let mut answer = WitnessAnswer::default();
        let mut response = None;
        while let Some(name) = map.next_key::<String>()? {
            let list = match &*name {
                "state" => &mut answer.state,
                "codes" => &mut answer.codes,
                "keys" => &mut answer.keys,
                "headers" => &mut answer.headers,
                "block" => {
                    answer.block = map.next_value()?;
                    continue;
                }
                "result" if !self.nested => {
                    response = Some(map.next_value_seed(Self { nested: true })?);
                    continue;
                }
                STATE_WITNESS_MEMBER => {
                    return Err(A::Error::custom("the witness of a store, no execution witness"));
                }
                "error" if !self.nested => {
                    let error: Value = map.next_value()?;
                    let message = error.get("message").and_then(Value::as_str).unwrap_or("?");
                    return Err(A::Error::custom(format_args!("the node refused: {message}")));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    if answer.unknown.len() < MAX_UNKNOWN {
                        answer.unknown.push(name);
                    }
                    continue;
                }
            };
            if list.form != ListForm::Absent {
                return Err(A::Error::custom(format_args!("`{name}` is there twice")));
            }
            *list = map.next_value()?;
        }
        let answer = response.unwrap_or(answer);
        let lists = [&answer.state, &answer.codes, &answer.headers];
        if lists.iter().all(|list| list.form == ListForm::Absent) {
            return Err(A::Error::custom("no execution witness: no `state`, `codes`, `headers`"));
        }
        Ok(answer)
    }
}

impl<'de> Deserialize<'de> for AnswerList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListVisitor;

        impl<'de> Visitor<'de> for ListVisitor {
            type Value = AnswerList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list, or an object of values by hash")
            }

            fn visit_unit<E: Error>(self) -> Result<AnswerList, E> {
                Ok(AnswerList { form: ListForm::Null, entries: Vec::new() })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AnswerList, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = seq.next_element()? {
                    push(&mut entries, entry)?;
                }
                Ok(AnswerList { form: ListForm::List, entries })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AnswerList, A::Error> {
                let mut entries = Vec::new();
                while let Some((_, entry)) = map.next_entry::<IgnoredAny, _>()? {
                    push(&mut entries, entry)?;
                }
                Ok(AnswerList { form: ListForm::Map, entries })
            }
        }

        from.deserialize_any(ListVisitor)
    }
}

fn push<E: Error>(entries: &mut Vec<AnswerEntry>, entry: AnswerEntry) -> Result<(), E> {
    if entries.len() == MAX_ENTRIES {
        return Err(E::custom(format_args!("a list has more than {MAX_ENTRIES} entries")));
    }
    entries.push(entry);
    Ok(())
}

impl<'de> Deserialize<'de> for AnswerEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct EntryVisitor;

        /// An entry of another JSON type.
        fn other<E>(found: Unexpected<'_>) -> Result<AnswerEntry, E> {
            Ok(AnswerEntry::Malformed(format!("{found}, not bytes in hexadecimal")))
        }

        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = AnswerEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in hexadecimal, or a header")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<AnswerEntry, E> {
                let bytes = text.strip_prefix("0x").and_then(|digits| hex::decode(digits).ok());
                Ok(match bytes {
                    Some(bytes) => AnswerEntry::Hex(bytes.into()),
                    None => AnswerEntry::Malformed("a text that is not 0x and hexadecimal".into()),
                })
            }

            fn visit_unit<E: Error>(self) -> Result<AnswerEntry, E> {
                other(Unexpected::Unit)
            }

            fn visit_bool<E: Error>(self, found: bool) -> Result<AnswerEntry, E> {
                other(Unexpected::Bool(found))
            }

            fn visit_u64<E: Error>(self, found: u64) -> Result<AnswerEntry, E> {
                other(Unexpected::Unsigned(found))
            }

            fn visit_i64<E: Error>(self, found: i64) -> Result<AnswerEntry, E> {
                other(Unexpected::Signed(found))
            }

            fn visit_f64<E: Error>(self, found: f64) -> Result<AnswerEntry, E> {
                other(Unexpected::Float(found))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AnswerEntry, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                other(Unexpected::Seq)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AnswerEntry, A::Error> {
                let members = Map::deserialize(MapAccessDeserializer::new(map))?;
                Ok(match header_of(members) {
                    Ok(rlp) => AnswerEntry::HeaderObject(rlp),
                    Err(why) => AnswerEntry::Malformed(why),
                })
            }
        }

        from.deserialize_any(EntryVisitor)
    }
}

/// The RLP of a header that is written as an object.
fn header_of(mut members: Map<String, Value>) -> Result<Bytes, String> {
    // Older versions of geth call the hash of the block access list so.
    if let Some(hash) = members.remove("balHash") {
        members.entry("blockAccessListHash").or_insert(hash);
    }
    let named = members.get("hash").cloned();
    let header = serde_json::from_value::<Header>(Value::Object(members));
    let header = header.map_err(|error| format!("an object that is no header: {error}"))?;
    let rlp = Bytes::from(alloy_rlp::encode(&header));
    match named {
        Some(named) if named != Value::String(keccak256(&rlp).to_string()) => {
            Err(format!("a header whose hash is {}, and it says {named}", keccak256(&rlp)))
        }
        _ => Ok(rlp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<WitnessAnswer, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn forms_of_clients_are_read_and_what_is_no_answer_is_refused() {
        let header = Header { number: 7, ..Header::default() };
        let object = serde_json::to_string(&header).unwrap();
        let answer = read(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"state":{{"0x00":"0x01"}},"codes":["0x",7,"zz",["x"]],
            "keys":null,"headers":[{object}],"more":[{{}}]}}}}"#
        ))
        .unwrap();
        assert_eq!(answer.state.form, ListForm::Map);
        assert_eq!(answer.state.entries, [AnswerEntry::Hex([1].into())]);
        assert_eq!(answer.codes.entries[0], AnswerEntry::Hex(Bytes::new()));
        assert!(answer.codes.entries[1..].iter().all(|entry| entry.bytes().is_none()));
        assert_eq!(
            (answer.keys.form, &*answer.unknown),
            (ListForm::Null, &["more".to_owned()][..])
        );
        let rlp = Bytes::from(alloy_rlp::encode(&header));
        assert_eq!(answer.headers.entries, [AnswerEntry::HeaderObject(rlp)]);
        for (wrong, why) in [
            ("[]", "an execution witness"),
            ("{}", "no execution witness"),
            (r#"{"state":[],"state":[]}"#, "twice"),
            (r#"{"state":7}"#, "a list"),
            (r#"{"error":{"code":1,"message":"pruned"}}"#, "pruned"),
            (r#"{"result":{"result":{"state":[]}}}"#, "no execution witness"),
            (r#"{"state":["0x00""#, "EOF"),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
