"""`python -m bench.grpc`: gRPC beside the gRPC server of a2a-sdk."""

import sys

from .comparison import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
