"""What an allocation is worth: how good it is, and what of the current policy it violates."""
