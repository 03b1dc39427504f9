"""The version of the library, also known to a checkout that was not installed."""

__version__ = "0.2.0"
