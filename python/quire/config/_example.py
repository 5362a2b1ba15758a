"""The configuration that `quire config example` prints: every key, with its default."""

EXAMPLE = """\
# A quire server. Every key may be left out; the values are the defaults unless a comment says otherwise.
name = "quire"                        # what clients and logs call this server
data_directory = "quire-data"         # relative to this file
allow_backtracking_patterns = false   # true: LIKE also takes back-references and look-around, slower than other patterns

[[transport]]
name = "clients"
address = "127.0.0.1:9007"            # port 0: a free one
max_message_size = "16MB"
max_connections = 10000
max_patterns_per_connection = 1024    # LIKE and REGEXP_REPLACE in the filters of its subscriptions
max_client_backlog = "64MB"           # a slower ordinary subscriber is cut off
max_subscriptions_per_connection = 1024
logon_timeout = "5s"

# Another [[transport]] listens on another address, with its own limits.

[limits]                              # of all connections together
max_patterns = 8192
max_waiting = "1GB"                   # what waits for connections; the slowest is cut off
max_unfinished = "256MB"              # of frames that have not arrived whole

[transaction_log]
journal_directory = "journal"         # relative to data_directory
journal_size = "64MB"                 # at least 64KB; the first files have 4MB and grow up to it
preallocated_journal_files = 2
flush_interval = "100ms"              # 30us to 100ms; an idle disk flushes at once
durability = "fsync"                  # "os" survives the process, not the machine
max_topics = 100000                   # a publish to one more topic is refused
sequence_jump_logged = 1000000        # a client whose sequence goes up by more than this at once is logged
# journal_archive_directory = "archive" # relative to data_directory

# What becomes of full journal files, by the age of the last message in them, and by their size in all; no default.
# [transaction_log.maintenance]
# archive_after = "1d"
# compress_after = "7d"
# remove_after = "30d"                # as far as nobody needs them
# archive_size_max = "200GB"          # what may stay outside of the archive
# compress_size_max = "50GB"          # what may stay as it is
# remove_size_max = "2TB"             # what may stay at all
# interval = "10m"
# by_clients = ["archive", "compress"] # what clients may ask for; on a loopback address also "remove", when nothing is said

# What is recorded. The first entry that names a topic decides. Without an entry every topic is recorded as JSON. When there are
# entries, a publish with a sequence to a topic that none of them names is refused.
# [[transaction_log.topic]]
# name = "prices"
# message_type = "json"
# recorded = false                    # unrecorded on purpose: publishes are accepted, not persisted
[[transaction_log.topic]]
name = "^"                            # a pattern: every topic
message_type = "json"
# filter = "/qty > 0"                 # record only the messages that match
# validate = true                     # refuse messages that are not JSON

# A queue over recorded topics; without the signs at the beginning of the lines there is one.
# [[queue]]
# name = "ORDERS_RISK"                # what consumers subscribe to
# message_type = "json"
# underlying_topic = "^(ORDERS|ORDERS_RISK_DIRECT)$"
# default_publish_target = "ORDERS_RISK_DIRECT"
# semantics = "at-least-once"         # or "at-most-once"
# fairness_model = "proportional"     # or "fast", "round-robin"
# lease_period = "30s"
# leasing = "sublease"                # "strict": only the holder settles
# max_backlog = 10000
# max_per_subscription_backlog = 100
# max_deliveries = 5                 # then it expires; see dead_letter_topic
# max_cancels = 3
# retry_delay = ["1s", "10s", "1m"]   # pause before a cancelled message comes again; the last one repeats
# expiration = "1h"
# expiration_model = "message"        # or "queue", "minimum"
# filter = "/quantity > 0"
# priority = "/price * /quantity"     # the greatest first
# barrier_expression = "/kind = 'end-of-day'"
# recovery_point = "epoch"            # or "now", a bookmark, a time
# dead_letter_topic = "ORDERS_DEAD"   # gets what expires
# file_backed_metadata = "enabled"    # the state in a file: a faster restart, and less memory when it is short
# record_leases = true                # the journal also says who held which message, for `quire pipeline queue-audit`
"""
