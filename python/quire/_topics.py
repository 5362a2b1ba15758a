"""Topics as subscriptions name them."""

from __future__ import annotations

import re

from quire._arguments import check_type

#: Characters of a pattern, and the end of a name that the server takes for a wildcard of another
#: system.
_PATTERN = re.compile(r"[\^$*+?\[\](){}|\\]|(?:\.>|/#)$")


def exact(topic: str) -> str:
    """Returns the text to subscribe to exactly one topic, even if its name contains pattern characters.

    `subscribe("orders[1]")` subscribes to a pattern, because the text contains brackets.
    `subscribe(quire.exact("orders[1]"))` subscribes to the topic with this name. A name that ends
    with `.>` or `/#` is also changed. Any other name without pattern characters is returned
    unchanged.
    """
    check_type(topic, str, "topic")
    return f"^{re.escape(topic)}$" if _PATTERN.search(topic) else topic


def is_pattern(topic: str) -> bool:
    """Whether a subscription takes the text for a pattern."""
    return _PATTERN.search(topic) is not None
