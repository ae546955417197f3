"""Faithfulness of attribution methods, by deletion and insertion tests."""
