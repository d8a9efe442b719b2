"""NRI as a container runtime speaks it: frames, requests, messages, the session of a plugin."""
