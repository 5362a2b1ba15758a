//! Lists that a command borrows.
//!
//! Each is a slice of bytes, so that a codec can lend received bytes without copying them. The form
//! is part of this crate: all numbers are little endian. A codec whose protocol has another form
//! writes the list into a separate buffer.

use crate::command::LogPlace;

/// A list of subscription numbers, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionNumbers<'a>(&'a [u8]);

impl<'a> SubscriptionNumbers<'a> {
    /// From the numbers as bytes, four each.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        (!bytes.is_empty() && bytes.len().is_multiple_of(4)).then_some(SubscriptionNumbers(bytes))
    }

    /// The numbers as bytes, four each.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The numbers in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.0.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number))
    }
}

/// Positions of the logs of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceList<'a>(&'a [u8]);

impl<'a> PlaceList<'a> {
    /// From places as [`put_place`] writes them; `None` when bytes are left over, or a name is not
    /// text.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            take_place(&mut rest)?;
        }
        Some(PlaceList(bytes))
    }

    /// The places as bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The name of each instance, with the place in its log.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, LogPlace)> {
        let mut rest = self.0;
        std::iter::from_fn(move || take_place(&mut rest))
    }
}

fn take_place<'a>(bytes: &mut &'a [u8]) -> Option<(&'a str, LogPlace)> {
    let (log, rest) = bytes.split_first_chunk::<8>()?;
    let (position, rest) = rest.split_first_chunk::<8>()?;
    let (size, rest) = rest.split_first_chunk::<2>()?;
    let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*size).into())?;
    *bytes = rest;
    let place = LogPlace { log: u64::from_le_bytes(*log), position: u64::from_le_bytes(*position) };
    Some((std::str::from_utf8(name).ok()?, place))
}

/// Appends the place in the log of an instance. Its name has at most 65,535 bytes.
pub fn put_place(out: &mut Vec<u8>, instance: &str, place: LogPlace) {
    out.extend_from_slice(&place.log.to_le_bytes());
    out.extend_from_slice(&place.position.to_le_bytes());
    out.extend_from_slice(&(instance.len() as u16).to_le_bytes());
    out.extend_from_slice(instance.as_bytes());
}

/// The data of the messages of a batch. The sizes are correct: [`BatchItems::from_bytes`] checked
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchItems<'a>(&'a [u8]);

impl<'a> BatchItems<'a> {
    /// From items as [`put_batch_item`] writes them. Returns their number, too. `None` when there
    /// is none, or bytes are left over.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<(Self, u64)> {
        let mut rest = BatchItems(bytes);
        let count = rest.by_ref().count() as u64;
        (count > 0 && rest.0.is_empty()).then_some((BatchItems(bytes), count))
    }

    /// The list of items that were part of checked ones.
    pub(crate) fn of_checked(bytes: &'a [u8]) -> Self {
        BatchItems(bytes)
    }

    /// The items that were not taken, each after its size.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for BatchItems<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, rest) = self.0.split_first_chunk::<4>()?;
        let (data, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
        self.0 = rest;
        Some(data)
    }
}

/// Appends the data of one message of a batch.
pub fn put_batch_item(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(data);
}

/// The most bookmarks in one `settle` or `extend`: a mebibyte of them, far more than a client
/// collects before it sends.
pub const SETTLE_BOOKMARKS_MAX: usize = 65_536;

const BOOKMARK_SIZE: usize = 16;

/// A list of bookmarks, publisher and sequence each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmarks<'a>(&'a [[u8; BOOKMARK_SIZE]]);

impl<'a> Bookmarks<'a> {
    /// From the bookmarks as bytes, 16 each; `None` when bytes are left over, or there are more
    /// than [`SETTLE_BOOKMARKS_MAX`].
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (bookmarks, rest) = bytes.as_chunks::<BOOKMARK_SIZE>();
        (rest.is_empty() && bookmarks.len() <= SETTLE_BOOKMARKS_MAX).then_some(Bookmarks(bookmarks))
    }

    /// Publisher and sequence of each, in the order of the list.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.0.iter().map(|bookmark| {
            let number = u128::from_le_bytes(*bookmark);
            (number as u64, (number >> 64) as u64)
        })
    }

    /// The bookmarks as bytes, 16 each.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0.as_flattened()
    }

    /// Their number.
    pub fn count(self) -> usize {
        self.0.len()
    }
}

/// Appends one bookmark to the bytes that [`Bookmarks::from_bytes`] takes.
pub fn put_bookmark(out: &mut Vec<u8>, publisher: u64, sequence: u64) {
    out.extend_from_slice(&(u128::from(sequence) << 64 | u128::from(publisher)).to_le_bytes());
}

/// The messages of queues that a program has begun. Messages of two queues can have the same
/// bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunMessages<'a> {
    bookmarks: Bookmarks<'a>,
    /// The queues in the order of the bookmarks, as [`put_begun_queue`] writes them. `None`: each
    /// bookmark means its messages in all queues.
    queues: Option<&'a [u8]>,
}

impl<'a> BegunMessages<'a> {
    /// From bookmarks as [`put_bookmark`] writes them, and perhaps their queues as
    /// [`put_begun_queue`] writes them. `None` when one of both is not such a list, or when the
    /// queues have another number of messages.
    pub fn from_bytes(bookmarks: &'a [u8], queues: Option<&'a [u8]>) -> Option<Self> {
        let bookmarks = Bookmarks::from_bytes(bookmarks)?;
        if let Some(mut rest) = queues {
            let mut count = 0_usize;
            while !rest.is_empty() {
                let (of_queue, _, after) = split_begun_queue(rest)?;
                count = count.checked_add(of_queue)?;
                rest = after;
            }
            if count != bookmarks.count() {
                return None;
            }
        }
        Some(BegunMessages { bookmarks, queues })
    }

    /// The queue, if it is named, and the publisher and the sequence of each message.
    pub fn iter(self) -> impl Iterator<Item = (Option<&'a str>, (u64, u64))> {
        let (mut rest, mut left, mut queue) = (self.queues.unwrap_or_default(), 0, None);
        self.bookmarks.iter().map(move |bookmark| {
            while left == 0
                && let Some((of_queue, name, after)) = split_begun_queue(rest)
            {
                (rest, left, queue) = (after, of_queue, Some(name));
            }
            left = left.saturating_sub(1);
            (queue, bookmark)
        })
    }

    /// The bookmarks as bytes, 16 each.
    pub fn bookmarks(self) -> &'a [u8] {
        self.bookmarks.as_bytes()
    }

    /// The queues as bytes, as [`put_begun_queue`] writes them.
    pub fn queues(self) -> Option<&'a [u8]> {
        self.queues
    }
}

/// The number of messages, the queue, and the other queues.
fn split_begun_queue(bytes: &[u8]) -> Option<(usize, &str, &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*size).into())?;
    Some((u32::from_le_bytes(*count) as usize, std::str::from_utf8(name).ok()?, rest))
}

/// Appends the queue of the next `count` messages to the bytes that [`BegunMessages::from_bytes`]
/// takes.
pub fn put_begun_queue(out: &mut Vec<u8>, count: u32, queue: &str) {
    debug_assert!(queue.len() <= usize::from(u16::MAX));
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&(queue.len() as u16).to_le_bytes());
    out.extend_from_slice(queue.as_bytes());
}

/// The most keys in one command: their bytes are at most 16 MiB.
pub const KEYS_MAX: usize = 65_536;

/// A list of keys of records, each of 1 to [`KEY_SIZE_MAX`](crate::KEY_SIZE_MAX) bytes. The list
/// can be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a>(&'a [u8]);

impl<'a> Keys<'a> {
    /// From keys as [`put_key`] writes them; `None` when one is empty or cut off, or there are more
    /// than [`KEYS_MAX`].
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (mut rest, mut count) = (bytes, 0);
        while let Some((&size, after)) = rest.split_first() {
            rest = after.get(usize::from(size)..)?;
            count += 1;
            if size == 0 || count > KEYS_MAX {
                return None;
            }
        }
        Some(Keys(bytes))
    }

    /// The keys in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (&size, after) = rest.split_first()?;
            let (key, after) = after.split_at_checked(size.into())?;
            rest = after;
            Some(key)
        })
    }

    /// The keys as bytes, as [`put_key`] writes them.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// The most texts of one list. It is the limit of a projection.
pub const TEXTS_MAX: usize = 256;

/// A list of texts in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texts<'a>(&'a [u8]);

impl<'a> Texts<'a> {
    /// From texts as [`put_text`] writes them; `None` when one is not UTF-8 or is cut off, or there
    /// are more than [`TEXTS_MAX`].
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (mut rest, mut count) = (bytes, 0);
        while !rest.is_empty() {
            let (text, after) = split_text(rest)?;
            std::str::from_utf8(text).ok()?;
            rest = after;
            count += 1;
            if count > TEXTS_MAX {
                return None;
            }
        }
        Some(Texts(bytes))
    }

    /// The texts in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (text, after) = split_text(rest)?;
            rest = after;
            std::str::from_utf8(text).ok()
        })
    }

    /// The texts as bytes, as [`put_text`] writes them.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

fn split_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, after) = bytes.split_first_chunk::<4>()?;
    after.split_at_checked(usize::try_from(u32::from_le_bytes(*size)).ok()?)
}

/// Appends one text to the bytes that [`Texts::from_bytes`] takes. A text has less than 4 GiB.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Appends one key to the bytes that [`Keys::from_bytes`] takes. A key has 1 to
/// [`KEY_SIZE_MAX`](crate::KEY_SIZE_MAX) bytes; the caller checks that.
pub fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    debug_assert!((1..=crate::KEY_SIZE_MAX).contains(&key.len()));
    out.push(key.len() as u8);
    out.extend_from_slice(key);
}
