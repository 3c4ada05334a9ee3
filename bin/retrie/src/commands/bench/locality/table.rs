//! The tables of `retrie bench locality`.

use crate::output::{CommandOutput, grouped, say};
use retrie_bench::locality::{
    report::{AccessFigures, TreeFigures, TrieRowFigures},
    rows::RowTimes,
    sparse::TrieCounts,
    timing::{AccessPhase, PageState},
};

pub(super) fn print_head(out: &CommandOutput) -> eyre::Result<()> {
    say!(
        out,
        "\n{:>6} {:<25} {:>8} | {:>7} {:>4} {:>6} {:>5} {:>6} | {:>9} {:>9} {:>9} {:>7} | {:>29} | {:>29}",
        "",
        "",
        "",
        "read",
        "",
        "",
        "",
        "",
        "write",
        "",
        "",
        "",
        "us a read",
        "us a write"
    );
    let times = format!("{:>9} {:>9} {:>9}", "cached", "cold", "mdbx");
    say!(
        out,
        "{:>6} {:<25} {:>8} | {:>7} {:>4} {:>6} {:>5} {:>6} | {:>9} {:>9} {:>9} {:>7} | {times} | {times}",
        "height",
        "layout",
        "MiB",
        "regions",
        "most",
        "pages",
        "slots",
        "least",
        "regions",
        "pages",
        "slots",
        "K"
    );
    Ok(())
}

pub(super) fn print_tree(out: &CommandOutput, tree: &TreeFigures) -> eyre::Result<()> {
    let AccessFigures { regions, pages, slots, .. } = &tree.read;
    let written = &tree.write;
    let some = match written.all {
        true => String::new(),
        false => format!("  (writes of {} leaves)", grouped(written.leaves)),
    };
    let least = tree.least_mean_regions.map_or_else(|| "-".into(), |least| format!("{least:.2}"));
    say!(
        out,
        "{:>6} {:<25} {:>8.1} | {:>7.3} {:>4} {:>6.3} {:>5.0} {least:>6} | {:>9.1} {:>9.1} {:>9.0} {:>7} | {} | \
         {}{some}",
        tree.height,
        tree.name,
        tree.bytes as f64 / f64::from(1 << 20),
        regions.mean,
        regions.max,
        pages.mean,
        slots.mean,
        written.regions.mean,
        written.pages.mean,
        written.slots.mean,
        tree.copies,
        micros(tree, AccessPhase::Read),
        micros(tree, AccessPhase::Write),
    );
    Ok(())
}

fn micros(tree: &TreeFigures, phase: AccessPhase) -> String {
    let places = [Some(PageState::Cached), Some(PageState::Cold), None];
    let cell = |pages| match tree.micros(phase, pages) {
        Some(micros) => format!("{micros:>9.2}"),
        None => format!("{:>9}", "-"),
    };
    places.map(cell).join(" ")
}

pub(super) fn print_trie_head(out: &CommandOutput) -> eyre::Result<()> {
    say!(out, "\ntries of random keys, depth first; in brackets the worst leaf");
    say!(
        out,
        "{:>6} {:>12} {:>7} {:>14} {:>14} {:>14} {:>12}",
        "arity",
        "keys",
        "height",
        "nodes",
        "regions",
        "pages",
        "Delta(n, h)"
    );
    Ok(())
}

pub(super) fn print_trie(out: &CommandOutput, trie: &TrieCounts) -> eyre::Result<()> {
    let leaves = trie.leaves.max(1) as f64;
    let of = |total: u64, max: u64| format!("{:.2} ({max})", total as f64 / leaves);
    say!(
        out,
        "{:>6} {:>12} {:>7} {:>14} {:>14} {:>14} {:>12}",
        trie.arity,
        grouped(trie.leaves),
        trie.height,
        of(trie.path.total, trie.path.max),
        of(trie.regions.total, trie.regions.max),
        of(trie.pages.total, trie.pages.max),
        trie.least_max_regions.map_or_else(|| "-".into(), |least| least.to_string()),
    );
    Ok(())
}

pub(super) fn print_trie_row_head(out: &CommandOutput, samples: u64) -> eyre::Result<()> {
    say!(
        out,
        "\nrows of tries of 2^height random keys: means of {} reads with the path, and of inserts, \
         up to 10,000 a commit",
        grouped(samples)
    );
    say!(
        out,
        "{:>6} {:<19} | {:>7} {:>7} {:>9} {:>9} | {:>9} {:>9} {:>12} {:>13} {:>9}",
        "height",
        "trie",
        "read:",
        "regions",
        "bytes",
        "us",
        "insert:",
        "rows",
        "bytes read",
        "bytes written",
        "us"
    );
    say!(
        out,
        "{:>26} | {:>7} {:>7} {:>9} {:>9} | {:>9} {:>9}",
        "",
        "rows",
        "",
        "",
        "",
        "read",
        "written"
    );
    Ok(())
}

pub(super) fn print_trie_rows(out: &CommandOutput, trie: &TrieRowFigures) -> eyre::Result<()> {
    let TrieRowFigures { read, insert, .. } = trie;
    let or_none = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    say!(
        out,
        "{:>6} {:<19} | {:>7.2} {:>7} {:>9.0} {:>9} | {:>9.2} {:>9.2} {:>12.0} {:>13.0} {:>9}",
        trie.height,
        trie.trie,
        read.means.rows_read,
        or_none(read.means.regions),
        read.means.read_bytes,
        or_none(read.median_us),
        insert.means.rows_read,
        insert.means.rows_written,
        insert.means.read_bytes,
        insert.means.write_bytes,
        or_none(insert.median_us),
    );
    Ok(())
}

pub(super) fn print_rows(out: &CommandOutput, rows: &[RowTimes], count: u32) -> eyre::Result<()> {
    say!(out, "\n{:<18} {:>9} {:>12}", "rows of MDBX", "us a row", "LevelDB's");
    for row in rows {
        say!(out, "{:<18} {:>9.3} {:>12.3}", row.access.name(), row.mean_us, row.leveldb_us);
    }
    say!(
        out,
        "{} rows of 116 bytes, 10,000 a commit, each durable; LevelDB's figures are those of the paper, \
         Table 1",
        grouped(count.into())
    );
    Ok(())
}
