"""The library of rewrites: what models write out by formula becomes the op that means it, one file a family."""
