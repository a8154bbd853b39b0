"""What runs a kernel: one folder or file a backend."""
