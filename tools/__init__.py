"""What builds the shipped data, adapters and generated docs; never imported by the product."""
