//! The configuration file: flags of `retrie node` as TOML. The command line overrides it.
//!
//! ```toml
//! http = true
//! chain = "sepolia"
//! [txpool]
//! max-account-slots = 32      # --txpool.max-account-slots 32
//! ```

use crate::NodeCommand;
use clap::{Arg, ArgAction, Command, CommandFactory, Parser};
use eyre::{Context, bail};
use std::{ffi::OsString, fmt::Write, path::Path};
use toml::{Table, Value};

/// The flags set in the file, in the form of the command line.
///
/// # Errors
/// If the file cannot be read, is not TOML, or sets what is no flag or not of its kind.
pub fn flags_of(file: &Path) -> eyre::Result<Vec<OsString>> {
    let text = std::fs::read_to_string(file)
        .wrap_err_with(|| format!("reading the configuration {}", file.display()))?;
    let table: Table = text
        .parse()
        .wrap_err_with(|| format!("the configuration {} is not TOML", file.display()))?;
    let command = node_command();
    let mut flags = Vec::new();
    add(&command, file, "", &table, &mut flags)?;
    Ok(flags)
}

/// Checks the flags of `file`.
///
/// # Errors
/// Unless they form a valid command line.
pub fn check(file: &Path, flags: &[OsString]) -> eyre::Result<()> {
    let all = std::iter::once("node".into()).chain(flags.iter().cloned());
    NodeCommand::try_parse_from(all).map(drop).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        eyre::eyre!("{}: {}", file.display(), first.trim_start_matches("error: "))
    })
}

fn node_command() -> Command {
    NodeCommand::command()
}

fn add(
    command: &Command,
    file: &Path,
    prefix: &str,
    table: &Table,
    flags: &mut Vec<OsString>,
) -> eyre::Result<()> {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        // `http` is a flag, and `[http]` is a table of flags.
        if let Value::Table(table) = value {
            add(command, file, &name, table, flags)?;
            continue;
        }
        let name = name.strip_suffix(".enabled").unwrap_or(&name);
        let Some(arg) = find(command, name) else {
            bail!("{}: there is no flag --{name} of `retrie node`", file.display());
        };
        let wrong = |wanted| eyre::eyre!("{}: {name} must be {wanted}", file.display());
        if takes_value(arg) {
            let text = plain(value).ok_or_else(|| wrong("a text, a number or a list of these"))?;
            flags.push(format!("--{name}={text}").into());
        } else {
            match value {
                Value::Boolean(true) => flags.push(format!("--{name}").into()),
                Value::Boolean(false) => {}
                _ => return Err(wrong("true or false")),
            }
        }
    }
    Ok(())
}

fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(name))
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Array(items) => Some(items.iter().map(plain).collect::<Option<Vec<_>>>()?.join(",")),
        Value::Boolean(value) => Some(value.to_string()),
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// All flags of `retrie node` with their defaults, as a configuration file in comments.
pub fn defaults() -> String {
    let command = node_command();
    let mut text = String::from(
        "# Configuration of `retrie node --config FILE`. Flags on the command line win.\n",
    );
    let mut heading = None;
    for arg in command.get_arguments() {
        let Some(name) = arg.get_long().filter(|name| !matches!(*name, "help" | "config")) else {
            continue;
        };
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            let _ = writeln!(text, "\n# {}", heading.unwrap_or("Other"));
        }
        if let Some(help) = arg.get_help() {
            let help = help.to_string().replace('\n', "\n# ");
            let _ = writeln!(text, "\n# {help}");
        }
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let value = match (takes_value(arg), defaults.join(",")) {
            (false, _) => "false".into(),
            (true, text) if text.is_empty() => "\"\"".into(),
            (true, text) if text.parse::<i64>().is_ok() => text,
            (true, text) => format!("{text:?}"),
        };
        let _ = writeln!(text, "# \"{name}\" = {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> eyre::Result<Vec<OsString>> {
        let mut file = tempfile::NamedTempFile::new()?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        flags_of(file.path())
    }

    #[test]
    fn a_file_of_all_defaults_gives_the_defaults() {
        let text = defaults();
        assert!(text.contains("\"txpool.max-account-slots\" = 16"), "{text}");
        let set: String = text
            .lines()
            .filter_map(|line| line.strip_prefix("# \""))
            .filter(|line| !line.ends_with("\"\"") && !line.ends_with("false"))
            .map(|line| format!("\"{line}\n"))
            .collect();
        let mut line = vec![OsString::from("node")];
        line.extend(flags(&set).unwrap());
        let given = NodeCommand::try_parse_from(&line).unwrap();
        let none = NodeCommand::try_parse_from(["node"]).unwrap();
        assert_eq!(format!("{given:?}"), format!("{none:?}"));
    }

    #[test]
    fn tables_are_prefixes_and_unknown_keys_are_named() {
        let set = flags("full = true\ndev = false\n[txpool]\nmax-account-slots = 3\n").unwrap();
        assert_eq!(set, ["--full", "--txpool.max-account-slots=3"]);
        let error = flags("[txpool]\nslots = 3\n").unwrap_err().to_string();
        assert!(error.contains("--txpool.slots"), "{error}");
        assert!(flags("full = 3\n").unwrap_err().to_string().contains("true or false"));
    }
}
