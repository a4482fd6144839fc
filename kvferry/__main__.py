"""`python -m kvferry` is `kvferry`."""

import sys

from kvferry.cli import main

if __name__ == "__main__":
    sys.exit(main())
