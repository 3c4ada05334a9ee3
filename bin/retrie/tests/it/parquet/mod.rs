//! `export --format parquet`: the contents of the files, and the treatment of existing files.

mod bundles;
mod chain;
mod files;

use crate::common::{TestFolder, retrie, words};
use ::parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Field,
};
use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

/// A row, by column.
type ParquetRow = BTreeMap<String, Field>;

/// `retrie export --format parquet` of the test's datadir into its folder `out`.
fn export(scene: &TestFolder, more: &str) -> Command {
    let mut command = retrie(["export", "--format", "parquet", "--datadir", &scene.at("data")]);
    command.args(words(more)).arg(scene.at("out"));
    command
}

/// The files of a table, in order.
fn files(folder: &Path, table: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.ends_with(".parquet") && name.contains(&format!("{table}__"))
        })
        .collect();
    files.sort();
    files
}

/// All rows of a table, in the order of its files.
fn rows(folder: &Path, table: &str) -> Vec<ParquetRow> {
    let mut rows = Vec::new();
    for file in files(folder, table) {
        let reader = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let fields = row.get_column_iter();
            rows.push(fields.map(|(name, field)| (name.clone(), field.clone())).collect());
        }
    }
    rows
}

/// An unsigned number of a row; `None` where it is null.
fn number(row: &ParquetRow, column: &str) -> Option<u64> {
    match &row[column] {
        Field::UInt(value) => Some((*value).into()),
        Field::ULong(value) => Some(*value),
        Field::Null => None,
        other => panic!("{column} is {other:?}"),
    }
}

fn bytes<'a>(row: &'a ParquetRow, column: &str) -> Option<&'a [u8]> {
    match &row[column] {
        Field::Bytes(value) => Some(value.data()),
        Field::Null => None,
        other => panic!("{column} is {other:?}"),
    }
}

fn text<'a>(row: &'a ParquetRow, column: &str) -> Option<&'a str> {
    match &row[column] {
        Field::Str(value) => Some(value),
        Field::Null => None,
        other => panic!("{column} is {other:?}"),
    }
}

fn flag(row: &ParquetRow, column: &str) -> Option<bool> {
    match &row[column] {
        Field::Bool(value) => Some(*value),
        Field::Null => None,
        other => panic!("{column} is {other:?}"),
    }
}
