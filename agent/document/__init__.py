"""YAML and JSON texts that people write: read strictly, with the place of every value."""
