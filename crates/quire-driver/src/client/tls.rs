//! TLS of a client's connection: the files that the user names, the handshake, and the stream.
//!
//! rustls encrypts, checks the certificates and parses what the server sends. This module gives it
//! the files, moves the bytes between it and the socket, and says in words why a connection was not
//! secured. The provider of the algorithms is given per configuration: another library in the
//! process may have set the default of the process.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use quire_journal::Timestamp;
use quire_journal::descriptor::Owned;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, InconsistentKeys,
    RootCertStore,
};

use super::transport::Stream;

/// The authorities that a client trusts, and its certificate. The files are read for each
/// connection, so that a new certificate is used without a restart.
#[derive(Clone, Default)]
pub struct Tls {
    /// File with the certificates of the authorities that the client trusts. `None`: those of the
    /// system.
    pub ca: Option<PathBuf>,
    /// File with the certificate of the client, and those that lead from it to an authority.
    pub certificate: Option<PathBuf>,
    /// File with the private key of the certificate. `None`: it is in the file of the certificate.
    pub key: Option<PathBuf>,
    /// The password of an encrypted private key.
    pub key_password: Option<String>,
    /// The name that the certificate of the server must have. `None`: the host of the URL.
    pub server_name: Option<String>,
}

/// A file or a name that a client cannot use.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct TlsOptionError {
    /// The option: `ca`, `certificate`, `key`, `key_password` or `server_name`.
    pub key: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

/// Why a connection was not secured, or the peer broke the rules of TLS later.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TlsFailure(String);

/// Bytes that are read from the socket at a time.
const READ_SIZE: usize = 128 * 1024;
/// Bytes that are encrypted at a time. rustls keeps no more than this.
const WRITE_SIZE: usize = 64 * 1024;
/// Bytes of the largest file that is read.
const FILE_SIZE_MAX: u64 = 16 << 20;
/// The beginning of a private key that is encrypted as PKCS #8 describes it.
const ENCRYPTED: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";

impl Tls {
    /// Checks the files and the name, as a connection would.
    ///
    /// # Errors
    /// The option that cannot be used.
    pub fn check(&self) -> Result<(), TlsOptionError> {
        self.session("localhost").map(drop)
    }

    /// The beginning of a connection to `host`.
    pub(super) fn session(&self, host: &str) -> Result<ClientConnection, TlsOptionError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| option("server_name", format!("{name:?} is neither a host name nor an address")))?;
        let config = Arc::new(self.config()?);
        ClientConnection::new(config, name).map_err(|error| option("ca", error.to_string()))
    }

    fn config(&self) -> Result<ClientConfig, TlsOptionError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| option("ca", error.to_string()))?;
        let builder = match &self.ca {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("ca", path)? {
                    roots.add(certificate).map_err(|error| {
                        option(
                            "ca",
                            format!("{}: not a certificate of an authority: {error}", path.display()),
                        )
                    })?;
                }
                let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| option("ca", format!("{}: {error}", path.display())))?;
                builder.with_webpki_verifier(verifier)
            }
            None => {
                let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|_| {
                    option("ca", "the system has no certificates of authorities; name a file".to_owned())
                })?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let Some(path) = &self.certificate else {
            return match &self.key {
                Some(_) => Err(option("certificate", "`key` requires a certificate".to_owned())),
                None => Ok(builder.with_no_client_auth()),
            };
        };
        let key_path = self.key.as_ref().unwrap_or(path);
        let key = self.private_key(key_path)?;
        builder.with_client_auth_cert(certificates("certificate", path)?, key).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let (key, certificate) = (key_path.display(), path.display());
                option("key", format!("{key} is not the private key of the certificate in {certificate}"))
            }
            error => option("certificate", format!("{}: {error}", path.display())),
        })
    }

    /// The private key of the client, decrypted.
    fn private_key(&self, path: &Path) -> Result<PrivateKeyDer<'static>, TlsOptionError> {
        let shown = path.display();
        let text = read("key", path)?;
        let mode = fs::metadata(path).map_or(0, |about| about.permissions().mode());
        if mode & 0o007 != 0 {
            let reason = format!("every user of this machine may use {shown}; run `chmod o= {shown}`");
            return Err(option("key", reason));
        }
        let Some(at) = text.find(ENCRYPTED) else {
            return PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| {
                let reason = if text.contains("Proc-Type: 4,ENCRYPTED") {
                    format!("{shown} is encrypted in the old form; convert it with `openssl pkcs8 -topk8`")
                } else {
                    format!("{shown} has no private key in PEM form")
                };
                option("key", reason)
            });
        };
        let Some(password) = &self.key_password else {
            return Err(option("key_password", format!("{shown} is encrypted, and requires it")));
        };
        decrypted(&text[at..], password)
            .ok_or_else(|| option("key_password", format!("{shown} cannot be decrypted: check the password")))
    }
}

/// The key in the PEM text of an encrypted one.
fn decrypted(text: &str, password: &str) -> Option<PrivateKeyDer<'static>> {
    let end = "-----END ENCRYPTED PRIVATE KEY-----";
    let text = &text[..text.find(end)? + end.len()];
    let (_, document) = pkcs8::SecretDocument::from_pem(text).ok()?;
    let encrypted = pkcs8::EncryptedPrivateKeyInfoRef::try_from(document.as_bytes()).ok()?;
    let key = encrypted.decrypt(password).ok()?;
    Some(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}

fn option(key: &'static str, reason: String) -> TlsOptionError {
    TlsOptionError { key, reason }
}

fn read(key: &'static str, path: &Path) -> Result<String, TlsOptionError> {
    let failed = |error: &io::Error| option(key, format!("{}: {}", path.display(), reason_of_file(error)));
    let file = fs::File::open(path).map_err(|error| failed(&error))?;
    let mut text = String::new();
    file.take(FILE_SIZE_MAX).read_to_string(&mut text).map_err(|error| failed(&error))?;
    Ok(text)
}

fn reason_of_file(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "this process may not read the file".to_owned(),
        ErrorKind::InvalidData => "the file is not in PEM form".to_owned(),
        _ => error.to_string(),
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsOptionError> {
    let text = read(key, path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| option(key, format!("{}: {error}", path.display())))?;
    match found.is_empty() {
        true => Err(option(key, format!("{} has no certificate in PEM form", path.display()))),
        false => Ok(found),
    }
}

/// A connection over TLS.
///
/// After a write returned `WouldBlock`, the next one must begin with the same bytes. They may be
/// encrypted already.
pub(super) struct TlsStream {
    session: ClientConnection,
    socket: Owned<TcpStream>,
    /// Bytes from the socket, and which of them rustls does not have yet.
    received: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of the last write that are encrypted, and not all written to the socket.
    accepted: usize,
    /// rustls has decrypted bytes that were not read.
    has_plaintext: bool,
    /// The error of the next read: bytes that arrived before it were read first.
    failure: Option<io::Error>,
    identifies_itself: bool,
}

/// The result of a look at the socket.
enum Progress {
    /// Bytes that rustls has now.
    Bytes,
    /// The peer has closed the connection.
    Closed,
}

impl TlsStream {
    /// Performs the handshake over a connected socket that does not wait.
    ///
    /// # Errors
    /// [`TlsFailure`] within the error: the peer does not use TLS, or its certificate, or that of
    /// the client, is not accepted. Others: the connection was lost, or `deadline` has passed.
    pub fn connect(
        socket: Owned<TcpStream>,
        session: ClientConnection,
        identifies_itself: bool,
        deadline: Instant,
    ) -> io::Result<Self> {
        let mut stream = TlsStream {
            session,
            socket,
            received: vec![0; READ_SIZE].into(),
            start: 0,
            end: 0,
            accepted: 0,
            has_plaintext: false,
            failure: None,
            identifies_itself,
        };
        while stream.session.is_handshaking() {
            match stream.flush() {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => (),
            }
            match stream.advance() {
                Ok(Progress::Bytes) => (),
                Ok(Progress::Closed) => return Err(stream.cut_off()),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => stream.wait(deadline)?,
                Err(error) => return Err(error),
            }
        }
        match stream.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(stream),
        }
    }

    /// Waits until the handshake can continue.
    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let reason = "the server did not finish the TLS handshake in time";
            return Err(io::Error::new(ErrorKind::TimedOut, reason));
        }
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.session.wants_write());
        let mut descriptors = [PollFd::new(&self.socket, flags)];
        match poll(&mut descriptors, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives rustls more of the bytes that the peer has sent.
    fn advance(&mut self) -> io::Result<Progress> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.end = self.socket.read(&mut self.received)?;
            if self.end == 0 {
                self.session.read_tls(&mut io::empty())?;
                return Ok(Progress::Closed);
            }
        }
        let size = self.session.read_tls(&mut &self.received[self.start..self.end])?;
        if size == 0 {
            // The peer has said that it sends no more.
            self.start = self.end;
            return Ok(Progress::Closed);
        }
        self.start += size;
        match self.session.process_new_packets() {
            Ok(state) => self.has_plaintext = state.plaintext_bytes_to_read() > 0,
            Err(error) => {
                // The alert tells the peer why. It may be lost, as any last words.
                let _ = self.flush();
                return Err(io::Error::other(self.failure_of(&error)));
            }
        }
        // Rustls may have an answer. Bytes that the socket does not take now are written with the
        // next ones.
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(Progress::Bytes),
        }
    }

    /// Writes what rustls has encrypted.
    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut *self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies decrypted bytes to `buffer`. Returns their number, and whether the peer has sent its
    /// last byte.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut size = 0;
        while size < buffer.len() {
            match self.session.reader().read(&mut buffer[size..]) {
                Ok(0) => return Ok((size, true)),
                Ok(more) => size += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.has_plaintext = false;
                    break;
                }
                // The peer closed without a last word. Frames have their lengths, so the client
                // notices whether one is incomplete.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok((size, true)),
                Err(error) => return Err(error),
            }
        }
        Ok((size, false))
    }

    fn cut_off(&self) -> io::Error {
        let reason =
            "the server closed the connection during the TLS handshake: check that its transport has `tls`";
        io::Error::other(TlsFailure(reason.to_owned()))
    }

    fn failure_of(&self, error: &Error) -> TlsFailure {
        TlsFailure(reason_of(error, self.session.is_handshaking(), self.identifies_itself))
    }
}

impl Stream for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut size = 0;
        loop {
            let (taken, is_last) = self.take(&mut buffer[size..])?;
            size += taken;
            if size == buffer.len() || is_last {
                return Ok(size);
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            // The last read did not fill the room, so it has emptied the socket.
            let is_emptied = self.start == self.end && self.end < self.received.len() && self.end > 0;
            if size > 0 && is_emptied {
                return Ok(size);
            }
            match self.advance() {
                Ok(_) => (),
                Err(error) if size == 0 => return Err(error),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(size),
                Err(error) => {
                    self.failure = Some(error);
                    return Ok(size);
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // What is left of the handshake, or of the last write.
        self.flush()?;
        if self.accepted == 0 {
            let size = bytes.len().min(WRITE_SIZE);
            self.accepted = self.session.writer().write(&bytes[..size])?;
            self.flush()?;
        }
        Ok(std::mem::take(&mut self.accepted))
    }

    fn has_buffered(&self) -> bool {
        self.has_plaintext || self.start < self.end || self.failure.is_some()
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        // Not in a forked child: it drops no client of its parent.
        self.session.send_close_notify();
        let _ = self.flush();
    }
}

/// The text of an error. It says what went wrong, and how to repair it.
fn reason_of(error: &Error, is_handshaking: bool, identifies_itself: bool) -> String {
    match error {
        Error::InvalidMessage(_) if is_handshaking => {
            "the server does not use TLS at this address: connect with quire://, or set `tls` in its transport"
                .to_owned()
        }
        Error::InvalidCertificate(error) => reason_of_certificate(error),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server requires a certificate of the client: set `certificate` and `key` of quire.TLS"
                .to_owned()
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure) if !identifies_itself => {
            "the server refused the TLS handshake; it may require a certificate of the client: set \
             `certificate` and `key` of quire.TLS"
                .to_owned()
        }
        Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied),
        ) => {
            let reason = match alert {
                AlertDescription::UnknownCA => "its authority is not in `client_ca` of the server",
                AlertDescription::CertificateExpired => "it has expired",
                AlertDescription::CertificateRevoked => "it was revoked",
                _ => "the log of the server says why",
            };
            format!("the server does not accept the certificate of the client: {reason}")
        }
        Error::AlertReceived(AlertDescription::ProtocolVersion) | Error::PeerIncompatible(_) => {
            "client and server have no version or algorithm of TLS in common; quire uses TLS 1.2 and 1.3"
                .to_owned()
        }
        error => format!("TLS: {error}"),
    }
}

fn reason_of_certificate(error: &CertificateError) -> String {
    let day = |time: &UnixTime| {
        let text = Timestamp::from_ns(time.as_secs().saturating_mul(1_000_000_000)).to_string();
        format!("{}-{}-{}", &text[..4], &text[4..6], &text[6..8])
    };
    match error {
        CertificateError::UnknownIssuer => {
            "the authority of the server's certificate is unknown: set `ssl` or $QUIRE_CA to the file with its \
             certificate"
                .to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the certificate of the server is not for {}, but for {}: correct the host, or set `server_name` of quire.TLS",
            expected.to_str(),
            match presented.is_empty() {
                true => "no name".to_owned(),
                false => presented.iter().map(|name| shown(name)).collect::<Vec<_>>().join(", "),
            }
        ),
        CertificateError::NotValidForName => "the certificate of the server is for another host".to_owned(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate of the server has expired on {}", day(not_after))
        }
        CertificateError::Expired => "the certificate of the server has expired".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the certificate of the server is valid from {} on: check the clock", day(not_before))
        }
        CertificateError::Revoked => "the certificate of the server was revoked".to_owned(),
        error => format!("the certificate of the server is not valid: {error}"),
    }
}

/// A name of a certificate, which rustls gives with its kind.
fn shown(name: &str) -> String {
    match name.split_once('(') {
        Some((_, inner)) => inner.trim_end_matches(')').trim_matches('"').to_owned(),
        None => name.to_owned(),
    }
}
