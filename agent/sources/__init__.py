"""Sources of pods besides the admission API."""
