"""What scores and attributions are worth: faithfulness, bias tests, search and ranking measures."""
