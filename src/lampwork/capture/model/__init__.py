"""What capture hands on and works with: plain data, no behaviour."""
