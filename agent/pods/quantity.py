"""Kubernetes quantities (`500m`, `4Gi`, `1e3`) as exact integers."""
