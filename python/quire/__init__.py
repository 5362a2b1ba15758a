"""quire: an append-only, bookmarked transaction log with replayable subscriptions and queues."""
