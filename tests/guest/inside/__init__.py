"""What runs in the guest, by its own Python: checks, and hands for what a scenario touches."""
