"""Hosts that are described rather than discovered, and their trees."""
