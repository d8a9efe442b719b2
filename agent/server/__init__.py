"""The daemon: the controller, its loops, its listeners."""
