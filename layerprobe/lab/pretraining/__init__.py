"""Small encoders pretrained on the spot, and the synthetic language they are pretrained on."""
