"""Which cgroup is which container."""
