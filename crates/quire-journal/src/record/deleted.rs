//! The data of the record of a delete: the keys that it removed from a last-value topic
//! (`docs/journal-format.md`, *Deleted messages*).

use crate::record::attributes::{put_number, take_number};

/// The data of a delete is not a list of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of deleted keys")]
pub struct BadDeletedKeys;

/// Appends a key to the data of a delete.
pub fn put_deleted_key(data: &mut Vec<u8>, key: &[u8]) {
    put_number(data, key.len() as u64);
    data.extend_from_slice(key);
}

/// The keys in the data of a delete, in their order. An error ends the iteration.
#[derive(Clone, Debug)]
pub struct DeletedKeys<'a>(&'a [u8]);

impl<'a> DeletedKeys<'a> {
    /// The keys in the data of a record of kind [`RecordKind::Delete`](crate::RecordKind::Delete).
    pub const fn new(data: &'a [u8]) -> Self {
        DeletedKeys(data)
    }
}

impl<'a> Iterator for DeletedKeys<'a> {
    type Item = Result<&'a [u8], BadDeletedKeys>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let split = take_number(self.0)
            .and_then(|(size, rest)| rest.split_at_checked(usize::try_from(size).ok()?))
            .filter(|(key, _)| !key.is_empty());
        self.0 = split.map_or(&[], |(_, rest)| rest);
        Some(split.map(|(key, _)| key).ok_or(BadDeletedKeys))
    }
}
