//! The engine's end of one connection: a non-blocking stream and its pending output.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use quire_journal::descriptor::Owned;

/// Above this many waiting bytes, the driver reports to the broker that the connection takes no
/// more, and the broker stops feeding its replays. One chunk of a replay is at most as large. So a
/// connection holds about twice this amount, not counting the buffers of the kernel.
pub(super) const HIGH_WATER_BYTES: usize = 1024 * 1024;

/// Below this many waiting bytes, the driver reports to the broker that it can continue. This is
/// early enough that the peer does not run out of data.
pub(super) const LOW_WATER_BYTES: usize = 256 * 1024;

/// Buffers passed to the kernel in one call. A turn queues few buffers per connection, so more of
/// them mean a slow peer.
const SLICES_MAX: usize = 16;

/// The result of reading.
pub(super) enum Received {
    /// This many bytes are in the buffer.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The peer closed, or the connection broke.
    End,
}

/// Bytes that wait to be written.
pub(super) enum Outgoing {
    Own(Vec<u8>),
    /// Other connections write the same bytes.
    Shared(Arc<[u8]>),
}

impl Deref for Outgoing {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Outgoing::Own(bytes) => bytes,
            Outgoing::Shared(bytes) => bytes,
        }
    }
}

pub(super) struct Transport {
    stream: Owned<UnixStream>,
    outgoing: VecDeque<Outgoing>,
    /// Bytes of the first buffer that were written.
    front_sent: usize,
    /// Bytes of all buffers that were not written.
    waiting_bytes: usize,
    /// The last state that was reported to the broker.
    pub(super) writable: bool,
    /// Whether the broker wants input of the peer.
    pub(super) reading: bool,
    /// Nothing new is sent or received. The connection is removed when its pending output was
    /// written.
    pub(super) closing: bool,
}

impl Transport {
    pub(super) fn new(stream: Owned<UnixStream>) -> Self {
        Transport {
            stream,
            outgoing: VecDeque::new(),
            front_sent: 0,
            waiting_bytes: 0,
            writable: true,
            reading: true,
            closing: false,
        }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    pub(super) fn send(&mut self, bytes: Outgoing) {
        self.waiting_bytes += bytes.len();
        self.outgoing.push_back(bytes);
    }

    /// Reads once into `buffer`.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        loop {
            return match self.stream.read(buffer) {
                Ok(0) => Received::End,
                Ok(size) => Received::Bytes(size),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Nothing,
                Err(_) => Received::End,
            };
        }
    }

    /// Writes the bytes that the peer takes. Unshared buffers that were written completely are
    /// added to `sent`.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self, mut sent: impl FnMut(Vec<u8>)) -> io::Result<()> {
        while self.waiting_bytes > 0 {
            let size = match self.write_some() {
                Ok(size) => size,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            self.take_off(size, &mut sent);
        }
        Ok(())
    }

    fn write_some(&mut self) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut skip = self.front_sent;
        let mut count = 0;
        for (slice, buffer) in slices.iter_mut().zip(&self.outgoing) {
            *slice = IoSlice::new(&buffer[skip..]);
            skip = 0;
            count += 1;
        }
        self.stream.write_vectored(&slices[..count])
    }

    /// Forgets `size` bytes from the front.
    fn take_off(&mut self, size: usize, sent: &mut impl FnMut(Vec<u8>)) {
        self.waiting_bytes -= size;
        self.front_sent += size;
        while self.outgoing.front().is_some_and(|front| front.len() <= self.front_sent) {
            if let Some(buffer) = self.outgoing.pop_front() {
                self.front_sent -= buffer.len();
                if let Outgoing::Own(buffer) = buffer {
                    sent(buffer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::socket_pair;

    #[test]
    fn bytes_leave_whole_and_in_order_however_little_the_peer_takes() {
        let (mut peer, server) = socket_pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut transport = Transport::new(server);
        let mut expected = Vec::new();
        for number in 0..40u8 {
            let bytes = vec![number; 100_000 + usize::from(number)];
            expected.extend_from_slice(&bytes);
            transport.send(if number % 2 == 0 {
                Outgoing::Own(bytes)
            } else {
                Outgoing::Shared(bytes.into())
            });
        }
        let mut recycled = 0;
        let mut got = vec![0; expected.len()];
        let mut taken = 0;
        while taken < got.len() {
            transport.flush(|_| recycled += 1).unwrap();
            let end = got.len().min(taken + 7_001);
            taken += peer.read(&mut got[taken..end]).unwrap();
        }
        assert!(got == expected);
        assert_eq!((transport.waiting_bytes(), recycled), (0, 20));
    }

    #[test]
    fn a_peer_that_left_is_the_end() {
        let (peer, server) = socket_pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut transport = Transport::new(server);
        let mut buffer = [0; 16];
        assert!(matches!(transport.receive(&mut buffer), Received::Nothing));
        drop(peer);
        assert!(matches!(transport.receive(&mut buffer), Received::End));
        transport.send(Outgoing::Own(vec![1]));
        assert!(transport.flush(|_| ()).is_err());
    }
}
