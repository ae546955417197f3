"""Evaluation: faithfulness, bias tests, search, ranking measures, audits and causes of misses."""
