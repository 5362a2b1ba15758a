"""The entry point of the command `quire`.

It is outside of the package `quire`, whose import takes a moment: Ctrl-C ends the command without a
traceback during the import, too.
"""

try:
    import os
    import signal
except KeyboardInterrupt:
    raise SystemExit(130) from None


def main() -> None:
    """Runs the command line of this process."""
    # In the background, a shell can have told the process to ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    from quire.cli import main as run

    run()


def interrupted(_number: int, _frame: object) -> None:
    """Ends the process at once. There is nothing to close before the command runs.

    The default action of the system would not end the first process of a container.
    """
    os._exit(130)
