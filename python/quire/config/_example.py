"""The configuration that `quire config example` prints: every key, with its default."""

EXAMPLE = """\
# Configuration of a quire server. Every key is optional. Values are the defaults unless a comment says otherwise.
name = "quire"                        # shown to clients and in logs
# group = "quire"                     # for replication; default: the name
data_directory = "quire-data"         # relative to this file
allow_backtracking_patterns = false   # true: LIKE accepts back-references and look-around, which are slower

[[transport]]
name = "clients"
address = "127.0.0.1:9007"            # port 0 picks a free port
max_message_size = "16MB"
max_connections = 10000
max_patterns_per_connection = 1024    # LIKE and REGEXP_REPLACE in the filters of one connection
max_client_backlog = "64MB"           # unread bytes in memory; above it they go to disk
# message_memory_limit = "500MB"      # as in [limits], for the clients of this transport together. Default: none
# message_disk_limit = "500MB"        # as in [limits], for the clients of this transport together. Default: none
# client_max_capacity = 0.5           # as in [limits], for these clients; default: that of [limits]
# client_message_age_limit = "5m"     # as in [limits], for these clients; default: that of [limits]
max_subscriptions_per_connection = 1024
logon_timeout = "5s"
# tls = { certificate = "server.pem", private_key = "server.key" } # relative to this file. More keys: client_ca = "ca.pem",
#                                     # client_certificate = "required", "optional" or "none", min_version = "1.3"

# authentication = { method = "none" } # instead of [authentication], for this transport
insecure = false                      # true: clients of other machines need no password, or send it without TLS

# Add another [[transport]] to listen on another address, with its own limits.

[authentication]
method = "none"                       # "users": a name and a password; "token"; "certificate"; "http". Not "none" beyond loopback
# users_file = "users.toml"           # relative to this file; `quire user add` makes it
max_hashing = 2                       # logons that are checked at the same time
# keys = "keys.json"                  # for "token": the public keys of the issuer (JWKS), relative to this file
# issuer = "https://login.example"    # the iss of tokens
# audience = "quire"                  # an aud that tokens must have
leeway = "30s"                        # the most by which the clocks of issuer and server may differ
user_claim = "sub"
groups_claim = "groups"
user_from = "common_name"             # for "certificate": also "dns", "email" or "uri"
# users = { "Anna Smith" = "anna" }   # for "certificate": users with other names
# url = "https://logons.example/"     # for "http": the service that decides about each logon
timeout = "2s"                        # how long its answer may take
cache = "1m"                          # how long its acceptances are kept
# ca = "ca.pem"                       # the authorities of its certificate; default: those of the system
# headers_file = "headers"            # headers of the requests, one a line

# Which user may do what. The first entry that applies decides. Without an entry, every user may do everything.
# [[entitlement]]
# group = "desk"                      # or user = "anna"
# topic = "^orders"                   # topics, queues, and resources such as "/quire/server"
# allow = ["read", "query", "write"]  # also "replay", "delete", "monitor", "admin", "replicate"; deny = [...] refuses
# filter = "/desk = 'FX'"             # the messages that are visible, or that may be published or deleted
# select = ["-/client_name"]          # the fields that are visible

# Limits of users. The first entry that matches a user decides. The connections of a user share its limits.
# [[user_limit]]
# user = "anna"                       # or group = "desk"
# max_connections = 1000
# max_subscriptions = 10000
# max_waiting = "64MB"                # unread bytes; above it the slowest connection of the user is closed
# publish_rate = "1000"               # messages in a second, or a size such as "5MB"

# Where the lines of the log go. Default: standard error, level "info".
# [[logging]]
# target = "file"                     # "stderr", "stdout", "file", "syslog"
# level = "info"                      # this level and above: trace debug info warning error critical; or "none"
# levels = ["debug"]                  # these levels, too
# format = "text"                     # or "json"
# include = ["^12-", "^20-"]          # patterns of ids; default: every id
# exclude = ["^10-"]                  # it wins over include
# file = "log/%Y-%m-%d-%n.log"        # below data_directory; the time of the first line in UTC, and a running number
# rotate = "1GB"                      # the next file begins when a file would be larger
# keep = 10                           # files besides the current one
# compress = true                     # they become .gz
# ident = "quire"                     # of syslog
# facility = "daemon"                 # of syslog
# address = "/dev/log"                # of syslog: a socket, or host:port

# [events]
# sow_stats_interval = "5s"           # a message on /quire/SowStats about each last-value topic. Default: none

# Steps that the server runs when something happens: docs/actions.md lists the triggers and the steps.
# allow_execute = false               # before all tables. true: the step execute runs programs
# [[action]]
# name = "nightly"
# enabled = true
# on = { schedule = "23:00" }         # a trigger, or a list of triggers
# do = [{ truncate_statistics = { age = "7d" } }, "rotate_logs"]

[limits]                              # for all connections together
max_patterns = 8192
# message_memory_limit = "1GB"        # unread bytes in memory; above it what waits for the slowest client goes to disk
# message_disk_limit = "1GB"          # unread bytes on disk; 0: no client is offlined, and the slowest one is cut off
message_disk_path = "offline"         # below data_directory
client_max_capacity = 0.5             # the part of both limits that one client may use
# client_message_age_limit = "5m"     # of the oldest unread message; above it the client is cut off
max_unfinished = "256MB"              # bytes of incomplete frames
max_created_queues = 1000             # queues that clients created at run time; 0: clients cannot create queues
max_query_copies = "64MB"             # copies of replaced records that one query may need
max_pattern_topics = 10000            # topics with records of all [[sow_topic]] that have a pattern

[transaction_log]
journal_directory = "journal"         # relative to data_directory
journal_size = "64MB"                 # of one file, at least 64KB; the first files start at 4MB and grow
preallocated_journal_files = 2
flush_interval = "100ms"              # 30us to 100ms; an idle disk is flushed at once
durability = "fsync"                  # "os": acknowledged messages can be lost when the machine fails
max_unpersisted = "64MB"               # bytes that wait for a sync; above it the server reads no more publishes
max_topics = 100000                   # publishes to more topics are refused
# journal_archive_directory = "archive" # relative to data_directory

# Maintenance of full journal files, by the age of their last message and by total size. No default.
# [transaction_log.maintenance]
# archive_after = "1d"
# compress_after = "7d"
# remove_after = "30d"                # except files that a queue, a last-value topic or a connected replay needs
# archive_size_max = "200GB"          # outside of the archive; the oldest files beyond it are archived
# compress_size_max = "50GB"          # uncompressed; the oldest files beyond it are compressed
# remove_size_max = "2TB"             # in total; the oldest files beyond it are removed
# interval = "10m"
# by_clients = ["archive", "compress"] # actions that clients may request; the default adds "remove" on a loopback address

# Recorded topics. The first entry that matches a topic applies. Without entries every topic is recorded as JSON.
# With entries, a publish with a sequence to a topic that no entry matches is refused.
# [[transaction_log.topic]]
# name = "prices"
# message_type = "json"
# recorded = false                    # publishes are accepted, not persisted
[[transaction_log.topic]]
name = "^"                            # a pattern: every topic
message_type = "json"
# filter = "/qty > 0"                 # record only the messages that match
# validate = true                     # refuse messages that are not JSON

# Example of the HTTP server for statistics, metrics and health. Uncomment to enable. It requires quire-mq[admin].
# [admin]
# address = "127.0.0.1:9080"          # without it there is no HTTP server
# interval = "10s"                    # between two samples of the statistics
# file = "statistics.db"              # below data_directory; ":memory:": no file
# retention = "7d"                    # older samples are removed
# max_size = "1GB"                    # the oldest samples are removed when the file is larger
# hosts = ["quire.example.com"]       # further names of the server
# read_only = false                   # true: nothing can be changed over HTTP
# anonymous = ["/healthz", "/readyz"] # paths without authentication
# metrics_max_objects = 1000          # series of each kind in /metrics; other objects are summed
# shutdown_delay = "0s"               # between "not ready" and the end of the transports
# max_connections = 256
# max_body = "1MB"
# request_timeout = "10s"
# tls = { certificate = "server.pem", private_key = "server.key" }
# authentication = { method = "none" } # instead of [authentication], for the HTTP server
# insecure = false                    # true: requests from other machines without authentication, or passwords without TLS

# Example last-value topic: it keeps the newest message of each key. Uncomment to enable.
# [[sow_topic]]
# name = "orders"
# message_type = "json"
# key = ["/order_id"]                 # without it publishers supply the keys
# key_domain = "orders"               # topics with one domain have the same keys for the same values
# durability = "persistent"           # "transient": in memory only
# hash_index = [["/symbol"]]          # fields that queries compare with =
# index = ["/price"]                  # fields that queries compare in other ways
# expiration = "disabled"             # "enabled": that of each message; or a lifetime such as "30s"
# preprocessing = ["CONCAT(/symbol, '-', /venue) AS /instrument"] # computed before the key
# enrichment = ["/qty - COALESCE(/qty OF PREVIOUS, 0) AS /change"] # computed after the key
# history = { window = "1d", granularity = "1m", max_size = "1GB" } # keeps earlier states; not with pattern
# pattern = "orders/.*"               # each topic that matches has these settings; name is then not a topic
# file_backed = "disabled"            # "enabled": the records are in a file that can be paged out
# recovery_point = "now"              # of a transient topic; "epoch": read it from the log at each start

# Example view: it has a record for each group of records of a last-value topic. Uncomment to enable.
# [[view]]
# name = "exposure"
# message_type = "json"
# underlying_topic = "orders"         # a last-value topic, a conflated topic, a queue, or another view
# # join = ["[orders].[/account] = [accounts].[/id]"] # instead of underlying_topic: several topics
# projection = ["/account", "SUM(/price * /qty) AS /notional", "COUNT(/order_id) AS /orders"]
# grouping = ["/account"]             # without it, all records are one group
# filter = "/state != 'cancelled'"    # only records of the source that match
# hash_index = [["/notional"]]        # the fields of grouping have an index
# index = ["/notional"]
# key_domain = "exposure"
# inline_conflation = false           # true: a group that changes several times is delivered once

# Example conflated topic: a copy that changes at most once per interval. Uncomment to enable.
# [[conflated_topic]]
# name = "orders-C"
# message_type = "json"               # that of the source
# underlying_topic = "orders"         # a last-value topic, a view, or another conflated topic
# interval = "5s"
# filter = "/qty > 0"                 # only records of the source that match
# hash_index = [["/symbol"]]          # the fields of the key have an index
# index = ["/price"]

# Example queue. Uncomment to enable. [[local_queue]] has the same keys (docs/replication.md).
# [[queue]]
# name = "ORDERS_RISK"                # the name that consumers subscribe to
# message_type = "json"
# underlying_topic = "^(ORDERS|ORDERS_RISK_DIRECT)$"
# default_publish_target = "ORDERS_RISK_DIRECT"
# semantics = "at-least-once"         # or "at-most-once"
# fairness_model = "proportional"     # or "fast", "round-robin"
# lease_period = "30s"                # default "5m"; "disabled": until the connection of the consumer ends
# leasing = "sublease"                # "strict": only the holder of the lease can settle
# max_backlog = 10000
# max_per_subscription_backlog = 100
# max_deliveries = 5                  # a message that reaches it expires; see dead_letter_topic
# max_cancels = 3
# retry_delay = ["1s", "10s", "1m"]   # pauses after a cancel; the last one repeats. []: none. Default ["100ms", "1s", "10s", "1m"]
# expiration = "1h"
# expiration_model = "message"        # or "queue", "minimum"
# filter = "/quantity > 0"
# priority = "/price * /quantity"     # the highest value first; not with target_queue_depth
# barrier_expression = "/kind = 'end-of-day'"
# recovery_point = "epoch"            # or "now", a bookmark, a time
# dead_letter_topic = "ORDERS_DEAD"   # expired messages are published here
# file_backed_metadata = "enabled"    # keep the state in a file: a faster restart, less memory
# record_leases = true                # log which consumer had which message, for `quire pipeline queue-audit`

# Example of replication to another instance. Uncomment to enable.
# [replication]
# address = "127.0.0.1:9107"          # where other instances connect; without it none can
# tls = { certificate = "server.pem", private_key = "server.key", client_ca = "ca.pem" } # other instances must have a certificate
# authentication = { method = "users", users_file = "instances.toml" } # how other instances log on; default: [authentication]
# logon_timeout = "5s"                # time in which they must have logged on
# insecure = false                    # true: accept other machines without authentication, and secrets without TLS
# compare_interval = "1d"             # compare the messages with those of other instances; default: at each connect
# instances = ["east-3"]              # instances that send to this one, and are not destinations
# required_acks = 1                   # sync destinations that must have a message; default: all
# [[replication.destination]]
# name = "quire-2"                    # the name of the other instance
# group = "site-2"                    # then any instance of this group may answer
# addresses = ["127.0.0.1:9108"]      # tried from the first on
# sync_type = "sync"                  # "async": publishers do not wait for it
# pass_through = ["site-3"]           # patterns of groups whose messages are sent on
# compression = "none"                # or "lz4", "zstd"
# downgrade_after = "10s"             # publishers no longer wait for it when it is this late; default: never
# upgrade_below = "2s"                # they wait for it again when it is less late than this
# retained_size_max = "50GB"          # journal files that are kept for it
# exclude_validation = ["cascade"]    # checks that are left out when the link is made
# tls = { ca = "ca.pem", certificate = "server.pem", private_key = "server.key" } # true: trust the system; server_name = "quire-2"
# user = "quire"                      # the user with which this instance logs on
# password_file = "quire-2.password"  # one line, read for each connection
# token_file = "quire-2.token"        # instead of password_file
# [[replication.destination.topic]]
# name = "^"                          # a topic, or a pattern
# message_type = "json"
# filter = "/qty > 0"                 # send only the messages that match
"""
