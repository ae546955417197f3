"""What builds the shipped data and adapters; never imported by the product."""
