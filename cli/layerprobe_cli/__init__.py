"""The command line over `layerprobe`: parse, call one library function, print."""
