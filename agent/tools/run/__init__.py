"""Pods for single commands and units: made from options, entered by the process itself."""
