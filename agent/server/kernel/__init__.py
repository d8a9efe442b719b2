"""What the controller asks of reconciling."""
