"""What happens at a call: inlined, run natively, or broken off."""
