"""Work over a data set: claimed, computed, stored and resumed; on this machine or on Ray."""
