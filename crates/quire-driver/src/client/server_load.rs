//! Asks servers for their number of connections. A client with `LeastLoaded` connects to the server
//! with the fewest.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quire_client::{ClientConfig, ClientCore, CommandId, Event};
use quire_command::Subject;

use super::transport::{Endpoint, Stream, block};

/// A server that does not answer within this time is tried last.
const LIMIT: Duration = Duration::from_secs(2);

/// The identity with which servers are asked.
pub(super) struct Asker(ClientConfig);

impl Asker {
    /// The name of `client` must not be taken over, so another one is used.
    pub fn of(client: &ClientConfig) -> Self {
        let name = format!("load/{:016x}", client.incarnation);
        Asker(ClientConfig { name, heartbeat: None, address_count: 1, ..client.clone() })
    }

    /// The number of connections of each server, in the order of `endpoints`. All are asked at the
    /// same time.
    pub fn ask(&self, endpoints: &[Endpoint]) -> Vec<Option<u64>> {
        std::thread::scope(|scope| {
            let ask = |endpoint| scope.spawn(move || self.connection_count(endpoint).ok().flatten());
            let asked: Vec<_> = endpoints.iter().map(ask).collect();
            asked.into_iter().map(|thread| thread.join().ok().flatten()).collect()
        })
    }

    fn connection_count(&self, endpoint: &Endpoint) -> io::Result<Option<u64>> {
        let begun = Instant::now();
        let now = || quire_types::time::Instant::from_ns(begun.elapsed().as_nanos() as u64);
        let mut stream = endpoint.connect(LIMIT).map_err(io::Error::other)?;
        let mut core = ClientCore::new(self.0.clone(), now());
        core.handle_connected(now());
        let command = core.inspect(Subject::Server).map_err(io::Error::other)?;
        let (mut out, mut scratch) = (Vec::new(), vec![0; 16 * 1024]);
        loop {
            send(&mut core, &mut *stream, &mut out, now())?;
            let Some(left) = LIMIT.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
                return Ok(None);
            };
            block(&*stream, left)?;
            let size = match stream.read(&mut scratch) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            if size == 0 {
                return Ok(None);
            }
            let bytes = Bytes::copy_from_slice(&scratch[..size]);
            core.handle_received(now(), bytes).map_err(io::Error::other)?;
            if let Some(json) = answer(&mut core, command) {
                core.close();
                send(&mut core, &mut *stream, &mut out, now())?;
                let told: serde_json::Value = serde_json::from_str(&json)?;
                return Ok(told["server"]["connections"].as_u64());
            }
        }
    }
}

fn send(
    core: &mut ClientCore,
    stream: &mut dyn Stream,
    out: &mut Vec<u8>,
    now: quire_types::time::Instant,
) -> io::Result<()> {
    out.clear();
    core.poll_transmit(now, out);
    block(stream, LIMIT)?;
    write_all(stream, out)
}

fn write_all(stream: &mut dyn Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(size) => bytes = &bytes[size..],
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn answer(core: &mut ClientCore, command: CommandId) -> Option<String> {
    while let Some(event) = core.poll_event() {
        match event {
            Event::JsonReply { command: told, json } if told == command => return Some(json),
            _ => (),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Takes bytes by a script.
    struct Scripted {
        socket: UnixStream,
        writes: VecDeque<io::Result<usize>>,
        taken: Vec<u8>,
    }

    impl AsFd for Scripted {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }

    impl Stream for Scripted {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let size = self.writes.pop_front().expect("no more writes")?;
            self.taken.extend_from_slice(&bytes[..size]);
            Ok(size)
        }
    }

    fn written(writes: impl IntoIterator<Item = io::Result<usize>>) -> (Result<(), ErrorKind>, Vec<u8>) {
        let (socket, _) = UnixStream::pair().unwrap();
        let mut stream = Scripted { socket, writes: writes.into_iter().collect(), taken: Vec::new() };
        let result = write_all(&mut stream, b"question").map_err(|error| error.kind());
        (result, stream.taken)
    }

    #[test]
    fn a_signal_does_not_end_a_question() {
        let writes = [Ok(3), Err(ErrorKind::Interrupted.into()), Ok(5)];
        assert_eq!(written(writes), (Ok(()), b"question".to_vec()));
    }

    #[test]
    fn a_stream_that_takes_nothing_ends_a_question() {
        assert_eq!(written([Ok(3), Ok(0)]), (Err(ErrorKind::WriteZero), b"que".to_vec()));
    }
}
