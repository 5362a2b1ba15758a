"""One module per engine."""

from ..engine import Engine
from . import replicated
from .kafka import Kafka
from .nats import Nats
from .postgresql import PostgreSQL
from .quire import Quire
from .rabbitmq import RabbitMQ
from .redis import Redis

ALL: tuple[type[Engine], ...] = (Quire, Nats, Redis, RabbitMQ, Kafka, PostgreSQL, *replicated.ALL)
