"""Commands that need no running agent."""
