"""Where learning histories come from: agents that learn, scripted experts, published files."""
