"""Every order in which what comes from outside may meet a few requests (`world`, `search`)."""
