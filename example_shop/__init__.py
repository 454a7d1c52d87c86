"""A small shop that people reach over REST and agents over `carmy/1`."""
