//! Answers of archive nodes from files: JSON lines, one block each.

use super::error::MakeTraceError;
use flate2::read::MultiGzDecoder;
use retrie_sources::rpc::BlockTraces;
use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

/// Calls `visit` with each line of a file, which is gzipped if its name ends in `.gz`. Empty lines
/// are skipped.
pub(super) fn read(
    file: &Path,
    visit: &mut dyn FnMut(BlockTraces) -> Result<(), MakeTraceError>,
) -> Result<(), MakeTraceError> {
    let failed = MakeTraceError::io("reading", file);
    let opened = File::open(file).map_err(&failed)?;
    let input: Box<dyn Read> = match file.extension().is_some_and(|end| end == "gz") {
        true => Box::new(MultiGzDecoder::new(opened)),
        false => Box::new(opened),
    };
    for (line, text) in (1..).zip(BufReader::with_capacity(1 << 20, input).lines()) {
        let text = text.map_err(&failed)?;
        if text.trim().is_empty() {
            continue;
        }
        let traces = serde_json::from_str(&text).map_err(|source| MakeTraceError::Answer {
            file: file.into(),
            line,
            source,
        })?;
        visit(traces)?;
    }
    Ok(())
}
