"""The Debian package: the agent's environment, its unit, its configuration, and how they change."""
