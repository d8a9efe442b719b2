"""Questions that are answered by deciding: what would help a rejected pod, and how many fit."""
