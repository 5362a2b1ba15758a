//! The bytes that wait to be sent on one connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::codec::Encoder;
use crate::offline::Page;
use quire_command::{Message, Reply};
use quire_types::time::Instant;

/// Bytes of a chunk above which the next frame begins another chunk. So the backlog of a connection
/// that accepts no bytes grows without copies, and is freed in parts that the allocator reuses.
const CHUNK_SIZE: usize = 256 * 1024;

/// Bytes of frames, in order. Uses no memory while it is empty.
///
/// Its middle can be on disk: see [`Away`].
#[derive(Debug)]
pub struct Outbox {
    encoder: Encoder,
    full: VecDeque<Chunk>,
    /// The chunk to which frames are appended.
    last: Vec<u8>,
    /// Bytes of the frames that are from replays. Replays adapt to the pace of the connection, so
    /// these bytes do not count as backlog.
    last_replayed_size: usize,
    /// Bytes of all full chunks, and bytes of replays among them.
    full_size: usize,
    full_replayed_size: usize,
    /// Bytes of the backlog that other outboxes also hold.
    shared_size: usize,
    /// After the close: bytes that are still sent. The outbox drops the bytes after them.
    closed_size: Option<usize>,
    /// Messages that were put into it.
    message_count: u64,
    /// The chunks of `full` and `last` are sent after it.
    away: Option<Box<Away>>,
    /// Bytes that were taken from it.
    taken_size: u64,
    /// Numbers of bytes, and when they had been put into it.
    marks: VecDeque<(u64, Instant)>,
}

/// The middle of an outbox that is on disk, or on its way. The order is: the chunks before it, the
/// page that a job reads, the pages, those that a job writes, and then the chunks of the outbox.
#[derive(Debug, Default)]
struct Away {
    before: VecDeque<Chunk>,
    reading_size: usize,
    pages: VecDeque<Page>,
    pages_size: usize,
    writing_size: usize,
}

impl Away {
    fn size(&self) -> usize {
        self.reading_size + self.pages_size + self.writing_size
    }
}

/// Chunks that begin and end between two frames.
#[derive(Debug)]
pub struct Piece(Vec<Chunk>);

impl Piece {
    /// Its bytes.
    pub fn size(&self) -> usize {
        self.0.iter().map(|chunk| chunk.bytes.size()).sum()
    }

    /// Its bytes from replays.
    pub fn replayed_size(&self) -> usize {
        self.0.iter().map(|chunk| chunk.replayed_size).sum()
    }

    /// Its bytes, in their order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|chunk| match &chunk.bytes {
            Bytes::Own(bytes) => bytes.as_slice(),
            Bytes::Shared(data) => &data.bytes,
        })
    }
}

#[derive(Debug)]
struct Chunk {
    bytes: Bytes,
    replayed_size: usize,
}

#[derive(Debug)]
enum Bytes {
    Own(Vec<u8>),
    /// The data of one message, whose frame begins in the chunk before.
    Shared(Arc<SharedData>),
}

impl Bytes {
    fn size(&self) -> usize {
        match self {
            Bytes::Own(bytes) => bytes.len(),
            Bytes::Shared(data) => data.bytes.len(),
        }
    }
}

/// The data of a message for several connections. Their outboxes share the bytes.
#[derive(Debug)]
pub struct SharedData {
    bytes: Arc<[u8]>,
    /// The broker's sum of all shared data that waits in an outbox.
    waiting_size: Arc<AtomicUsize>,
}

impl SharedData {
    /// Copies the data, and counts it in `waiting_size` until the last outbox has released it.
    pub fn new(data: &[u8], waiting_size: &Arc<AtomicUsize>) -> Arc<Self> {
        waiting_size.fetch_add(data.len(), Ordering::Relaxed);
        Arc::new(SharedData { bytes: data.into(), waiting_size: waiting_size.clone() })
    }
}

impl Drop for SharedData {
    fn drop(&mut self) {
        self.waiting_size.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Bytes that leave an outbox.
#[derive(Debug)]
pub enum Taken {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Taken {
    pub fn size(&self) -> usize {
        match self {
            Taken::Own(bytes) => bytes.len(),
            Taken::Shared(bytes) => bytes.len(),
        }
    }
}

impl Outbox {
    pub fn new(encoder: Encoder) -> Self {
        Outbox {
            encoder,
            full: VecDeque::new(),
            last: Vec::new(),
            last_replayed_size: 0,
            full_size: 0,
            full_replayed_size: 0,
            shared_size: 0,
            closed_size: None,
            message_count: 0,
            away: None,
            taken_size: 0,
            marks: VecDeque::new(),
        }
    }

    /// Counts messages whose frames are put into it otherwise.
    pub fn note_messages(&mut self, count: u64) {
        self.message_count += count;
    }

    /// Messages that were put into it.
    pub fn message_count(&self) -> u64 {
        self.message_count
    }

    /// The encoder of the frames of the connection.
    pub fn encoder(&self) -> Encoder {
        self.encoder
    }

    /// Appends a reply.
    pub fn put(&mut self, reply: &Reply<'_>) {
        self.encoder.put(reply, self.bytes_mut());
    }

    /// Appends frames that count as backlog.
    pub fn put_frames(&mut self, frames: &[u8]) {
        self.bytes_mut().extend_from_slice(frames);
    }

    /// Appends a message that counts as backlog. Holds `shared`, when there is one, instead of a
    /// copy of the message's data. Returns the bytes of the frame.
    pub fn put_message(&mut self, message: &Message<'_>, shared: Option<&Arc<SharedData>>) -> usize {
        let size = self.put_frame_of(message, shared.is_some());
        let Some(shared) = shared else { return size };
        self.put_shared(shared, 0);
        self.shared_size += shared.bytes.len();
        size + shared.bytes.len()
    }

    /// As [`Outbox::put_message`] for a message that does not count as backlog.
    pub fn put_replayed_message(&mut self, message: &Message<'_>, shared: Option<&Arc<SharedData>>) -> usize {
        let size = self.put_frame_of(message, shared.is_some());
        self.last_replayed_size += size;
        let Some(shared) = shared else { return size };
        self.put_shared(shared, shared.bytes.len());
        size + shared.bytes.len()
    }

    /// Appends the frame of a message, without its data when it `is_shared`. Returns its bytes.
    #[inline]
    fn put_frame_of(&mut self, message: &Message<'_>, is_shared: bool) -> usize {
        self.message_count += 1;
        let encoder = self.encoder;
        let bytes = self.bytes_mut();
        let size_before = bytes.len();
        match is_shared {
            false => encoder.put_message(message, bytes),
            true => encoder.put_message_without_data(message, bytes),
        }
        bytes.len() - size_before
    }

    fn put_shared(&mut self, shared: &Arc<SharedData>, replayed_size: usize) {
        self.begin_chunk(Vec::new());
        self.push_full(Chunk { bytes: Bytes::Shared(shared.clone()), replayed_size });
    }

    /// The buffer to which encoders append a frame that counts as backlog. The bytes in it belong
    /// to earlier frames.
    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        if self.last.len() >= CHUNK_SIZE {
            self.begin_chunk(Vec::new());
        }
        &mut self.last
    }

    /// Appends frames of a replay.
    pub fn put_replayed(&mut self, frames: Vec<u8>) {
        let size = frames.len();
        if self.last.is_empty() {
            self.last = frames;
        } else if self.last.len() + size > CHUNK_SIZE {
            self.begin_chunk(frames);
        } else {
            self.last.extend_from_slice(&frames);
        }
        self.last_replayed_size += size;
    }

    fn begin_chunk(&mut self, bytes: Vec<u8>) {
        let full = Bytes::Own(std::mem::replace(&mut self.last, bytes));
        let replayed_size = std::mem::take(&mut self.last_replayed_size);
        self.push_full(Chunk { bytes: full, replayed_size });
    }

    fn push_full(&mut self, chunk: Chunk) {
        self.full_size += chunk.bytes.size();
        self.full_replayed_size += chunk.replayed_size;
        self.full.push_back(chunk);
    }

    /// Bytes that wait.
    pub fn size(&self) -> usize {
        self.full_size + self.last.len() + self.away.as_ref().map_or(0, |away| away.size())
    }

    /// Bytes that wait on disk.
    pub fn stored_size(&self) -> usize {
        self.away.as_ref().map_or(0, |away| away.reading_size + away.pages_size)
    }

    /// Bytes in memory that a job writes to disk.
    pub fn writing_size(&self) -> usize {
        self.away.as_ref().map_or(0, |away| away.writing_size)
    }

    /// Bytes that wait in memory and count against the limit of the backlog.
    #[inline]
    pub fn backlog_size(&self) -> usize {
        self.full_size + self.last.len() + self.writing_size()
            - self.full_replayed_size
            - self.last_replayed_size
    }

    /// The part of the backlog that only this outbox holds.
    pub fn own_backlog_size(&self) -> usize {
        self.backlog_size() - self.shared_size
    }

    pub fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// Whether bytes can be sent now: they are not on disk.
    #[inline]
    pub fn has_next(&self) -> bool {
        match &self.away {
            None => !self.is_empty(),
            Some(away) => !away.before.is_empty(),
        }
    }

    /// The next bytes to be sent; `None` when there are none in memory.
    pub fn take(&mut self) -> Option<Taken> {
        let first = match &mut self.away {
            None => self.full.pop_front(),
            Some(away) => Some(away.before.pop_front()?),
        };
        let chunk = match first {
            Some(full) => {
                self.full_size -= full.bytes.size();
                self.full_replayed_size -= full.replayed_size;
                full
            }
            None => {
                let bytes = Bytes::Own(std::mem::take(&mut self.last));
                Chunk { bytes, replayed_size: std::mem::take(&mut self.last_replayed_size) }
            }
        };
        let mut left = self.closed_size.unwrap_or(usize::MAX);
        let taken = match chunk.bytes {
            Bytes::Own(mut bytes) => {
                bytes.truncate(left);
                Taken::Own(bytes)
            }
            Bytes::Shared(data) => {
                if chunk.replayed_size == 0 {
                    self.shared_size -= data.bytes.len();
                }
                // An outbox is closed between two frames, so all of the data is sent or none of it.
                if left == 0 {
                    return None;
                }
                Taken::Shared(data.bytes.clone())
            }
        };
        left -= taken.size();
        self.taken_size += taken.size() as u64;
        self.closed_size = self.closed_size.and(Some(left));
        (taken.size() > 0).then_some(taken)
    }

    /// Bytes that are appended from now on are not sent, and neither are those on disk.
    pub fn close(&mut self) {
        self.drop_away();
        self.closed_size = Some(self.size());
    }

    /// Drops the bytes that were appended after the close.
    pub fn drop_unsendable(&mut self) {
        let Some(closed_size) = self.closed_size else { return };
        let mut excess = self.size().saturating_sub(closed_size);
        while excess > 0 {
            if self.last.is_empty() {
                let Some(Chunk { bytes, replayed_size }) = self.full.pop_back() else { return };
                self.full_size -= bytes.size();
                self.full_replayed_size -= replayed_size;
                match bytes {
                    Bytes::Own(bytes) => (self.last, self.last_replayed_size) = (bytes, replayed_size),
                    // An outbox is closed between two frames, so the data does not belong to an
                    // earlier one.
                    Bytes::Shared(data) => {
                        self.shared_size -= if replayed_size == 0 { data.bytes.len() } else { 0 };
                        excess = excess.saturating_sub(data.bytes.len());
                        continue;
                    }
                }
            }
            let cut = excess.min(self.last.len());
            self.last.truncate(self.last.len() - cut);
            self.last_replayed_size = self.last_replayed_size.min(self.last.len());
            excess -= cut;
        }
    }

    /// Whether there is no buffer yet.
    pub fn wants_buffer(&self) -> bool {
        self.last.capacity() == 0
    }

    /// Continues with `buffer`, which is empty.
    pub fn give_buffer(&mut self, buffer: Vec<u8>) {
        debug_assert!(self.last.is_empty() && buffer.is_empty());
        self.last = buffer;
    }

    /// Drops the messages that wait, except for the rest of one whose begin was taken. Other frames
    /// stay.
    pub fn drop_messages(&mut self) {
        if let Some(away) = self.away.take() {
            let after = std::mem::replace(&mut self.full, away.before);
            self.full.extend(after);
        }
        let rest = self.full.pop_front_if(|chunk| matches!(chunk.bytes, Bytes::Shared(_)));
        let encoder = self.encoder;
        let dropped = std::mem::replace(self, Outbox::new(encoder));
        self.message_count = dropped.message_count;
        for chunk in dropped.full {
            // Shared bytes are the data of a message.
            if let Bytes::Own(bytes) = chunk.bytes {
                encoder.copy_others_than_messages(&bytes, &mut self.last);
            }
        }
        encoder.copy_others_than_messages(&dropped.last, &mut self.last);
        if let Some(chunk) = rest {
            let size = chunk.bytes.size();
            self.full_size = size;
            self.full_replayed_size = chunk.replayed_size;
            self.shared_size = if chunk.replayed_size == 0 { size } else { 0 };
            self.full.push_back(chunk);
        }
    }

    /// Whether a part of it is on disk, or on its way.
    #[inline]
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Bytes after those on disk that could follow them.
    #[inline]
    pub fn tail_size(&self) -> usize {
        match &self.away {
            Some(away) if away.writing_size == 0 => {
                self.full_size - away.before.iter().map(|chunk| chunk.bytes.size()).sum::<usize>()
            }
            _ => 0,
        }
    }

    /// Bytes that [`Outbox::page_out`] would return.
    pub fn movable_size(&self, before_size: usize) -> usize {
        match &self.away {
            Some(_) => self.tail_size(),
            None => self.full_size.saturating_sub(before_size),
        }
    }

    /// Takes the chunks that may wait on disk. About `before_size` bytes at the front stay. Pass
    /// the pages to [`Outbox::paged_out`].
    pub fn page_out(&mut self, before_size: usize) -> Option<Vec<Piece>> {
        if self.away.as_ref().is_some_and(|away| away.writing_size > 0) {
            return None;
        }
        let mut before = VecDeque::new();
        if self.away.is_none() {
            let mut size = 0;
            // A piece begins with a frame. So the rest of a frame whose begin was sent stays.
            while let Some(chunk) =
                self.full.pop_front_if(|chunk| size < before_size || matches!(chunk.bytes, Bytes::Shared(_)))
            {
                size += chunk.bytes.size();
                before.push_back(chunk);
            }
        }
        if self.full.is_empty() {
            self.full = before;
            return None;
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let mut writing_size = 0;
        for chunk in std::mem::take(&mut self.full) {
            self.full_size -= chunk.bytes.size();
            self.full_replayed_size -= chunk.replayed_size;
            writing_size += chunk.bytes.size();
            match (&chunk.bytes, pieces.last_mut()) {
                (Bytes::Shared(data), Some(piece)) => {
                    self.shared_size -= if chunk.replayed_size == 0 { data.bytes.len() } else { 0 };
                    piece.0.push(chunk);
                }
                _ => pieces.push(Piece(vec![chunk])),
            }
        }
        let away = self.away.get_or_insert_default();
        away.before.extend(before);
        away.writing_size = writing_size;
        Some(pieces)
    }

    /// Pieces are on disk now, except those that are left. Returns whether the outbox still needs
    /// them.
    pub fn paged_out(&mut self, pages: Vec<Page>, left: Vec<Piece>) -> bool {
        let Some(away) = self.away.as_mut().filter(|away| away.writing_size > 0) else { return false };
        away.writing_size = 0;
        away.pages_size += pages.iter().map(Page::size).sum::<usize>();
        away.pages.extend(pages);
        for piece in left.into_iter().rev() {
            for chunk in piece.0.into_iter().rev() {
                self.full_size += chunk.bytes.size();
                self.full_replayed_size += chunk.replayed_size;
                if let Bytes::Shared(data) = &chunk.bytes {
                    self.shared_size += if chunk.replayed_size == 0 { data.bytes.len() } else { 0 };
                }
                self.full.push_front(chunk);
            }
        }
        self.return_if_empty();
        true
    }

    /// The next page, when less than `before_size` bytes are before it and no other one is read.
    /// Pass its content to [`Outbox::paged_in`].
    pub fn page_in(&mut self, before_size: usize) -> Option<Page> {
        let away = self.away.as_mut().filter(|away| away.reading_size == 0)?;
        if away.before.iter().map(|chunk| chunk.bytes.size()).sum::<usize>() >= before_size {
            return None;
        }
        let page = away.pages.pop_front()?;
        away.pages_size -= page.size();
        away.reading_size = page.size();
        Some(page)
    }

    /// The pieces of a page, with their bytes from replays, are in memory again. Returns whether
    /// the outbox still needs them.
    pub fn paged_in(&mut self, pieces: Vec<(Vec<u8>, usize)>) -> bool {
        let Some(away) = self.away.as_mut().filter(|away| away.reading_size > 0) else { return false };
        away.reading_size = 0;
        for (bytes, replayed_size) in pieces {
            self.full_size += bytes.len();
            self.full_replayed_size += replayed_size;
            away.before.push_back(Chunk { bytes: Bytes::Own(bytes), replayed_size });
        }
        self.return_if_empty();
        true
    }

    /// All of it is in memory again.
    fn return_if_empty(&mut self) {
        if let Some(away) = self.away.take_if(|away| away.size() == 0) {
            let after = std::mem::replace(&mut self.full, away.before);
            self.full.extend(after);
        }
    }

    /// Drops what is on disk, and what follows it. Returns whether there was something.
    pub fn drop_away(&mut self) -> bool {
        let Some(away) = self.away.take() else { return false };
        let own = std::mem::replace(self, Outbox::new(self.encoder));
        (self.message_count, self.taken_size) = (own.message_count, own.taken_size);
        for chunk in away.before {
            if let Bytes::Shared(data) = &chunk.bytes {
                self.shared_size += if chunk.replayed_size == 0 { data.bytes.len() } else { 0 };
            }
            self.push_full(chunk);
        }
        true
    }

    /// Notes that the bytes in it are there at this time, or up to `interval` earlier.
    pub fn mark(&mut self, now: Instant, interval: Duration) {
        self.oldest();
        let size = self.taken_size + self.size() as u64;
        match self.marks.back_mut() {
            Some((marked_size, at)) if now < *at + interval => *marked_size = size,
            _ => self.marks.push_back((size, now)),
        }
    }

    /// When the oldest of its bytes was put into it, or up to the interval of marks earlier;
    /// `None`: no bytes were marked.
    pub fn oldest(&mut self) -> Option<Instant> {
        while self.marks.pop_front_if(|(size, _)| *size <= self.taken_size).is_some() {}
        self.marks.front().map(|(_, at)| *at)
    }

    /// Drops the buffered output. It is never sent.
    pub fn clear(&mut self) {
        *self = Outbox::new(self.encoder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(outbox: &mut Outbox, size: usize) {
        outbox.bytes_mut().extend(std::iter::repeat_n(7, size));
    }

    fn take_size(outbox: &mut Outbox) -> Option<usize> {
        outbox.take().map(|taken| taken.size())
    }

    #[test]
    fn sizes_follow_what_is_put_and_taken_across_chunks() {
        let mut outbox = Outbox::new(Encoder::Quire);
        put(&mut outbox, CHUNK_SIZE - 1);
        put(&mut outbox, 10);
        put(&mut outbox, 20);
        outbox.last_replayed_size += 20;
        outbox.put_replayed(vec![8; CHUNK_SIZE]);
        assert_eq!((outbox.size(), outbox.backlog_size()), (2 * CHUNK_SIZE + 29, CHUNK_SIZE + 9));
        assert_eq!(take_size(&mut outbox), Some(CHUNK_SIZE + 9));
        assert_eq!((outbox.size(), outbox.backlog_size()), (CHUNK_SIZE + 20, 0));
        assert_eq!(take_size(&mut outbox), Some(20));
        assert_eq!(take_size(&mut outbox), Some(CHUNK_SIZE));
        assert_eq!((take_size(&mut outbox), outbox.size(), outbox.backlog_size()), (None, 0, 0));
    }

    #[test]
    fn messages_that_wait_are_dropped_except_for_the_rest_of_one() {
        let waiting_size = Arc::default();
        let data = [3; 100];
        let message = Message { data: &data, ..Message::default() };
        let shared = SharedData::new(&data, &waiting_size);
        let mut outbox = Outbox::new(Encoder::Quire);
        outbox.put_message(&message, Some(&shared));
        let head_size = take_size(&mut outbox).unwrap();
        outbox.put_message(&message, Some(&shared));
        outbox.drop_messages();
        assert_eq!((outbox.size(), outbox.backlog_size(), outbox.own_backlog_size()), (100, 100, 0));
        assert_eq!((take_size(&mut outbox), take_size(&mut outbox)), (Some(100), None));
        // A reply between messages stays.
        let reply = Reply::Persisted { sequence: 7 };
        let mut replied = Vec::new();
        Encoder::Quire.put(&reply, &mut replied);
        outbox.put_message(&message, None);
        outbox.put(&reply);
        outbox.put_message(&message, Some(&shared));
        outbox.put(&reply);
        outbox.put_replayed_message(&message, None);
        outbox.drop_messages();
        assert_eq!((outbox.size(), outbox.message_count()), (2 * replied.len(), 5));
        assert!(matches!(outbox.take(), Some(Taken::Own(bytes)) if bytes == replied.repeat(2)));
        // The begin of the next one was not taken.
        outbox.put_message(&message, Some(&shared));
        assert_eq!(outbox.size(), head_size + 100);
        outbox.drop_messages();
        assert_eq!((outbox.size(), outbox.backlog_size(), take_size(&mut outbox)), (0, 0, None));
    }

    #[test]
    fn what_is_put_behind_the_close_is_not_sent() {
        let waiting_size = Arc::default();
        let data = [3; 100];
        let message = Message { data: &data, ..Message::default() };
        let shared = SharedData::new(&data, &waiting_size);
        let mut outbox = Outbox::new(Encoder::Quire);
        put(&mut outbox, CHUNK_SIZE);
        put(&mut outbox, 5);
        outbox.put_message(&message, Some(&shared));
        let head_size = outbox.size() - CHUNK_SIZE - 105;
        outbox.close();
        outbox.put_message(&message, Some(&shared));
        put(&mut outbox, CHUNK_SIZE);
        put(&mut outbox, 6);
        assert_eq!(take_size(&mut outbox), Some(CHUNK_SIZE));
        assert_eq!(take_size(&mut outbox), Some(5 + head_size));
        assert_eq!(take_size(&mut outbox), Some(100));
        assert_eq!(take_size(&mut outbox), None);
    }

    #[test]
    fn what_is_put_behind_the_close_can_be_dropped() {
        let data = [3; 100];
        let message = Message { data: &data, ..Message::default() };
        let shared = SharedData::new(&data, &Arc::default());
        let mut outbox = Outbox::new(Encoder::Quire);
        put(&mut outbox, CHUNK_SIZE);
        put(&mut outbox, 5);
        outbox.put_replayed(vec![8; 7]);
        outbox.close();
        for _ in 0..3 {
            outbox.put_message(&message, Some(&shared));
            put(&mut outbox, CHUNK_SIZE);
            outbox.drop_unsendable();
            assert_eq!((outbox.size(), outbox.backlog_size()), (CHUNK_SIZE + 12, CHUNK_SIZE + 5));
            assert_eq!(outbox.own_backlog_size(), CHUNK_SIZE + 5);
        }
        assert_eq!(take_size(&mut outbox), Some(CHUNK_SIZE));
        assert_eq!(take_size(&mut outbox), Some(12));
        assert_eq!(take_size(&mut outbox), None);
    }

    #[test]
    fn shared_data_leaves_in_its_place_and_counts_once_for_all_outboxes() {
        let waiting_size = Arc::default();
        let data = [3; 100];
        let message = Message { subscription: 9, topic: b"t", data: &data, ..Message::default() };
        let shared = SharedData::new(&data, &waiting_size);
        let mut whole = Vec::new();
        Encoder::Quire.put_message(&message, &mut whole);
        whole.push(7);
        let mut outboxes = [(); 3].map(|()| Outbox::new(Encoder::Quire));
        let [first, second, replayed] = &mut outboxes;
        for outbox in [&mut *first, second] {
            outbox.put_message(&message, Some(&shared));
            put(outbox, 1);
            let sizes = (outbox.size(), outbox.backlog_size(), outbox.own_backlog_size());
            assert_eq!(sizes, (whole.len(), whole.len(), whole.len() - 100));
        }
        replayed.put_replayed_message(&message, Some(&shared));
        put(replayed, 1);
        assert_eq!(
            (replayed.size(), replayed.backlog_size(), replayed.own_backlog_size()),
            (whole.len(), 1, 1)
        );
        drop(shared);
        assert_eq!(waiting_size.load(Ordering::Relaxed), 100);
        for outbox in [first, replayed] {
            let mut sent = Vec::new();
            while let Some(taken) = outbox.take() {
                match taken {
                    Taken::Own(bytes) => sent.extend(bytes),
                    Taken::Shared(bytes) => sent.extend_from_slice(&bytes),
                }
            }
            assert_eq!(sent, whole);
            assert_eq!((outbox.size(), outbox.backlog_size(), outbox.own_backlog_size()), (0, 0, 0));
        }
        assert_eq!(waiting_size.load(Ordering::Relaxed), 100);
        second.clear();
        assert_eq!(waiting_size.load(Ordering::Relaxed), 0);
    }
}
