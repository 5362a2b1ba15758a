//! `binary`: opaque bytes without fields.

use super::{Format, Found, Level, Malformed};

pub(super) struct Binary;

impl Format for Binary {
    const REPEATED_NAMES_ARE_ARRAYS: bool = false;

    fn members<'a>(
        &self,
        _raw: &'a [u8],
        _level: &Level<'_, 'a>,
        _found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        Ok(())
    }
}
