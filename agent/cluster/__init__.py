"""What exists only beside a kubelet: its pods, its devices, the runtime, the API server."""
