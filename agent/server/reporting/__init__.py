"""Log, events, status and health of the agent."""
