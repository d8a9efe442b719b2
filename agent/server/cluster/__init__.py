"""Life beside a kubelet: what of the agent's state answers the container runtime."""
