"""quire beside NATS JetStream, Redis Streams, RabbitMQ and Kafka, on the same machine in the same run: see `__main__`."""
