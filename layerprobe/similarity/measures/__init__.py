"""The measures of similarity, a module a family: its maths, and the value that says all that it is."""
