"""Commands before, during and after maintenance of a host."""
