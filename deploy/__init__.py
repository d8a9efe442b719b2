"""How the agent is shipped: dependencies, Debian package, container image."""
