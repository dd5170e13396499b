"""What implements the public modules; nothing here is public."""
