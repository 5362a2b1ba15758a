//! A column of variants: the two binaries of each as members of a struct.

use std::sync::Arc;

use arrow_array::{BinaryArray, StructArray};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Fields};
use quire_expression::message_type::VariantEncoder;

use crate::field::utf8;
use crate::scan::ScanError;

/// The parts of a variant. Spark recognizes them by the metadata of the second.
pub(crate) fn variant_fields() -> Fields {
    let part = |name| Field::new(name, DataType::Binary, false);
    let mark = [("variant".to_owned(), "true".to_owned())];
    vec![part("value"), part("metadata").with_metadata(mark)].into()
}

pub(crate) struct VariantBuilder {
    encoder: VariantEncoder,
    values: Binaries,
    metadata: Binaries,
    present: NullBufferBuilder,
}

impl VariantBuilder {
    pub fn new() -> Self {
        let (values, metadata) = (Binaries::default(), Binaries::default());
        VariantBuilder {
            encoder: VariantEncoder::default(),
            values,
            metadata,
            present: NullBufferBuilder::new(0),
        }
    }

    /// Appends JSON. NULL without JSON, and for JSON that cannot be a variant.
    pub fn append(&mut self, json: Option<&[u8]>) {
        let encoded = json
            .and_then(utf8)
            .map(|json| self.encoder.encode(json, &mut self.values.bytes, &mut self.metadata.bytes));
        self.present.append(matches!(encoded, Some(Ok(()))));
        self.values.end();
        self.metadata.end();
    }

    pub fn finish(&mut self) -> Result<StructArray, ScanError> {
        let parts = [self.values.finish()?, self.metadata.finish()?].map(|part| Arc::new(part) as _);
        Ok(StructArray::try_new(variant_fields(), parts.into(), self.present.finish())?)
    }
}

/// Values that are written into one buffer.
#[derive(Default)]
struct Binaries {
    bytes: Vec<u8>,
    ends: Vec<i32>,
}

impl Binaries {
    fn end(&mut self) {
        // A batch ends long before.
        self.ends.push(self.bytes.len() as i32);
    }

    fn finish(&mut self) -> Result<BinaryArray, ScanError> {
        let (size, count) = (self.bytes.len(), self.ends.len());
        // The next batch will have about the same size.
        let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(size));
        let mut offsets = Vec::with_capacity(count + 1);
        offsets.push(0);
        offsets.append(&mut self.ends);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        Ok(BinaryArray::try_new(offsets, Buffer::from_vec(bytes), None)?)
    }
}
