//! Reference figures: values that the papers state, and values of their authors' programs on our
//! machine. The tables lie in `figures/`.

use super::{Paper, registry::figures_in};
use retrie_report::ReferenceFigure;

/// A line of a table.
struct ReferenceLine {
    reference: ReferenceFigure,
    /// The words of the paper that contain the value; `None` if it was measured here.
    #[cfg_attr(not(test), expect(dead_code, reason = "evidence, for tests and readers"))]
    quote: Option<&'static str>,
}

/// Values that `paper` states in its text and tables, and values of its authors' programs and of
/// other stores on our machine. `mpt-archive:prune` stands for the MPT of LVMT and LMPT, which deletes
/// the nodes that a block replaces; `mpt-archive`, which never deletes, for COLE's. `lvmt@0/64` is LVMT
/// with one of 64 proof shards, `avlplus` the baseline of B+AVL.
pub fn references(paper: Paper) -> Vec<ReferenceFigure> {
    lines(paper).map(|line| line.reference).collect()
}

fn table(paper: Paper) -> &'static str {
    match paper {
        Paper::Lvmt => include_str!("figures/lvmt.txt"),
        Paper::Cole => include_str!("figures/cole.txt"),
        Paper::Lmpt => include_str!("figures/lmpt.txt"),
        Paper::Locality => include_str!("figures/locality.txt"),
        Paper::Bavl => include_str!("figures/bavl.txt"),
    }
}

/// The lines of a table. A line that cannot be parsed is left out; a test checks that there is
/// none.
fn lines(paper: Paper) -> impl Iterator<Item = ReferenceLine> {
    rows(paper).filter_map(move |row| line(paper, row))
}

fn rows(paper: Paper) -> impl Iterator<Item = &'static str> {
    table(paper).lines().filter(|row| !row.is_empty() && !row.starts_with('#'))
}

fn line(paper: Paper, row: &'static str) -> Option<ReferenceLine> {
    let mut cells = row.split(" | ");
    let mut cell = || cells.next();
    let (system, workload, setting) = (cell()?, cell()?, cell()?);
    let (metric, value, place) = (cell()?, cell()?.parse().ok()?, cell()?);
    let quote = cell().filter(|quote| *quote != "-");
    let source = match quote {
        Some(_) => format!("{}, {place}", paper.short_title()),
        None => format!("{place}, measured on a machine of ours"),
    };
    let [system, workload, setting, metric] =
        [system, workload, setting, metric].map(str::to_owned);
    let figures = figures_in(paper, place).iter().map(|figure| figure.name.into()).collect();
    Some(ReferenceLine {
        reference: ReferenceFigure { source, system, workload, setting, metric, value, figures },
        quote,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::text_of, *};

    #[test]
    fn every_line_is_read_and_every_field_filled() {
        for paper in Paper::ALL {
            assert_eq!(lines(paper).count(), rows(paper).count(), "{paper} has a line of nonsense");
            assert!(rows(paper).count() >= 9, "{paper} has hardly any figures");
            for reference in references(paper) {
                let ReferenceFigure { source, system, workload, setting, metric, value, figures } =
                    &reference;
                // What was measured here belongs to no figure of the paper.
                let ours = source.ends_with("machine of ours");
                assert_eq!(figures.is_empty(), ours, "{reference:?}");
                let texts = [source, system, workload, setting, metric];
                assert!(texts.iter().all(|text| !text.trim().is_empty()), "{reference:?}");
                assert!(value.is_finite() && *value > 0.0, "{reference:?}");
                let known = [
                    "transfers",
                    "erc20",
                    "uniswap",
                    "smallbank",
                    "kvstore",
                    "state",
                    "provenance",
                    "trees",
                    "sync",
                    "locality",
                    "crypto",
                ];
                assert!(known.contains(&workload.as_str()), "{reference:?}");
            }
        }
    }

    #[test]
    fn the_papers_say_what_is_quoted() {
        for paper in Paper::ALL {
            let Some(text) = text_of(paper) else { return };
            for line in lines(paper) {
                let quoted = line.quote.is_none_or(|quote| text.contains(quote));
                assert!(quoted, "{paper} does not say {:?}: {:?}", line.quote, line.reference);
            }
        }
    }
}
