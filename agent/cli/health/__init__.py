"""How the agent does: its status and events, and one verdict on all of it."""
