//! Columns: their names and types, how a row gives its values, and the values of a row group.
//!
//! All columns are optional, as in cryo's files. Unsigned integers keep their sign by the logical type.

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
enum Get<R> {
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

struct Field<R> {
    name: String,
    get: Get<R>,
    /// Whether values hardly ever repeat, so that a dictionary would be in vain.
    is_unique: bool,
}

/// The columns of a table whose rows are `R`s, in order.
pub(crate) struct Schema<R> {
    fields: Vec<Field<R>>,
}

impl<R> Schema<R> {
    pub(crate) const fn new() -> Self {
        Self { fields: Vec::new() }
    }

    fn with(mut self, name: String, get: Get<R>) -> Self {
        self.fields.push(Field { name, get, is_unique: false });
        self
    }

    pub(crate) fn bool(self, name: &str, get: fn(&R) -> Option<bool>) -> Self {
        self.with(name.into(), Get::Bool(get))
    }

    pub(crate) fn u32(self, name: &str, get: fn(&R) -> Option<u32>) -> Self {
        self.with(name.into(), Get::U32(get))
    }

    pub(crate) fn u64(self, name: &str, get: fn(&R) -> Option<u64>) -> Self {
        self.with(name.into(), Get::U64(get))
    }

    pub(crate) fn f64(self, name: &str, get: fn(&R) -> Option<f64>) -> Self {
        self.with(name.into(), Get::F64(get))
    }

    pub(crate) fn binary(self, name: &str, get: fn(&R) -> Option<Bytes>) -> Self {
        self.with(name.into(), Get::Binary(get))
    }

    pub(crate) fn text(self, name: &str, get: fn(&R) -> Option<String>) -> Self {
        self.with(name.into(), Get::Text(get))
    }

    /// A number of 256 bits in cryo's three forms: `_binary`, `_string` and `_f64`.
    pub(crate) fn u256(self, name: &str, get: fn(&R) -> Option<U256>) -> Self {
        self.with(format!("{name}_binary"), Get::WordBinary(get))
            .with(format!("{name}_string"), Get::WordText(get))
            .with(format!("{name}_f64"), Get::WordF64(get))
    }

    /// Values of the last column hardly ever repeat.
    pub(crate) fn unique(mut self) -> Self {
        if let Some(field) = self.fields.last_mut() {
            field.is_unique = true;
        }
        self
    }

    /// Columns for which a dictionary would be in vain.
    pub(crate) fn paths_without_dictionary(&self) -> impl Iterator<Item = ColumnPath> {
        let unique = self.fields.iter().filter(|field| field.is_unique);
        unique.map(|field| ColumnPath::from(field.name.as_str()))
    }

    /// The schema as Parquet states it.
    pub(crate) fn message(&self, table: &str) -> Result<TypePtr> {
        let column = |field: &Field<R>| {
            let unsigned = |bits| Some(LogicalType::integer(bits, false));
            let (physical, logical) = match field.get {
                Get::Bool(_) => (Physical::BOOLEAN, None),
                Get::U32(_) => (Physical::INT32, unsigned(32)),
                Get::U64(_) => (Physical::INT64, unsigned(64)),
                Get::F64(_) | Get::WordF64(_) => (Physical::DOUBLE, None),
                Get::Binary(_) | Get::WordBinary(_) => (Physical::BYTE_ARRAY, None),
                Get::Text(_) | Get::WordText(_) => {
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
    pub(crate) fn columns(&self) -> Vec<Column> {
        let empty = |field: &Field<R>| {
            let values = match field.get {
                Get::Bool(_) => Values::Bool(Vec::new()),
                Get::U32(_) => Values::Int32(Vec::new()),
                Get::U64(_) => Values::Int64(Vec::new()),
                Get::F64(_) | Get::WordF64(_) => Values::Double(Vec::new()),
                Get::Binary(_) | Get::Text(_) | Get::WordBinary(_) | Get::WordText(_) => {
                    Values::Bytes(Vec::new())
                }
            };
            Column { values, levels: Vec::new() }
        };
        self.fields.iter().map(empty).collect()
    }

    /// Adds a row; returns about how many bytes of memory it takes.
    pub(crate) fn push(&self, columns: &mut [Column], row: &R) -> usize {
        let fields = self.fields.iter().zip(columns);
        fields.map(|(field, column)| column.push(field.get.value(row))).sum()
    }
}

impl<R> Get<R> {
    fn value(&self, row: &R) -> Option<Value> {
        let bytes = |bytes: Bytes| Value::Bytes(bytes.0.into());
        let text = |text: String| Value::Bytes(text.into_bytes().into());
        match self {
            Self::Bool(get) => get(row).map(Value::Bool),
            // The bits stay; the logical type says that there is no sign.
            Self::U32(get) => get(row).map(|value| Value::Int32(value as i32)),
            Self::U64(get) => get(row).map(|value| Value::Int64(value as i64)),
            Self::F64(get) => get(row).map(Value::Double),
            Self::Binary(get) => get(row).map(bytes),
            Self::Text(get) => get(row).map(text),
            Self::WordBinary(get) => get(row).map(|word| {
                let word: [u8; 32] = word.to_be_bytes();
                Value::Bytes(word.to_vec().into())
            }),
            Self::WordText(get) => get(row).map(|word| text(word.to_string())),
            Self::WordF64(get) => get(row).map(|word| Value::Double(nearest(word))),
        }
    }
}

/// The double nearest to a number.
fn nearest(word: U256) -> f64 {
    match u64::try_from(word) {
        Ok(small) => small as f64,
        // Digits always parse, and parsing rounds to the nearest.
        Err(_) => word.to_string().parse().unwrap_or(f64::INFINITY),
    }
}

enum Value {
    Bool(bool),
    Int32(i32),
    Int64(i64),
    Double(f64),
    Bytes(ByteArray),
}

#[derive(Debug)]
enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
}

/// The values of one column in one row group.
#[derive(Debug)]
pub(crate) struct Column {
    /// Those that are not null.
    values: Values,
    /// Of each row: 1 where there is a value, 0 for null.
    levels: Vec<i16>,
}

/// What a value takes beside its bytes, in memory.
const OVERHEAD: usize = 2;

impl Column {
    fn push(&mut self, value: Option<Value>) -> usize {
        self.levels.push(i16::from(value.is_some()));
        let bytes = match (&mut self.values, value) {
            (Values::Bool(all), Some(Value::Bool(value))) => {
                all.push(value);
                1
            }
            (Values::Int32(all), Some(Value::Int32(value))) => {
                all.push(value);
                4
            }
            (Values::Int64(all), Some(Value::Int64(value))) => {
                all.push(value);
                8
            }
            (Values::Double(all), Some(Value::Double(value))) => {
                all.push(value);
                8
            }
            (Values::Bytes(all), Some(Value::Bytes(value))) => {
                let bytes = value.len() + size_of::<ByteArray>();
                all.push(value);
                bytes
            }
            (_, None) => 0,
            // Columns are made by the same fields as values.
            (values, Some(_)) => unreachable!("a value of another type than {values:?}"),
        };
        bytes + OVERHEAD
    }

    /// Writes the values into a row group, and forgets them.
    pub(crate) fn write(&mut self, mut to: SerializedColumnWriter<'_>) -> Result<()> {
        let levels = &self.levels;
        match &mut self.values {
            Values::Bool(all) => drain(to.typed::<BoolType>(), all, levels)?,
            Values::Int32(all) => drain(to.typed::<Int32Type>(), all, levels)?,
            Values::Int64(all) => drain(to.typed::<Int64Type>(), all, levels)?,
            Values::Double(all) => drain(to.typed::<DoubleType>(), all, levels)?,
            Values::Bytes(all) => drain(to.typed::<ByteArrayType>(), all, levels)?,
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
