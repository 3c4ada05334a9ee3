//! Merges the reports of the parts of a replay into one report.
//!
//! ```text
//!  a.json (1/3) --.
//!  b.json (2/3) --+--> is each consistent? --> one replay, linked, no part --> sums, spread, gaps
//!  c.json (3/3) --'    (single_check.rs)        twice? (cross_check.rs)       (sum.rs)
//! ```
//!
//! Every value is checked where possible: sums against their outcomes, the bundles of all parts
//! against the digest of the list they were cut from, and the parts of a chain by parent hash.

mod cross_check;
mod error;
mod single_check;
mod sum;
#[cfg(test)]
mod tests;

pub use error::MergeError;

use super::{ReportError, report_text};
use retrie_pipeline::{
    replay::PartSpec,
    report::{ReplayPart, ReplayReport},
};
use std::{collections::BTreeMap, path::Path};

/// The report of a part, and its file name.
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
    /// If the file cannot be read, is not a report, or not the report of a part.
    pub fn read(path: &Path) -> Result<Self, MergeError> {
        let file = path.display().to_string();
        let text =
            report_text(path).map_err(|source| ReportError::Io { file: file.clone(), source })?;
        Self::parse(&file, &text)
    }

    /// Parses the text of a report; `file` is its name in errors.
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

    const fn part(&self) -> PartSpec {
        self.part.part
    }
}

/// Merges the reports of parts, in any order; `command` goes into the merged report. If parts are
/// missing, the merged report is incomplete. A part with two equal reports counts once.
///
/// # Errors
/// If the reports do not belong together, or one of them is inconsistent.
pub fn merge(reports: &[PartReport], command: String) -> Result<ReplayReport, MergeError> {
    let Some((first, others)) = reports.split_first() else { return Err(MergeError::Nothing) };
    for other in others {
        cross_check::same_run(first, other)?;
    }
    let mut parts = BTreeMap::new();
    let mut repeated = Vec::new();
    // The report of a stopped part counts as missing.
    for report in reports.iter().filter(|report| report.report.complete) {
        single_check::check(report)?;
        match parts.get(&report.part()) {
            None => {
                parts.insert(report.part(), report);
            }
            Some(earlier) => {
                cross_check::same_results(earlier, report)?;
                repeated.push(report.part());
            }
        }
    }
    repeated.sort_unstable();
    repeated.dedup();
    let parts: Vec<_> = parts.into_values().collect();
    cross_check::check_continuity(&parts)?;
    Ok(sum::sum(first, &parts, repeated, command))
}
