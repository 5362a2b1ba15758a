"""Compares quire with NATS JetStream, Redis, RabbitMQ, Kafka and PostgreSQL on one machine in one
run: see `__main__`."""
