"""One module for each kind of result that is kept beside attributions."""
