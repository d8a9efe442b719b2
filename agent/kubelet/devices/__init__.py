"""The devices that the kubelet beside the agent gave to containers, from its file and its API."""
