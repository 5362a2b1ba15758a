//! Functions of all rows, such as their number: without a column for any row.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Fields, SchemaRef};

use crate::builder::{Row, attribute_number};
use crate::counted_ranges::Counted;
use crate::field::timestamp_type;
use crate::scan::ScanError;
use crate::spec::{AggregateSpec, Attribute, Function, SpecError};

/// The columns of an aggregate.
pub(crate) fn fields(spec: &AggregateSpec) -> Result<Fields, SpecError> {
    let mut fields = Vec::new();
    if spec.by_topic {
        fields.push(Field::new("topic", DataType::Utf8, true));
    }
    for (number, function) in spec.functions.iter().enumerate() {
        let (name, data_type) = match *function {
            Function::Count => ("count", DataType::Int64),
            Function::Min(attribute) => ("min", data_type(attribute)?),
            Function::Max(attribute) => ("max", data_type(attribute)?),
        };
        fields.push(Field::new(format!("{name}_{number}"), data_type, true));
    }
    Ok(fields.into())
}

fn data_type(attribute: Attribute) -> Result<DataType, SpecError> {
    match attribute {
        Attribute::Position | Attribute::TimestampNs => Ok(DataType::Int64),
        Attribute::Timestamp => Ok(timestamp_type()),
        _ => Err(SpecError::Function { attribute }),
    }
}

/// The values of the functions so far.
pub(crate) struct Totals {
    spec: AggregateSpec,
    /// By topic. Without topics, under the empty name, which no topic has.
    values: BTreeMap<String, Vec<Option<i64>>>,
}

impl Totals {
    pub fn new(spec: &AggregateSpec) -> Self {
        let mut totals = Totals { spec: spec.clone(), values: BTreeMap::new() };
        if !spec.by_topic {
            totals.values.insert(String::new(), totals.empty());
        }
        totals
    }

    pub fn row_count(&self) -> usize {
        self.values.len()
    }

    /// Adds messages that are not read.
    pub fn append_counted(&mut self, counted: &Counted) {
        let (first, last) = (counted.first.get() as i64, counted.last.get() as i64);
        for (value, function) in self.values_of(counted.topic.as_deref().unwrap_or_default()) {
            *value = match *function {
                Function::Count => Some(value.unwrap_or(0) + last + 1 - first),
                Function::Min(_) => value.iter().copied().chain([first]).min(),
                Function::Max(_) => value.iter().copied().chain([last]).max(),
            };
        }
    }

    fn values_of(&mut self, topic: &str) -> impl Iterator<Item = (&mut Option<i64>, &Function)> {
        if !self.values.contains_key(topic) {
            self.values.insert(topic.to_owned(), self.empty());
        }
        self.values.get_mut(topic).into_iter().flatten().zip(&self.spec.functions)
    }

    pub fn append(&mut self, rows: &[Row<'_>]) {
        let by_topic = self.spec.by_topic;
        for run in rows.chunk_by(|row, next| !by_topic || row.record.topic == next.record.topic) {
            let topic = if by_topic { run[0].record.topic } else { "" };
            for (value, function) in self.values_of(topic) {
                let numbers = |attribute| {
                    run.iter().filter_map(move |row| attribute_number(attribute, &row.record, row.event))
                };
                *value = match *function {
                    Function::Count => Some(value.unwrap_or(0) + run.len() as i64),
                    Function::Min(attribute) => value.iter().copied().chain(numbers(attribute)).min(),
                    Function::Max(attribute) => value.iter().copied().chain(numbers(attribute)).max(),
                };
            }
        }
    }

    /// The values as a batch. Without topics, there are no values after that.
    pub fn finish(&mut self, schema: &SchemaRef) -> Result<RecordBatch, ScanError> {
        let values = std::mem::take(&mut self.values);
        let mut arrays: Vec<ArrayRef> = Vec::new();
        if self.spec.by_topic {
            arrays.push(Arc::new(StringArray::from_iter_values(values.keys())));
        }
        for (at, function) in self.spec.functions.iter().enumerate() {
            let numbers = values.values().map(|values| values[at]);
            arrays.push(match function {
                Function::Min(Attribute::Timestamp) | Function::Max(Attribute::Timestamp) => {
                    Arc::new(numbers.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
                }
                _ => Arc::new(numbers.collect::<Int64Array>()),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(values.len()));
        Ok(RecordBatch::try_new_with_options(schema.clone(), arrays, &options)?)
    }

    fn empty(&self) -> Vec<Option<i64>> {
        self.spec.functions.iter().map(|function| (*function == Function::Count).then_some(0)).collect()
    }
}
