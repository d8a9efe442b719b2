"""The API listener and the metrics listener."""
