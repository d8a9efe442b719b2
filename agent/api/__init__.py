"""The documents of the admission API, and its client."""
