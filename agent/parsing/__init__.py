"""YAML and JSON documents as typed values, each with its line."""
