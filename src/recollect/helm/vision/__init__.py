"""What turns frames into words and vectors: CLIP, a small dual encoder of tiles, and the vocabularies that SHELM reads."""
