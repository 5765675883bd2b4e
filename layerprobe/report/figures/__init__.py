"""A study as Plotly figures. Knows what is drawn and in which colour; not the page around it, and no models."""
