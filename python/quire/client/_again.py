"""Questions of replays to a destination: is it the source, and do publishers supply keys?"""

from __future__ import annotations

import re

from quire._errors import BadBookmarkError, ConfigError, DisconnectedError, NotJournaledError
from quire.client._blocking import Client
from quire.client._spec import Spec


def check_not_again(client: Client, topic: str, bookmark: str, timestamp_ns: int, into: str | None) -> None:
    """Checks the first message of a replay: `topic`, `bookmark` and `timestamp_ns` are those at the source.

    Raises `ConfigError` when the destination has the same message, and it would be published to its
    own topic.
    """
    if into is not None and into != topic:
        return
    range_ = Spec(f"^{re.escape(topic)}$", bookmark=f"[{bookmark}:{bookmark}]", bookmark_not_found="fail")
    try:
        with client._enter_now(range_, auto_ack=False) as subscription:
            # Publisher and sequence can be the same in two logs, the time at which a server took
            # the message is not.
            is_same = subscription.get().timestamp_ns == timestamp_ns
    except (BadBookmarkError, NotJournaledError, DisconnectedError):
        # The destination does not have it: the subscription was refused, or ended without a
        # message.
        is_same = False
    if is_same:
        raise ConfigError(
            f"the destination has the first message already: it is the source itself, or has the same log ({bookmark} on "
            f"{topic!r}). To publish to another topic, use --into; to publish everything to the same topics again, use --again"
        )


def takes_keys(client: Client, topic: str) -> bool:
    """Whether the publishers of the topic supply the keys of its records."""
    described = client._described_of([topic])
    values = described[0].get("last_values") if described else None
    return values is not None and not values["key"]
