"""Tools that need no daemon."""
