"""The kubelet beside the agent: clients of its APIs, readers of its files.

Nothing of this folder is imported unless `agent.kubelet.enabled` is set.
"""
