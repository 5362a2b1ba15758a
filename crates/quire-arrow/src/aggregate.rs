//! Functions of all rows, such as their number: without a column for any row.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Fields, SchemaRef};

use crate::builder::{Row, attribute_number};
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
    /// By topic; without one, under the empty name, which no topic has.
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

    pub fn append(&mut self, rows: &[Row<'_>]) {
        for run in rows.chunk_by(|row, next| !self.spec.by_topic || row.record.topic == next.record.topic) {
            let topic = if self.spec.by_topic { run[0].record.topic } else { "" };
            if !self.values.contains_key(topic) {
                self.values.insert(topic.to_owned(), self.empty());
            }
            let Some(values) = self.values.get_mut(topic) else { continue };
            for (value, function) in values.iter_mut().zip(&self.spec.functions) {
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

    /// The values as a batch. Without topics there are then none any more.
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
