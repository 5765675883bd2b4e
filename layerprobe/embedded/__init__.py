"""The embedded pair and its language: two small encoders and a task that come with layerprobe."""
