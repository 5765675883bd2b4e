"""What a small encoder can be pretrained for: a module an objective, and a row in `registry`."""
