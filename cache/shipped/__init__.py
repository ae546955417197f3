"""Results that ship with PosLens: the fallback for results that a user has not computed."""
