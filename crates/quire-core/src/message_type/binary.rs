//! `binary`: bytes without fields.

use super::{Fields, Format, Malformed, Path};

pub(super) struct Binary;

impl Format for Binary {
    fn has_fields(&self) -> bool {
        false
    }

    fn read(&self, _data: &[u8], _paths: &[Path], _fields: &mut Fields) -> Result<(), Malformed> {
        Err(Malformed)
    }
}
