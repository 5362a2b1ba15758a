"""The command `quire`: one module per family of commands, each imported only when it is used."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys

#: Exit codes: for a mistake in the arguments or the configuration, and for any other failure.
USER_MISTAKE = 2
FAILURE = 1
#: Exit code after Ctrl-C: 128 and the number of the signal.
INTERRUPTED = 130


def main() -> None:
    """Runs the command line of this process."""
    try:
        signal.signal(signal.SIGTERM, _terminated)
        # A character that the encoding of the terminal lacks is shown as its number.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs one command, and returns its exit code. A mistake of the user never ends in a traceback."""
    from quire._errors import (
        BadBookmarkError,
        BadFilterError,
        BadTopicError,
        ConfigError,
        NotJournaledError,
        QuireError,
    )

    try:
        return _dispatch(arguments)
    except (BadFilterError, BadTopicError, BadBookmarkError, ConfigError, NotJournaledError) as error:
        _complain(str(error), arguments)
        return USER_MISTAKE
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Python would report it again when it flushes
        # at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (QuireError, TimeoutError) as error:
        _complain(str(error), arguments)
        return FAILURE
    except OSError as error:
        reason = error.strerror or str(error)
        _complain(reason if error.filename is None else f"{error.filename}: {reason}", arguments)
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    from cyclopts import CycloptsError
    from quire_command import interrupted

    from quire._errors import ConfigError
    from quire.cli._app import app
    from quire.cli._mistakes import as_option, check_arguments, is_argument
    from quire.cli._options import ServerOptions

    try:
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=True)
    except CycloptsError:
        return USER_MISTAKE  # cyclopts has printed the mistake
    check_arguments(command, bound)
    for name, value in bound.arguments.items():
        if isinstance(value, ServerOptions):
            bound.arguments[name] = value.use()
    # Until here, Ctrl-C ends the process within the imports.
    if signal.getsignal(signal.SIGINT) is interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = command(*bound.args, **bound.kwargs)
    except CycloptsError:
        return USER_MISTAKE
    except ConfigError as error:
        raise as_option(error, bound) from None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        if error.filename is None or not is_argument(error.filename, bound):
            raise
        is_plain = error.strerror == os.strerror(errno.ENOENT)
        reason = "there is no such file; check the path" if is_plain else error.strerror
        raise ConfigError(f"{error.filename}: {reason}") from None
    return result if isinstance(result, int) else 0


def _terminated(number: int, _: object) -> None:
    """Ends the process as Ctrl-C does: clients send their publishes and return their leases."""
    sys.exit(128 + number)


def _complain(text: str, arguments: list[str]) -> None:
    from quire.cli._mistakes import without_passwords
    from quire.cli._output import visible

    urls = [argument for argument in arguments if "://" in argument]
    for line in without_passwords(text, urls).splitlines() or [""]:
        print(f"quire: {visible(line)}", file=sys.stderr)


def default_url() -> str:
    """Returns the URL of the server for commands without `--url`."""
    return os.environ.get("QUIRE_URL", "quire://127.0.0.1:9007")


__all__ = ["default_url", "main", "run"]
