"""A traced kernel: its parameters, its graph, and what is known of its sizes."""
