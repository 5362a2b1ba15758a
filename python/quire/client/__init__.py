"""The clients. Import the names from `quire`.

`_blocking` and `_aio` are the two faces.
"""
