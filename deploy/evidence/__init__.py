"""A kit that measures what disturbs exclusive CPUs, with and without each item of isolation."""
