"""Methods: how faithful each attribution method is to the effects of words and positions."""
