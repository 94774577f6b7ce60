"""What one capture knows: the environment it reads, its guards, effects and contexts."""
