"""The kubelet's own state files, `cpu_manager_state` and `memory_manager_state`, read and written.

With them a host moves from the kubelet to the agent and back without draining.
"""
