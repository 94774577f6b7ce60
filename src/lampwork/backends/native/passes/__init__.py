"""Passes that only the native backend wants: forms in which its templates and its calls of oneDNN are fastest."""
