//! One colour per backend, the same on every page.
//!
//! The named colours are those of Okabe and Ito (Color Universal Design, 2008), which can be
//! distinguished with colour-blind eyes, and some others between them in hue and brightness. Light
//! colours are darkened, so that each has a contrast of at least 3 to 1 with the page (WCAG 2.1,
//! 1.4.11). Colour is never the only mark: every bar and line has its name beside it.

/// The colour of a name on light and on dark pages.
pub(super) struct BackendColour {
    pub(super) light: &'static str,
    pub(super) dark: &'static str,
    /// Percentage of this colour; the rest is the text colour.
    pub(super) strength: u8,
}

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

/// The colour of `name`. The text after an `@` or a `:` is a variant of the backend, and selects a
/// shade of the same colour.
pub(super) fn colour(name: &str) -> BackendColour {
    let (base, variety) =
        name.split_once(['@', ':']).map_or((name, None), |(base, v)| (base, Some(v)));
    let known = |wanted: &str| named().find(|(known, ..)| *known == wanted);
    let found = known(base).or_else(|| known(base.split('-').next().unwrap_or(base)));
    let (light, dark) = match found {
        Some((_, light, dark)) => (light, dark),
        None => OTHERS[place(base) % OTHERS.len()],
    };
    let strength = variety.map_or(100, |variety| [82, 66, 50][place(variety) % 3]);
    BackendColour { light, dark, strength }
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

    #[test]
    fn every_name_has_a_colour_and_keeps_it() {
        assert_eq!(colour("lvmt").light, "#d55e00");
        assert_eq!(colour("lvmt@0/64").light, "#d55e00");
        assert!(colour("lvmt@0/64").strength < colour("lvmt").strength);
        assert_eq!(colour("cole-sync:fanout=8").light, colour("cole-sync").light);
        assert_eq!(colour("firewood-ethhash").light, colour("firewood").light);
        assert_ne!(colour("mpt-archive").light, colour("mpt").light);
        assert_eq!(colour("from nowhere").light, colour("from nowhere").light);
        for (n, (name, light, _)) in named().enumerate() {
            let before = named().take(n).find(|(_, other, _)| *other == light);
            assert_eq!(before, None, "{name} and another share a colour");
        }
    }
}
