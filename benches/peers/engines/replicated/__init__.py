"""One module per engine: several servers of it that keep copies of a log."""

from ...engine import Replicated
from .kafka import Brokers
from .nats import Clustered
from .postgresql import Standby
from .quire import Pair, Three
from .rabbitmq import Quorum
from .redis import Copied

ALL: tuple[type[Replicated], ...] = (Pair, Three, Clustered, Copied, Quorum, Brokers, Standby)
