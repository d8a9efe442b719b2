"""Every key of the configuration, declared once: name, kind, default, bounds, help, since."""
