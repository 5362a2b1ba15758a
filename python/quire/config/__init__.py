"""The configuration of an engine: `quire.Config`, and the models of its tables.

Every table may be given as a model or as a mapping with the same keys. `quire.config.Queue` is a
`[[queue]]`; the queue engine without a broker is `quire.Queue`.
"""

from quire.config._actions import Action, Events
from quire.config._admin import Admin
from quire.config._authentication import Authentication
from quire.config._entitlement import Entitlement
from quire.config._last_values import ConflatedTopic, SowTopic, View
from quire.config._logging import Logging
from quire.config._models import Config, Limits, Maintenance, Queue, RecordedTopic, TransactionLog, Transport
from quire.config._replication import Destination, ReplicatedTopic, Replication
from quire.config._tls import LinkTLS, ServerTLS
from quire.config._user_limit import UserLimit
from quire.config._values import Address

__all__ = [
    "Action",
    "Address",
    "Admin",
    "Authentication",
    "Config",
    "ConflatedTopic",
    "Destination",
    "Entitlement",
    "Events",
    "Limits",
    "LinkTLS",
    "Logging",
    "Maintenance",
    "Queue",
    "RecordedTopic",
    "ReplicatedTopic",
    "Replication",
    "ServerTLS",
    "SowTopic",
    "TransactionLog",
    "Transport",
    "UserLimit",
    "View",
]
