"""What is measured: one application a module."""
