"""Jobs on several processes or machines."""
