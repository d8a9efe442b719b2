"""What a pod asks for: manifests, quantities, QoS class, effective requests."""
