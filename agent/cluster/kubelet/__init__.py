"""A kubelet beside the agent: clients of its APIs, readers of its files, its device plugins."""
