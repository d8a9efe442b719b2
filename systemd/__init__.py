"""systemd: unit names, slices over D-Bus, readiness and watchdog."""
