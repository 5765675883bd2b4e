"""DropBench: models whose drops are known from fine-tuning, and the scores of rules that predict drops."""
