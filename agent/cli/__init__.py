"""The `numawarden` command."""
