"""The controller's interface to the kernel: reconciling, and watches on what changes."""
