"""HELM, HELMv2, SHELM and their baselines: frozen language models as memory."""
