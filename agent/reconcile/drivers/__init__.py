"""How pod cgroups are made and recorded: directories or systemd's slices."""
