//! Log filters in requests.

use crate::args::BlockNumberParam;
use alloy_primitives::{Address, B256};
use alloy_rpc_types_eth::{Filter, FilterBlockOption};
use serde::{
    Deserialize, Deserializer,
    de::{
        self, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
};
use std::{fmt, marker::PhantomData};

/// A log filter. Unknown fields are ignored, as in geth.
#[derive(Clone, Debug, Default)]
pub(super) struct LogFilter(pub(super) Filter);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FilterFields {
    block_hash: Option<B256>,
    from_block: Option<BlockNumberParam>,
    to_block: Option<BlockNumberParam>,
    address: Option<OneOrMany<Address>>,
    topics: Option<Vec<Option<OneOrMany<B256>>>>,
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FilterVisitor;

        impl<'de> Visitor<'de> for FilterVisitor {
            type Value = LogFilter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with blockHash, fromBlock, toBlock, address, topics")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LogFilter, A::Error> {
                FilterFields::deserialize(MapAccessDeserializer::new(map))?
                    .into_filter()
                    .map(LogFilter)
            }
        }
        deserializer.deserialize_any(FilterVisitor)
    }
}

impl FilterFields {
    fn into_filter<E: de::Error>(self) -> Result<Filter, E> {
        let [from_block, to_block] =
            [self.from_block, self.to_block].map(|tag| tag.map(|BlockNumberParam(number)| number));
        let block_option = match self.block_hash {
            Some(_) if from_block.is_some() || to_block.is_some() => {
                return Err(E::custom(
                    "cannot specify both blockHash and fromBlock/toBlock, choose one or the other",
                ));
            }
            Some(hash) => FilterBlockOption::AtBlockHash(hash),
            None => FilterBlockOption::Range { from_block, to_block },
        };
        let mut filter = Filter { block_option, ..Filter::default() };
        if let Some(OneOrMany(addresses)) = self.address {
            let addresses: Option<Vec<Address>> = addresses.into_iter().collect();
            let none = || E::custom("null is no address");
            filter.address = addresses.ok_or_else(none)?.into();
        }
        let topics = self.topics.unwrap_or_default();
        if topics.len() > filter.topics.len() {
            return Err(E::custom("exceed max topics"));
        }
        for (place, topic) in filter.topics.iter_mut().zip(topics) {
            let Some(OneOrMany(alternatives)) = topic else { continue };
            // A null in the list matches every topic.
            let named: Option<Vec<B256>> = alternatives.into_iter().collect();
            *place = named.unwrap_or_default().into();
        }
        Ok(filter)
    }
}

/// A value, or a list of values and nulls.
struct OneOrMany<T>(Vec<Option<T>>);

impl<'de, T: for<'text> Deserialize<'text>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValuesVisitor<T>(PhantomData<T>);

        impl<'de, T: for<'text> Deserialize<'text>> Visitor<'de> for ValuesVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string in hexadecimal, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
                let text: StrDeserializer<'_, E> = text.into_deserializer();
                Ok(OneOrMany(vec![Some(T::deserialize(text)?)]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany<T>, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(OneOrMany(values))
            }
        }
        deserializer.deserialize_any(ValuesVisitor(PhantomData))
    }
}
