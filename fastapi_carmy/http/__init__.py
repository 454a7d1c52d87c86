"""The carmy/1 wire over HTTP."""
