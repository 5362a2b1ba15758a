"""Administration of a running server: its statistics, and its HTTP server (docs/admin.md).

It requires `quire-mq[admin]`. A server without `[admin]` does not import it.
"""
