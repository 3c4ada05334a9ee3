//! Flags and registration of the backend `prefix`.

use super::{Prefix, PrefixLayout, RowOrder};
use retrie_state::{
    AnyBackend,
    descriptor::{
        BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, MakeError, StorePurpose,
        parses_as,
    },
};
use std::{str::FromStr, sync::Arc};

/// Value of `--prefix.keep-history`: number of blocks below the tip whose states are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeepHistory(Option<u64>);

impl FromStr for KeepHistory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self(None)),
            number => number
                .parse()
                .map(|blocks| Self(Some(blocks)))
                .map_err(|_| "it is a number of blocks, or `all`".into()),
        }
    }
}

/// Value of `--prefix.pad`: whether prefixes are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PadPrefixes(bool);

impl FromStr for PadPrefixes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "0" => Ok(Self(false)),
            "64" => Ok(Self(true)),
            _ => Err("it is 0 or 64".into()),
        }
    }
}

const KEEP: &str = "prefix.keep-history";
const ORDER: &str = "prefix.order";
const PAD: &str = "prefix.pad";

const FLAGS: &[BackendFlag] = &[
    BackendFlag {
        long: KEEP,
        value_name: "BLOCKS",
        help: "Keep the last BLOCKS states of `prefix`, with their proofs, or `all`; no fewer than \
               --retention. May be changed at any time, but deleted states do not come back. \
               [default: all]",
        default: None,
        takes: FlagArgument::Text(parses_as::<KeepHistory>),
    },
    BackendFlag {
        long: ORDER,
        value_name: "ORDER",
        help: "Order of the rows of `prefix`, fixed when a datadir is created: `path`, or `hash` \
               to measure the effect of the order alone. [default: path]",
        default: None,
        takes: FlagArgument::Text(parses_as::<RowOrder>),
    },
    BackendFlag {
        long: PAD,
        value_name: "NIBBLES",
        help: "Pad prefixes in `prefix` to 64 nibbles, as its paper does to compare; 0 does not. \
               Fixed when a datadir is created. [default: 0]",
        default: None,
        takes: FlagArgument::Text(parses_as::<PadPrefixes>),
    },
];

/// The backend `prefix`.
pub(crate) const DESCRIPTOR: BackendDescriptor = BackendDescriptor {
    flags: FLAGS,
    // So that a test of a few dozen blocks forgets old states.
    small_flags: &[(KEEP, "20")],
    advice,
    ..BackendDescriptor::plain(
        "prefix",
        "Ethereum's trie, all versions, nodes by path",
        make,
        || Arc::new(Prefix::default()),
        ["#b87f00", "#f2bb45"],
    )
};

fn make(making: &ConstructorInput<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
    let flags = making.flags;
    let KeepHistory(keep) = flags.get(KEEP)?.unwrap_or(KeepHistory(None));
    let (order, pad): (Option<RowOrder>, Option<PadPrefixes>) =
        (flags.get(ORDER)?, flags.get(PAD)?);
    let over = |layout: PrefixLayout| PrefixLayout {
        order: order.unwrap_or(layout.order),
        padded: pad.map_or(layout.padded, |PadPrefixes(padded)| padded),
    };
    let layout = match making.purpose {
        StorePurpose::Temporary | StorePurpose::New { .. } => over(PrefixLayout::default()),
        StorePurpose::Existing { datadir, layout, .. } => {
            let found = PrefixLayout::named(layout);
            let wanted = over(found.unwrap_or_default());
            if found != Some(wanted) {
                return Err(MakeError::OtherLayout {
                    backend: "prefix",
                    datadir: datadir.to_owned(),
                    found: layout.to_owned(),
                    expected: wanted.name().to_owned(),
                });
            }
            wanted
        }
    };
    let prefix = Prefix::new(layout, keep);
    Ok(Arc::new(match flags.cache_bytes() {
        Some(bytes) => prefix.with_cache(bytes),
        None => prefix,
    }))
}

fn advice(error: &MakeError) -> Option<&'static str> {
    match error {
        MakeError::OtherLayout { found, .. } if PrefixLayout::named(found).is_none() => Some(
            "another version of this program wrote the datadir: import into a fresh one, or let \
             that version move the chain to another backend (`retrie db migrate`)",
        ),
        MakeError::OtherLayout { .. } => {
            Some("leave out --prefix.order and --prefix.pad, or import into a fresh datadir")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_state::descriptor::FlagValues;
    use std::path::Path;

    fn made(order: Option<&str>, layout: &str) -> Result<&'static str, MakeError> {
        let mut flags = FlagValues::default();
        if let Some(order) = order {
            flags.set(&FLAGS[1], order)?;
        }
        let params = Default::default();
        let purpose = StorePurpose::Existing { datadir: Path::new("datadir"), params, layout };
        let made = make(&ConstructorInput { flags: &flags, purpose, cache: None })?;
        Ok(made.identity().layout)
    }

    #[test]
    fn a_datadir_keeps_its_layout_and_earlier_formats_of_rows_are_refused() {
        for (layout, name) in PrefixLayout::ALL {
            assert_eq!(made(None, name).unwrap(), name);
            let other = if layout.order == RowOrder::Path { "hash" } else { "path" };
            let error = made(Some(other), name).unwrap_err();
            assert!(advice(&error).is_some_and(|advice| advice.contains("--prefix.order")));
        }
        for earlier in ["path", "hash", "path,pad=64", "hash,pad=64", ""] {
            let error = made(None, earlier).unwrap_err();
            assert!(matches!(&error, MakeError::OtherLayout { found, .. } if found == earlier));
            assert!(advice(&error).is_some_and(|advice| advice.contains("another version")));
        }
    }
}
