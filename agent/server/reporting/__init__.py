"""What the daemon says: log, events, status, health."""
