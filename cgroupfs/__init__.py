"""The cgroup v2 tree: names, controllers, ordered writes, and what the kernel made of them."""
