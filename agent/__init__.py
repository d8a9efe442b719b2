"""Numawarden: admits pods on a NUMA host and makes the kernel enforce what they were given."""

__version__ = "0.1.0"
