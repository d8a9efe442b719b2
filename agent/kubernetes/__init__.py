"""What the agent writes to the API server of a cluster: the topology of the node, Events."""
