"""A traced kernel: its parameters, its graph, and facts about its sizes."""
