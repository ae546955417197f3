"""What pages and commands share without drawing: models, store, queue, runs, settings."""
