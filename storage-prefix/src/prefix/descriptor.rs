//! What lists of backends have of `prefix`.

use super::{Layout, Order, Prefix};
use retrie_state::{
    AnyBackend,
    descriptor::{Descriptor, Flag, MakeError, Making, Purpose, Takes, is},
};
use std::{str::FromStr, sync::Arc};

/// How many blocks below the tip are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept(Option<u64>);

impl FromStr for Kept {
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

/// How long prefixes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pad(bool);

impl FromStr for Pad {
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

const FLAGS: &[Flag] = &[
    Flag {
        long: KEEP,
        value_name: "BLOCKS",
        help: "Keep the last BLOCKS states of `prefix`, with their proofs, or `all`; no fewer than \
               --retention. May be changed at any time: what has been forgotten does not come back. \
               [default: all]",
        default: None,
        takes: Takes::Text(is::<Kept>),
    },
    Flag {
        long: ORDER,
        value_name: "ORDER",
        help: "Order of the rows of `prefix`, settled when a datadir is made: `path`, or `hash` to \
               measure what order alone is worth. [default: path]",
        default: None,
        takes: Takes::Text(is::<Order>),
    },
    Flag {
        long: PAD,
        value_name: "NIBBLES",
        help: "Pad prefixes in `prefix` to 64 nibbles, as its paper does to compare, settled when a \
               datadir is made; 0 does not. [default: 0]",
        default: None,
        takes: Takes::Text(is::<Pad>),
    },
];

/// `prefix`.
pub const DESCRIPTOR: Descriptor = Descriptor {
    flags: FLAGS,
    // Old states are forgotten while a few dozen blocks go by.
    small_flags: &[(KEEP, "20")],
    advice,
    ..Descriptor::plain(
        "prefix",
        "Ethereum's trie, all versions, nodes by path",
        make,
        || Arc::new(Prefix::default()),
        ["#b87f00", "#f2bb45"],
    )
};

fn make(making: &Making<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
    let flags = making.flags;
    let Kept(keep) = flags.get(KEEP)?.unwrap_or(Kept(None));
    let (order, pad): (Option<Order>, Option<Pad>) = (flags.get(ORDER)?, flags.get(PAD)?);
    let over = |layout: Layout| Layout {
        order: order.unwrap_or(layout.order),
        padded: pad.map_or(layout.padded, |Pad(padded)| padded),
    };
    let layout = match making.purpose {
        Purpose::Trial | Purpose::New { .. } => over(Layout::default()),
        Purpose::Existing { datadir, layout, .. } => {
            let found = Layout::named(layout);
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
    Ok(Arc::new(Prefix::new(layout, keep)))
}

fn advice(error: &MakeError) -> Option<&'static str> {
    matches!(error, MakeError::OtherLayout { .. })
        .then_some("leave out --prefix.order and --prefix.pad, or import into a fresh datadir")
}
