"""What attribution methods prefer: a tab of the page Methods."""
