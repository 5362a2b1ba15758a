//! The data of the record of a delete: the keys that it removed from a last-value topic
//! (`docs/journal-format.md`, *Deleted messages*).

use crate::record::attributes::{put_number, take_number};

/// Appends a key to the data of a delete.
pub fn put_deleted_key(data: &mut Vec<u8>, key: &[u8]) {
    put_number(data, key.len() as u64);
    data.extend_from_slice(key);
}

/// The keys in the data of a delete, in their order.
#[derive(Clone, Debug)]
pub struct DeletedKeys<'a>(&'a [u8]);

impl<'a> DeletedKeys<'a> {
    /// The keys in the data of a record of kind [`RecordKind::Delete`](crate::RecordKind::Delete).
    /// `None` when the data is not a list of keys.
    pub fn from_bytes(data: &'a [u8]) -> Option<Self> {
        let mut rest = data;
        while !rest.is_empty() {
            rest = split(rest)?.1;
        }
        Some(DeletedKeys(data))
    }

    /// The keys in the data of a record that was read. [`Cursor::next`](crate::Cursor::next) has
    /// checked that it is a list.
    pub(crate) const fn checked(data: &'a [u8]) -> Self {
        DeletedKeys(data)
    }
}

impl<'a> Iterator for DeletedKeys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = split(self.0)?;
        self.0 = rest;
        Some(key)
    }
}

/// The first key, and the bytes after it. `None` when there is no key.
fn split(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = take_number(data)?;
    rest.split_at_checked(usize::try_from(size).ok()?).filter(|(key, _)| !key.is_empty())
}
