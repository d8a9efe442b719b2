"""Commands that give a command or a systemd unit a pod of its own."""
