"""Small encoders pretrained on demand, by different objectives."""
