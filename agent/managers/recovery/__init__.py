"""Allocations without a specification: from the cgroups of running pods, until one fits them."""
