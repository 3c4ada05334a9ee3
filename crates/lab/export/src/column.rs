//! Columns: their names and types, how they get their values from a row, and the values of a row
//! group.
//!
//! All columns are optional, as in cryo's files. Unsigned integers are marked by the logical type.

use alloy_primitives::{Bytes, U256};
use parquet::{
    basic::{LogicalType, Repetition, Type as Physical},
    column::writer::ColumnWriterImpl,
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type},
    errors::Result,
    file::writer::SerializedColumnWriter,
    schema::types::{ColumnPath, Type, TypePtr},
};
use std::sync::Arc;

/// How a column gets its value from a row of type `R`. `None` is null.
enum ColumnGetter<R> {
    Bool(fn(&R) -> Option<bool>),
    U32(fn(&R) -> Option<u32>),
    U64(fn(&R) -> Option<u64>),
    F64(fn(&R) -> Option<f64>),
    Binary(fn(&R) -> Option<Bytes>),
    Text(fn(&R) -> Option<String>),
    /// 32 bytes, big-endian.
    WordBinary(fn(&R) -> Option<U256>),
    /// Decimal digits.
    WordText(fn(&R) -> Option<U256>),
    /// The nearest double.
    WordF64(fn(&R) -> Option<U256>),
}

struct ColumnField<R> {
    name: String,
    get: ColumnGetter<R>,
    /// Whether values rarely repeat, so that a dictionary does not pay.
    is_unique: bool,
}

/// The columns of a table with rows of type `R`, in order.
pub(crate) struct TableSchema<R> {
    fields: Vec<ColumnField<R>>,
}

impl<R> TableSchema<R> {
    pub(crate) const fn new() -> Self {
        Self { fields: Vec::new() }
    }

    fn with(mut self, name: String, get: ColumnGetter<R>) -> Self {
        self.fields.push(ColumnField { name, get, is_unique: false });
        self
    }

    pub(crate) fn bool(self, name: &str, get: fn(&R) -> Option<bool>) -> Self {
        self.with(name.into(), ColumnGetter::Bool(get))
    }

    pub(crate) fn u32(self, name: &str, get: fn(&R) -> Option<u32>) -> Self {
        self.with(name.into(), ColumnGetter::U32(get))
    }

    pub(crate) fn u64(self, name: &str, get: fn(&R) -> Option<u64>) -> Self {
        self.with(name.into(), ColumnGetter::U64(get))
    }

    pub(crate) fn f64(self, name: &str, get: fn(&R) -> Option<f64>) -> Self {
        self.with(name.into(), ColumnGetter::F64(get))
    }

    pub(crate) fn binary(self, name: &str, get: fn(&R) -> Option<Bytes>) -> Self {
        self.with(name.into(), ColumnGetter::Binary(get))
    }

    pub(crate) fn text(self, name: &str, get: fn(&R) -> Option<String>) -> Self {
        self.with(name.into(), ColumnGetter::Text(get))
    }

    /// A number of 256 bits in cryo's three forms: `_binary`, `_string` and `_f64`.
    pub(crate) fn u256(self, name: &str, get: fn(&R) -> Option<U256>) -> Self {
        self.with(format!("{name}_binary"), ColumnGetter::WordBinary(get))
            .with(format!("{name}_string"), ColumnGetter::WordText(get))
            .with(format!("{name}_f64"), ColumnGetter::WordF64(get))
    }

    /// Marks the last column: its values rarely repeat.
    pub(crate) fn unique(mut self) -> Self {
        if let Some(field) = self.fields.last_mut() {
            field.is_unique = true;
        }
        self
    }

    /// Columns for which a dictionary does not pay.
    pub(crate) fn paths_without_dictionary(&self) -> impl Iterator<Item = ColumnPath> {
        let unique = self.fields.iter().filter(|field| field.is_unique);
        unique.map(|field| ColumnPath::from(field.name.as_str()))
    }

    /// The Parquet schema.
    pub(crate) fn message(&self, table: &str) -> Result<TypePtr> {
        let column = |field: &ColumnField<R>| {
            let unsigned = |bits| Some(LogicalType::integer(bits, false));
            let (physical, logical) = match field.get {
                ColumnGetter::Bool(_) => (Physical::BOOLEAN, None),
                ColumnGetter::U32(_) => (Physical::INT32, unsigned(32)),
                ColumnGetter::U64(_) => (Physical::INT64, unsigned(64)),
                ColumnGetter::F64(_) | ColumnGetter::WordF64(_) => (Physical::DOUBLE, None),
                ColumnGetter::Binary(_) | ColumnGetter::WordBinary(_) => {
                    (Physical::BYTE_ARRAY, None)
                }
                ColumnGetter::Text(_) | ColumnGetter::WordText(_) => {
                    (Physical::BYTE_ARRAY, Some(LogicalType::String))
                }
            };
            let builder = Type::primitive_type_builder(&field.name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(logical);
            Ok(Arc::new(builder.build()?))
        };
        let columns = self.fields.iter().map(column).collect::<Result<_>>()?;
        Ok(Arc::new(Type::group_type_builder(table).with_fields(columns).build()?))
    }

    /// Empty columns for a row group.
    pub(crate) fn columns(&self) -> Vec<ColumnBuffer> {
        let empty = |field: &ColumnField<R>| {
            let values = match field.get {
                ColumnGetter::Bool(_) => ColumnValues::Bool(Vec::new()),
                ColumnGetter::U32(_) => ColumnValues::Int32(Vec::new()),
                ColumnGetter::U64(_) => ColumnValues::Int64(Vec::new()),
                ColumnGetter::F64(_) | ColumnGetter::WordF64(_) => ColumnValues::Double(Vec::new()),
                ColumnGetter::Binary(_)
                | ColumnGetter::Text(_)
                | ColumnGetter::WordBinary(_)
                | ColumnGetter::WordText(_) => ColumnValues::Bytes(Vec::new()),
            };
            ColumnBuffer { values, levels: Vec::new() }
        };
        self.fields.iter().map(empty).collect()
    }

    /// Adds a row; returns its size in memory in bytes, roughly.
    pub(crate) fn push(&self, columns: &mut [ColumnBuffer], row: &R) -> usize {
        let fields = self.fields.iter().zip(columns);
        fields.map(|(field, column)| column.push(field.get.value(row))).sum()
    }
}

impl<R> ColumnGetter<R> {
    fn value(&self, row: &R) -> Option<CellValue> {
        let bytes = |bytes: Bytes| CellValue::Bytes(bytes.0.into());
        let text = |text: String| CellValue::Bytes(text.into_bytes().into());
        match self {
            Self::Bool(get) => get(row).map(CellValue::Bool),
            // The bits are kept; the logical type marks them as unsigned.
            Self::U32(get) => get(row).map(|value| CellValue::Int32(value as i32)),
            Self::U64(get) => get(row).map(|value| CellValue::Int64(value as i64)),
            Self::F64(get) => get(row).map(CellValue::Double),
            Self::Binary(get) => get(row).map(bytes),
            Self::Text(get) => get(row).map(text),
            Self::WordBinary(get) => get(row).map(|word| {
                let word: [u8; 32] = word.to_be_bytes();
                CellValue::Bytes(word.to_vec().into())
            }),
            Self::WordText(get) => get(row).map(|word| text(word.to_string())),
            Self::WordF64(get) => get(row).map(|word| CellValue::Double(nearest(word))),
        }
    }
}

/// The double nearest to a number.
fn nearest(word: U256) -> f64 {
    match u64::try_from(word) {
        Ok(small) => small as f64,
        // Digits always parse, and parsing rounds to the nearest double.
        Err(_) => word.to_string().parse().unwrap_or(f64::INFINITY),
    }
}

enum CellValue {
    Bool(bool),
    Int32(i32),
    Int64(i64),
    Double(f64),
    Bytes(ByteArray),
}

#[derive(Debug)]
enum ColumnValues {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
}

/// The values of one column in one row group.
#[derive(Debug)]
pub(crate) struct ColumnBuffer {
    /// The values that are not null.
    values: ColumnValues,
    /// One per row: 1 for a value, 0 for null.
    levels: Vec<i16>,
}

/// Memory of a value beside its bytes.
const OVERHEAD: usize = 2;

impl ColumnBuffer {
    fn push(&mut self, value: Option<CellValue>) -> usize {
        self.levels.push(i16::from(value.is_some()));
        let bytes = match (&mut self.values, value) {
            (ColumnValues::Bool(all), Some(CellValue::Bool(value))) => {
                all.push(value);
                1
            }
            (ColumnValues::Int32(all), Some(CellValue::Int32(value))) => {
                all.push(value);
                4
            }
            (ColumnValues::Int64(all), Some(CellValue::Int64(value))) => {
                all.push(value);
                8
            }
            (ColumnValues::Double(all), Some(CellValue::Double(value))) => {
                all.push(value);
                8
            }
            (ColumnValues::Bytes(all), Some(CellValue::Bytes(value))) => {
                let bytes = value.len() + size_of::<ByteArray>();
                all.push(value);
                bytes
            }
            (_, None) => 0,
            // Columns and values are created from the same fields.
            (values, Some(_)) => unreachable!("a value of another type than {values:?}"),
        };
        bytes + OVERHEAD
    }

    /// Writes the values into a row group, and drops them.
    pub(crate) fn write(&mut self, mut to: SerializedColumnWriter<'_>) -> Result<()> {
        let levels = &self.levels;
        match &mut self.values {
            ColumnValues::Bool(all) => drain(to.typed::<BoolType>(), all, levels)?,
            ColumnValues::Int32(all) => drain(to.typed::<Int32Type>(), all, levels)?,
            ColumnValues::Int64(all) => drain(to.typed::<Int64Type>(), all, levels)?,
            ColumnValues::Double(all) => drain(to.typed::<DoubleType>(), all, levels)?,
            ColumnValues::Bytes(all) => drain(to.typed::<ByteArrayType>(), all, levels)?,
        }
        self.levels.clear();
        to.close()
    }
}

fn drain<T: DataType>(
    to: &mut ColumnWriterImpl<'_, T>,
    values: &mut Vec<T::T>,
    levels: &[i16],
) -> Result<()> {
    to.write_batch(values.as_slice(), Some(levels), None)?;
    values.clear();
    Ok(())
}
