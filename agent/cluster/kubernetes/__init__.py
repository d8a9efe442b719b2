"""The API server of a cluster, and the objects that the agent writes there."""
