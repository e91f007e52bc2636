"""What two or more of the papers use."""
