"""Facts about a host, read from any root directory and frozen after reading."""
