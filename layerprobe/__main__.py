"""`python -m layerprobe` is the command `layerprobe`."""

from layerprobe_cli.start import main

if __name__ == "__main__":
    main()
