"""Drawing a map as text."""
