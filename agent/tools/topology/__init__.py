"""Drawing a host."""
