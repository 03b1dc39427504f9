"""The experiments of the paper and beyond, one file a figure or claim."""
