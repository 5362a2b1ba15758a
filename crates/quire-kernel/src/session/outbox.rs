//! The bytes that wait to be sent on one connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::codec::Encoder;
use quire_command::{Message, Reply};

/// Bytes of a chunk above which the next frame begins another chunk. So the backlog of a connection
/// that accepts no bytes grows without copies, and is freed in parts that the allocator reuses.
const CHUNK_SIZE: usize = 256 * 1024;

/// Bytes of frames, in order. Uses no memory while it is empty.
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
        self.full_size + self.last.len()
    }

    /// Bytes that wait and count against the limit of the backlog.
    pub fn backlog_size(&self) -> usize {
        self.size() - self.full_replayed_size - self.last_replayed_size
    }

    /// The part of the backlog that only this outbox holds.
    pub fn own_backlog_size(&self) -> usize {
        self.backlog_size() - self.shared_size
    }

    pub fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// The next bytes to be sent; `None` when there are none.
    pub fn take(&mut self) -> Option<Taken> {
        let chunk = match self.full.pop_front() {
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
        self.closed_size = self.closed_size.and(Some(left));
        (taken.size() > 0).then_some(taken)
    }

    /// Bytes that are appended from now on are not sent.
    pub fn close(&mut self) {
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
