//! Many reports of parts as one report of the whole replay.
//!
//! ```text
//!  a.json (1/3) --.
//!  b.json (2/3) --+--> each alone: does it fit itself?  --> together: one run, linked, --> sums, spread,
//!  c.json (3/3) --'    (alone.rs)                            nothing twice (together.rs)   gaps (sum.rs)
//! ```
//!
//! Nothing is believed twice: sums are held against the outcomes they are of, the bundles of all parts
//! against the digest of the list they were cut from, and parts of a chain are linked by hash.

mod alone;
mod error;
mod sum;
#[cfg(test)]
mod tests;
mod together;

pub use error::MergeError;

use super::ReportError;
use retrie_pipeline::{
    replay::Part,
    report::{ReplayPart, ReplayReport},
};
use std::{collections::BTreeMap, path::Path};

/// The report of a part, and where it comes from.
#[derive(Clone, Debug)]
pub struct PartReport {
    file: String,
    part: ReplayPart,
    report: ReplayReport,
}

impl PartReport {
    /// Reads a report from a file.
    ///
    /// # Errors
    /// If it cannot be read, is no report, or not that of a part.
    pub fn read(path: &Path) -> Result<Self, MergeError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ReportError::Io { file: file.clone(), source })?;
        Self::parse(&file, &text)
    }

    /// Takes the text of a report; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(file: &str, text: &str) -> Result<Self, MergeError> {
        let report: ReplayReport = serde_json::from_str(text)
            .map_err(|source| ReportError::Shape { file: file.into(), source })?;
        match report.part.clone() {
            Some(part) if report.merged.is_none() => Ok(Self { file: file.into(), part, report }),
            _ => Err(MergeError::NotAPart { file: file.into() }),
        }
    }

    const fn part(&self) -> Part {
        self.part.part
    }
}

/// Makes one report of those of parts, whatever their order; `command` is said to have made it. Parts that
/// are missing make it incomplete. A part that was run twice with the same results counts once.
///
/// # Errors
/// If they do not belong together, or one of them cannot be true.
pub fn merge(reports: &[PartReport], command: String) -> Result<ReplayReport, MergeError> {
    let Some((first, others)) = reports.split_first() else { return Err(MergeError::Nothing) };
    for other in others {
        together::same_run(first, other)?;
    }
    let mut parts = BTreeMap::new();
    let mut repeated = Vec::new();
    // One that was stopped has nothing to say of what it has not come to.
    for report in reports.iter().filter(|report| report.report.complete) {
        alone::check(report)?;
        match parts.get(&report.part()) {
            None => {
                parts.insert(report.part(), report);
            }
            Some(earlier) => {
                together::same_results(earlier, report)?;
                repeated.push(report.part());
            }
        }
    }
    repeated.sort_unstable();
    repeated.dedup();
    let parts: Vec<_> = parts.into_values().collect();
    together::follow(&parts)?;
    Ok(sum::sum(first, &parts, repeated, command))
}
