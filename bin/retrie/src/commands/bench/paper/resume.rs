//! Continues a stopped run from its JSON file.

use retrie_report::{BenchReport, report_text};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// Why a run cannot be continued.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResumeError {
    #[error("reading {}: {source}", file.display())]
    Io { file: PathBuf, source: std::io::Error },
    #[error("{} is no report of `retrie bench paper`, so it cannot be continued: {source}", file.display())]
    Shape { file: PathBuf, source: serde_json::Error },
    #[error(
        "{} was made by another {what}: {theirs}; this is {ours}. Continue it as it was begun, or \
         write to another file", file.display()
    )]
    Differs { file: PathBuf, what: &'static str, theirs: String, ours: String },
}

/// The report in `file` up to its last finished step, to be continued as `fresh` would begin;
/// `None` if there is no file.
pub(super) fn resumed(
    file: &Path,
    fresh: &BenchReport,
) -> Result<Option<BenchReport>, ResumeError> {
    let text = match report_text(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| ResumeError::Io { file: file.into(), source })?,
    };
    let shape = |source| ResumeError::Shape { file: file.into(), source };
    let mut report: BenchReport = serde_json::from_str(&text).map_err(shape)?;
    let sides = |of: &BenchReport| {
        [("command", of.command.clone()), ("version", of.version.clone())]
            .into_iter()
            .chain([("machine", of.machine.clone())])
            .collect::<Vec<_>>()
    };
    for ((what, theirs), (_, ours)) in sides(&report).into_iter().zip(sides(fresh)) {
        let same = match what {
            "command" => arguments(&theirs).eq(arguments(&ours)),
            _ => theirs == ours,
        };
        if !same {
            return Err(ResumeError::Differs { file: file.into(), what, theirs, ours });
        }
    }
    // The results of a step that did not finish are measured again.
    report.results.truncate(report.steps.iter().map(|step| step.results).sum());
    report.figures.clone_from(&fresh.figures);
    report.command.clone_from(&fresh.command);
    report.complete = false;
    Ok(Some(report))
}

/// The words of a command line that decide what a repetition measures: not where it is written, nor
/// `--repeat`, so that a finished run can be repeated more often.
fn arguments(command: &str) -> impl Iterator<Item = &str> {
    const WITH_VALUE: [&str; 3] = ["--repeat", "--json", "--report"];
    let mut words = command.split_whitespace().skip(1);
    std::iter::from_fn(move || {
        loop {
            let word = words.next()?;
            let (flag, value) = word.split_once('=').map_or((word, None), |(f, v)| (f, Some(v)));
            if WITH_VALUE.contains(&flag) {
                if value.is_none() {
                    words.next();
                }
            } else if word != "--resume" {
                return Some(word);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_report::{BenchResult, FinishedStep};

    fn report(command: &str) -> BenchReport {
        let result = |backend: &str| BenchResult { backend: backend.into(), ..Default::default() };
        let results = ["raw", "lvmt", "half"].map(result).into();
        let mut report = BenchReport::new(command.into(), results);
        report.steps = vec![FinishedStep { key: "Fig. 4".into(), results: 2 }];
        report
    }

    #[test]
    fn a_stopped_run_goes_on_after_its_last_step_and_another_command_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.json");
        let ours = report("/bin/retrie bench paper lvmt --json run.json --resume");
        assert!(resumed(&file, &ours).unwrap().is_none(), "no file");
        let stopped = report("target/retrie bench paper lvmt --json run.json");
        std::fs::write(&file, serde_json::to_string(&stopped).unwrap()).unwrap();
        let found = resumed(&file, &ours).unwrap().unwrap();
        assert_eq!((found.results.len(), found.complete), (2, false));
        let more = report("retrie bench paper lvmt --repeat 5 --json=./run.json --resume");
        let found = resumed(&file, &more).unwrap().unwrap();
        assert_eq!((found.results.len(), found.command), (2, more.command));
        let other = report("retrie bench paper cole --json run.json --resume");
        let error = resumed(&file, &other).unwrap_err();
        assert!(matches!(error, ResumeError::Differs { what: "command", .. }), "{error}");
        let newer = BenchReport { version: "9".into(), ..ours };
        let error = resumed(&file, &newer).unwrap_err();
        assert!(matches!(error, ResumeError::Differs { what: "version", .. }), "{error}");
        std::fs::write(&file, "{").unwrap();
        assert!(matches!(resumed(&file, &newer), Err(ResumeError::Shape { .. })));
    }
}
