"""`python -m quire.testing SETTINGS`: the process of a `ServerProcess`."""

import sys

from quire.testing._server import serve

if __name__ == "__main__":
    serve(sys.argv[1])
