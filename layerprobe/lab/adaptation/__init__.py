"""Domain-adaptive pretraining: a model's masked-language-model pretraining is continued on one's own texts.

Knows encoders, texts and folders; knows no tasks and no similarity.
Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130); Gururangan et al. 2020 (arXiv 2004.10964).
"""
