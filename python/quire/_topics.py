"""Topics as subscriptions name them."""

from __future__ import annotations

import re

from quire._arguments import check_type

_PATTERN = re.compile(r"[\^$*+?\[\](){}|\\]")


def exact(topic: str) -> str:
    """What to subscribe to in order to get the messages of this one topic, whatever characters its name has.

    `subscribe("orders[1]")` asks for a pattern, because the text has brackets; `subscribe(quire.exact("orders[1]"))`
    asks for that topic. A name without pattern characters stays as it is.
    """
    check_type(topic, str, "topic")
    return f"^{re.escape(topic)}$" if _PATTERN.search(topic) else topic
