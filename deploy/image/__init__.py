"""The container image: Debian packages, the agent's environment, and nothing else."""
