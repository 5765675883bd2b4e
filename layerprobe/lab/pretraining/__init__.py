"""Small encoders pretrained on the spot, by one objective or another."""
