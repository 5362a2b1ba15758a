"""TLS of the server: its certificates, and the transport that encrypts.

The sockets of the server are those of the event loop, so OpenSSL encrypts, through Python's `ssl`.
A connection over TLS has one more object, `Secured`, between the transport of the event loop and
the protocol of the connection. A plain connection has none, and nothing about it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
import stat
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from quire._errors import ConfigError
from quire.config import Config
from quire.config._tls import LinkTLS, ServerTLS
from quire.server._log import line

_log = logging.getLogger("quire.server")

#: Seconds between two looks at the files of certificates.
RELOAD_INTERVAL: Final = 2.0
#: Bytes of the largest record. A larger buffer would be allocated for each of them.
_RECORD_SIZE: Final = 16 * 1024
#: Encrypted bytes that are handed to the transport at a time.
_FLUSH_SIZE: Final = 64 * 1024
#: Seconds that a peer which was refused has to read the reason.
_REFUSED_GRACE: Final = 2.0
#: The algorithms of TLS 1.2: those with forward secrecy. All of TLS 1.3 have it.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL"

_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
#: Tags of the fields of a certificate.
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENTS: Final = {
    "required": ssl.CERT_REQUIRED,
    "optional": ssl.CERT_OPTIONAL,
    "none": ssl.CERT_NONE,
}


def server_context(tls: ServerTLS) -> ssl.SSLContext:
    """Returns the context of an address. Raises `ConfigError` with the key of a file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.set_ciphers(_CIPHERS)
    # Without tickets no session is resumed: the certificate of a client is checked for each
    # connection, and no key is kept that could decrypt an earlier one.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    _load_pair(context, tls.certificate, tls.private_key)
    if tls.client_ca is not None:
        _load_authorities(context, tls.client_ca, "client_ca")
    context.verify_mode = _CLIENTS[tls.clients]
    return context


def link_context(tls: LinkTLS) -> ssl.SSLContext:
    """Returns the context of the connections to a destination. Raises `ConfigError` as `server_context`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if tls.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, tls.ca, "ca")
    if tls.certificate is not None and tls.private_key is not None:
        _load_pair(context, tls.certificate, tls.private_key)
    return context


def mistakes_of(config: Config) -> list[tuple[str, str]]:
    """Returns the keys of the files of certificates that cannot be used, with the reasons."""
    found = []

    def check(key: str, tls: ServerTLS | LinkTLS | None) -> None:
        try:
            if isinstance(tls, ServerTLS):
                server_context(tls)
            elif tls is not None:
                link_context(tls)
        except ConfigError as error:
            found.append((f"{key}.tls.{error.key}", error._reason))

    for number, transport in enumerate(config.transport):
        check(f"transport[{number}]", transport.tls)
    check("admin", None if config.admin is None else config.admin.tls)
    check("replication", config.replication.tls)
    for number, destination in enumerate(config.replication.destination):
        check(f"replication.destination[{number}]", destination.tls)
    return found


def _load_pair(context: ssl.SSLContext, certificate: Path, private_key: Path) -> None:
    def no_password() -> str:
        # OpenSSL would ask for it at the terminal.
        raise ConfigError(
            f"{private_key} is encrypted: decrypt it, and let only the server read it", key="private_key"
        )

    _check_readable(certificate, "certificate")
    _check_readable(private_key, "private_key")
    if os.stat(private_key).st_mode & (stat.S_IROTH | stat.S_IWOTH):
        reason = f"every user of this machine may read {private_key}: run `chmod o= {private_key}`"
        raise ConfigError(reason, key="private_key")
    try:
        context.load_cert_chain(certificate, private_key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"{private_key} is not the private key of the certificate in {certificate}"
            raise ConfigError(reason, key="private_key") from None
        # OpenSSL does not say which of the two it means.
        key, path, what = "certificate", certificate, "certificate"
        if "-----BEGIN CERTIFICATE-----" in certificate.read_text(errors="replace"):
            key, path, what = "private_key", private_key, "private key"
        raise ConfigError(f"{path} has no {what} in PEM form that can be used", key=key) from None


def _load_authorities(context: ssl.SSLContext, path: Path, key: str) -> None:
    _check_readable(path, key)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError(f"{path} has no certificate in PEM form", key=key) from None


def _check_readable(path: Path, key: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", key=key) from None


class Certificates:
    """The context for new connections of one address. It follows the files."""

    def __init__(self, tls: ServerTLS | LinkTLS, what: str) -> None:
        self._tls = tls
        self._what = what
        #: Connections whose lines were left out in this second, by the reasons of their ends.
        self._left_out: dict[str, int] = {}
        self._seen = self._marks()
        self.context: ssl.SSLContext = self._load()
        #: When the first of its certificates expires, in seconds since 1970; `None`: it has none.
        self.expires: float | None = self._expiry()

    def is_for(self, tls: ServerTLS | LinkTLS, what: str) -> bool:
        """Whether it is the context of these settings."""
        return self._tls == tls and self._what == what

    def refresh(self) -> None:
        """Reads the files again when they have changed. With a mistake in them, the certificate stays as it was."""
        marks = self._marks()
        if marks == self._seen:
            return
        self._seen = marks
        try:
            self.context, self.expires = self._load(), self._expiry()
        except ConfigError as error:
            # A certificate and its key are two files, so this may be the moment between them.
            _log.warning("%s: the certificate was not changed: %s", self._what, error, extra=line("02-0007"))
        else:
            _log.info("%s: new connections use the new certificate", self._what, extra=line("02-0006"))

    def log_refusal(self, peer: str, reason: str) -> None:
        """Logs that a connection was closed: a line a second for each reason, so that a hostile peer
        cannot fill the log."""
        if reason in self._left_out:
            self._left_out[reason] += 1
            return
        _log.warning("TLS: the connection of %s was closed: %s", peer, reason, extra=line("10-0013"))
        self._begin_second(reason)

    def _begin_second(self, reason: str) -> None:
        self._left_out[reason] = 0
        asyncio.get_running_loop().call_later(1.0, self._end_second, reason)

    def _end_second(self, reason: str) -> None:
        if left_out := self._left_out.pop(reason):
            _log.warning(
                "TLS: %d more connections were closed in a second: %s",
                left_out,
                reason,
                extra=line("10-0014"),
            )
            self._begin_second(reason)

    def _load(self) -> ssl.SSLContext:
        tls = self._tls
        return server_context(tls) if isinstance(tls, ServerTLS) else link_context(tls)

    def _expiry(self) -> float | None:
        return None if self._tls.certificate is None else expiry_of(self._tls.certificate)

    def _marks(self) -> list[tuple[int, int, int] | None]:
        return [mark_of(value) for _, value in self._tls if isinstance(value, Path)]


def expiry_of(path: Path) -> float | None:
    """Returns when the first certificate of a file expires, in seconds since 1970.

    `None`: the file has none that can be read.
    """
    text = path.read_text(errors="replace")
    try:
        return min(_not_after(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(text))
    except (ValueError, IndexError):
        return None


def _not_after(der: bytes) -> float:
    """The end of the validity of a certificate (RFC 5280, section 4.1)."""

    def field(at: int) -> tuple[int, int, int]:
        """The tag of the field at a place, and where its content begins and ends."""
        size, begin = der[at + 1], at + 2
        if size >= 0x80:
            begin += size - 0x80
            size = int.from_bytes(der[at + 2 : begin], "big")
        return der[at], begin, begin + size

    _, at, _ = field(0)
    _, at, _ = field(at)
    if der[at] == _EXPLICIT_VERSION:
        _, _, at = field(at)
    for _ in ("serial number", "algorithm", "issuer"):
        _, _, at = field(at)
    _, at, _ = field(at)
    _, _, at = field(at)
    tag, begin, end = field(at)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def mark_of(path: Path) -> tuple[int, int, int] | None:
    """Returns values that change with a file; `None`: there is no file."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def text_of(error: ssl.SSLError, *, is_server: bool) -> str:
    """Returns what went wrong in a handshake, for a person."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        whose = "client" if is_server else "server"
        return f"the certificate of the {whose} was not accepted: {error.verify_message.rstrip('.')}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client has no certificate, and the server requires one"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return f"the {'client' if is_server else 'server'} does not use TLS"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "TLSV1_ALERT_PROTOCOL_VERSION"):
        return "client and server have no version or algorithm of TLS in common"
    if "ALERT" in reason:
        alert = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return f"the {'client' if is_server else 'server'} refused the handshake: {alert}"
    return reason.replace("_", " ").lower() or "the handshake failed"


def may_be_tls(first: bytes) -> bool:
    """Whether a connection over TLS can begin with these bytes, of which the first three are looked at."""
    return first[:1] == b"\x16" and first[1:2] in (b"", b"\x03") and first[2:3] in (b"", b"\1", b"\2", b"\3")


class Secured(asyncio.Protocol):
    """TLS on one connection: for the event loop its protocol, for the protocol of the connection its transport.

    As a server it tells the protocol of the connection before the handshake. So the connection
    counts, and the time for its logon runs. As a client it does so after the handshake, and
    `established` is done then.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        certificates: Certificates,
        *,
        refusal: bytes = b"",
        server_name: str | None = None,
    ) -> None:
        self._protocol = protocol
        self._certificates = certificates
        self._is_server = server_name is None
        #: The answer to a peer that does not use TLS.
        self._refusal = refusal
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = certificates.context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._is_server, server_hostname=server_name
        )
        self._transport: asyncio.Transport
        self._first = b""
        self._is_established = False
        #: The peer was refused, or has broken the rules: its bytes are dropped.
        self._is_over = False
        #: Bytes to write once the handshake is done, and whether to close then.
        self._waiting: list[bytes] = []
        self._is_to_close = False
        #: Of a client: done after the handshake.
        self.established: asyncio.Future[None] | None = None

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_server:
            self._protocol.connection_made(cast(asyncio.BaseTransport, self))
        else:
            self.established = asyncio.get_running_loop().create_future()
            self._shake_hands()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if len(self._first) < 3:
            self._first += data[: 3 - len(self._first)]
            if not may_be_tls(self._first) and self._is_server:
                self._transport.write(self._refusal)
                self._refuse("the client does not use TLS")
                return
        self._incoming.write(data)
        if (self._is_established or self._shake_hands()) and not self._is_over:
            self._read()

    def pause_writing(self) -> None:
        if self._is_told:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._is_told:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        if self.established is not None and not self.established.done():
            reason = "the server closed the connection during the TLS handshake"
            self.established.set_exception(ConnectionError(reason))
        if self._is_told:
            self._protocol.connection_lost(exc)

    @property
    def _is_told(self) -> bool:
        """Whether the protocol of the connection knows of it."""
        return self._is_server or self._is_established

    def _shake_hands(self) -> bool:
        """Continues the handshake. Returns whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            # With the alert that says why.
            self._flush()
            self._refuse(text_of(error, is_server=self._is_server))
            return False
        self._is_established = True
        self._flush()
        if self.established is not None:
            self._protocol.connection_made(cast(asyncio.BaseTransport, self))
            if not self.established.done():
                self.established.set_result(None)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self.writelines(waiting)
        if self._is_to_close:
            self.close()
        return True

    def _read(self) -> None:
        """Passes on what can be decrypted."""
        parts = []
        is_closed = False
        failure = None
        try:
            while part := self._tls.read(_RECORD_SIZE):
                parts.append(part)
            is_closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            failure = text_of(error, is_server=self._is_server)
        self._flush()
        if parts:
            self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if failure is not None:
            self._refuse(failure)
        elif is_closed:
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _refuse(self, reason: str) -> None:
        """Ends the connection, with time for the peer to read why.

        The bytes that the peer still sends are read: otherwise the operating system would reset
        the connection, and the peer could lose the reason.
        """
        self._is_over = True
        if self.established is not None and not self.established.done():
            self.established.set_exception(ConnectionError(reason))
        peer = self._transport.get_extra_info("peername")
        place = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"
        self._certificates.log_refusal(place, reason)
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(_REFUSED_GRACE, self._transport.abort)

    # For the protocol of the connection

    def write(self, data: bytes) -> None:
        self.writelines((data,))

    def writelines(self, parts: Iterable[bytes]) -> None:
        if not self._is_established:
            self._waiting.extend(parts)
            return
        if self._is_over:
            return
        parts = list(parts)
        if sum(map(len, parts)) < _RECORD_SIZE * len(parts):
            # A record for each of them would be longer than a small part.
            parts = [b"".join(parts)]
        try:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[self._tls.write(rest) :]
                    # Before they leave the cache of the processor: one large copy took twice as
                    # long as all of this.
                    if self._outgoing.pending >= _FLUSH_SIZE:
                        self._flush()
        except ssl.SSLError as error:
            self._refuse(text_of(error, is_server=self._is_server))
            return
        self._flush()

    def close(self) -> None:
        if self._waiting and not self._is_established and not self._is_over:
            # The peer gets the reason after the handshake. The connection is cut if that takes too
            # long.
            self._is_to_close = True
            return
        if self._is_established and not self._is_over and not self._transport.is_closing():
            # The peer has not said yet that it closes, too.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._is_over = True
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        if not self._is_over:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._tls.getpeercert() if self._is_established else default
        return self._transport.get_extra_info(name, default)
