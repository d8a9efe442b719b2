"""The log: its lines, where they go, and from which level on."""
