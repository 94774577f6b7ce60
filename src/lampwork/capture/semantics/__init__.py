"""What Python does with values: attributes, operators, protocols."""
