"""Inputs that were made to cost time: nothing may cost more than their length."""
