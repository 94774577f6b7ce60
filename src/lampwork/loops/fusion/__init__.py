"""Definitions to groups, one a kernel."""
