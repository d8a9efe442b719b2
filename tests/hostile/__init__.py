"""Inputs that somebody made to cost time: nothing may cost more than their length."""
