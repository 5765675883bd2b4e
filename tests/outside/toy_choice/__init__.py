"""A kind of task from another package: which of several answers belongs to a question.

Its items are neither texts nor pairs, and come from files that layerprobe does not know.
"""
