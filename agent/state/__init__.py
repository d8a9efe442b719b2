"""The checkpoint and its atomic store."""
