"""A host to try the agent on: a described one in a directory, with a real agent process."""
