"""Classes of images."""
