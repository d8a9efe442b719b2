"""Documents as text for a terminal."""
