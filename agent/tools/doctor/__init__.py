"""`numawarden doctor`: whether a host is set up for the agent beside a kubelet."""
