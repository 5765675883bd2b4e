"""A study as figures and as one self-contained HTML page. Knows results and Plotly, not models and not maths."""
