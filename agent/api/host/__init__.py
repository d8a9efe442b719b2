"""Documents about the host: what it is, and who uses it."""
