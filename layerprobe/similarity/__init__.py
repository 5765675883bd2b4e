"""The HSIC engine and the similarity measures, from arrays to frozen results. Knows no files and no models."""
