"""What can be learnt from texts: a module a kind of task."""
