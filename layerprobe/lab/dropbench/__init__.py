"""Models whose drops are known from fine-tuning, and what predictors of a drop score on them."""
