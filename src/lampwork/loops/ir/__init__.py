"""The loop language itself: data, its traversal, what can be asked of it."""
