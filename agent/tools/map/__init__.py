"""Drawing a map as text and as SVG."""
