"""The controller's interface to reconciling."""
