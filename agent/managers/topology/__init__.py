"""The topology manager: hints, their merge, policies and scopes (KEP-693)."""
