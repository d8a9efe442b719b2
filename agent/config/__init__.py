"""The configuration file: the kubelet's field names, checked as a whole."""
