"""Text, reports and checks of a kernel."""
