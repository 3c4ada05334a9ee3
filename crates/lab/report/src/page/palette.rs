//! One colour per backend, the same on every page, and for each page a marker and the colours of
//! varieties (`cole:size-ratio=4`, `lvmt@0/64`).
//!
//! The named colours are those of Okabe and Ito (Color Universal Design, 2008), which can be
//! distinguished with colour-blind eyes, and some others between them in hue and brightness. Light
//! colours are darkened, so that each has a contrast of at least 3 to 1 with the page (WCAG 2.1,
//! 1.4.11). Colour is never the only mark: every bar and line has its name beside it, and every
//! name of a page its own marker, as long as there are markers.

use std::collections::{BTreeMap, BTreeSet};

/// The colour of a name on light and on dark pages, and its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackendStyle {
    pub(super) light: &'static str,
    pub(super) dark: &'static str,
    /// Percentage of this colour; the rest is the text colour.
    pub(super) strength: u8,
    pub(super) marker: char,
}

/// Markers of lines, in the order in which the names of a page get them.
const MARKERS: [char; 10] = ['●', '■', '▲', '◆', '▼', '★', '✚', '○', '□', '△'];

/// Shades of a few varieties of a backend.
const SHADES: [u8; 3] = [82, 66, 50];
/// Shades of the backends of a page that have more varieties than shades.
const SHADES_OF_MANY: [u8; 3] = [100, 62, 45];

/// Colours of systems that are not backends here. Each backend declares its own colours.
const NAMED: [(&str, &str, &str); 5] = [
    ("avlplus", "#8f7bbd", "#c9bdea"),
    ("nomt", "#2b2b2b", "#e6e2da"),
    ("firewood", "#882255", "#d06a9b"),
    ("geth", "#117733", "#5fc07f"),
    ("reth", "#b2182b", "#ef6f6c"),
];

/// Colours of all other names.
const OTHERS: [(&str, &str); 6] = [
    ("#318f80", "#76d0c0"),
    ("#85852b", "#c7c76a"),
    ("#aa4499", "#d57fc7"),
    ("#332288", "#9386e0"),
    ("#a65628", "#d98c5f"),
    ("#607080", "#9fb0c0"),
];

/// The styles of all names of a page. The text after an `@` or a `:` is a variety of the backend:
/// up to three have shades of its colour, more have colours of their own.
pub(super) fn styles<'n>(names: &BTreeSet<&'n str>) -> Vec<(&'n str, BackendStyle)> {
    let mut varieties: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        if let Some((base, variety)) = name.split_once(['@', ':']) {
            varieties.entry(base).or_default().push(variety);
        }
    }
    for all in varieties.values_mut() {
        all.sort_by(|a, b| in_order(a).cmp(&in_order(b)));
    }
    let many: Vec<_> = varieties.iter().filter(|(_, all)| all.len() > SHADES.len()).collect();
    let style = |(n, name): (usize, &&'n str)| {
        let marker = MARKERS[n % MARKERS.len()];
        let Some((base, variety)) = name.split_once(['@', ':']) else {
            let (light, dark) = colour(name);
            return (*name, BackendStyle { light, dark, strength: 100, marker });
        };
        let all = &varieties[base];
        let place = all.iter().position(|other| *other == variety).unwrap_or(0);
        let rank = many.iter().position(|(other, _)| **other == base);
        let ((light, dark), strength) = match rank {
            None => (colour(base), SHADES[place % SHADES.len()]),
            Some(rank) => {
                (OTHERS[place % OTHERS.len()], SHADES_OF_MANY[rank % SHADES_OF_MANY.len()])
            }
        };
        (*name, BackendStyle { light, dark, strength, marker })
    };
    names.iter().enumerate().map(style).collect()
}

/// A key that sorts numbers in a text by their value: `size-ratio=4` before `size-ratio=12`.
fn in_order(text: &str) -> Vec<(u64, &str)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let words = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[words..].find(|c: char| !c.is_ascii_digit());
        let end = digits.map_or(rest.len(), |digits| words + digits);
        parts.push((0, &rest[..words]));
        parts.push((rest[words..end].parse().unwrap_or(u64::MAX), ""));
        rest = &rest[end..];
    }
    parts
}

/// The colour of a name without a variety, on light and on dark pages.
fn colour(base: &str) -> (&'static str, &'static str) {
    let known = |wanted: &str| named().find(|(known, ..)| *known == wanted);
    let found = known(base).or_else(|| known(base.split('-').next().unwrap_or(base)));
    match found {
        Some((_, light, dark)) => (light, dark),
        None => OTHERS[place(base) % OTHERS.len()],
    }
}

/// All names with a colour of their own.
fn named() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let ours = retrie_backends::all().map(|backend| {
        let [light, dark] = backend.colours;
        (backend.name, light, dark)
    });
    ours.chain(NAMED)
}

/// The FNV-1a hash of a name. It must not change between versions.
fn place(name: &str) -> usize {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance and contrast as WCAG defines them.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |hex: &str| {
            let part = |at: usize| {
                let part = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
                if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// The value of the CSS variable `name` on light and on dark pages.
    fn of_style(name: &str) -> Vec<&'static str> {
        let style = include_str!("style.css");
        let found = style.match_indices(name).map(|(at, _)| &style[at + name.len()..][..7]);
        found.take(2).collect()
    }

    #[test]
    fn every_colour_stands_out_from_the_paper_and_parts_from_each_other_in_grey() {
        let paper = of_style("--paper:");
        let others = OTHERS.map(|(light, dark)| ("another", light, dark));
        for (name, light, dark) in named().chain(others) {
            assert!(contrast(light, paper[0]) >= 3.0, "{name}: {light} on light paper");
            assert!(contrast(dark, paper[1]) >= 3.0, "{name}: {dark} on dark paper");
        }
        let parts = ["--p0:", "--p1:", "--p2:"].map(of_style);
        for (side, paper) in paper.iter().enumerate() {
            let [a, b, c] = [&parts[0], &parts[1], &parts[2]].map(|part| part[side]);
            assert!([a, b, c].iter().all(|part| contrast(part, paper) >= 3.0), "{a} {b} {c}");
            for (one, other) in [(a, b), (b, c), (a, c)] {
                assert!(contrast(one, other) >= 1.5, "{one} and {other} are alike in grey");
            }
        }
    }

    fn style(names: &[&str], wanted: &str) -> BackendStyle {
        let names: BTreeSet<_> = names.iter().copied().collect();
        styles(&names).into_iter().find(|(name, _)| *name == wanted).unwrap().1
    }

    #[test]
    fn every_name_has_a_colour_and_keeps_it() {
        let alone = |name| style(&[name], name);
        assert_eq!(alone("lvmt").light, "#d55e00");
        assert_eq!(alone("lvmt@0/64").light, "#d55e00");
        assert!(alone("lvmt@0/64").strength < alone("lvmt").strength);
        assert_eq!(alone("cole-sync:fanout=8").light, alone("cole-sync").light);
        assert_eq!(alone("firewood-ethhash").light, alone("firewood").light);
        assert_ne!(alone("mpt-archive").light, alone("mpt").light);
        assert_eq!(alone("from nowhere").light, alone("from nowhere").light);
        for (n, (name, light, _)) in named().enumerate() {
            let before = named().take(n).find(|(_, other, _)| *other == light);
            assert_eq!(before, None, "{name} and another share a colour");
        }
    }

    #[test]
    fn varieties_of_one_backend_have_colours_and_markers_of_their_own() {
        let of =
            |base: &str| [2, 4, 6, 8, 10, 12].map(|ratio| format!("{base}:size-ratio={ratio}"));
        let names: Vec<_> = [of("cole"), of("cole-sync")].concat();
        let names: BTreeSet<_> = names.iter().map(String::as_str).collect();
        let all = styles(&names);
        for (n, (name, style)) in all.iter().enumerate() {
            let twin = all[..n]
                .iter()
                .find(|(_, other)| (other.light, other.strength) == (style.light, style.strength));
            assert_eq!(twin, None, "{name} looks like another");
        }
        let few = ["lvmt", "lvmt@0/16", "lvmt@0/64", "lvmt@all"];
        let markers: BTreeSet<_> = few.iter().map(|name| style(&few, name).marker).collect();
        let shades: BTreeSet<_> = few.iter().map(|name| style(&few, name).strength).collect();
        assert_eq!((markers.len(), shades.len()), (4, 4));
        assert!(in_order("size-ratio=4") < in_order("size-ratio=12"));
    }
}
