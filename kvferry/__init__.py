"""The command line, and `up`: the whole stack on one machine."""

__version__ = "0.1.0"
