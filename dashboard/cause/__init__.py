"""The Cause page: interventions and bias tests."""
