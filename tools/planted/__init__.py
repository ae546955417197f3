"""Train and measure the adapters with a planted position bias."""
