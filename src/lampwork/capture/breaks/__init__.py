"""What is made where a region ends: recipes, continuations, resume functions."""
