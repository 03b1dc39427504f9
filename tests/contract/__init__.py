"""What the public API promises, by kind of user and by law, without any internal module."""
