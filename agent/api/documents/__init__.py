"""The documents of the admission API, one module for each family."""
