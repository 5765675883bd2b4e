"""The HSIC engine and the measures: arrays in, frozen results out. Knows no files and no models."""
