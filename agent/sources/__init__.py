"""Where pods come from besides the admission API."""
