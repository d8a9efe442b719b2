"""From a configuration to a running daemon."""
